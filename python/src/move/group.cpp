#include "move/group.hpp"

#include "interpreter_lock.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/log.hpp>
#include <penstock/device/device_group.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

namespace penstock::python {
namespace {

constexpr const char* kClosed = "penstock's group of devices was closed.";

DeviceGroup group_of(const std::vector<std::shared_ptr<Engine>>& engines) {
  std::vector<Device> devices;
  devices.reserve(engines.size());
  for (const auto& engine : engines) devices.push_back(engine->device());
  return DeviceGroup(std::move(devices));
}

std::optional<GroupProfile> stored_profile(const DeviceGroup& group,
                                           const std::optional<std::filesystem::path>& cache_directory) {
  if (!cache_directory) return std::nullopt;
  const auto file = GroupProfile::file_for(*cache_directory, group);
  std::string why;
  auto profile = GroupProfile::load(file, group, &why);
  std::error_code error;
  if (!profile && std::filesystem::exists(file, error)) {
    log_warning("The profile of the group is ignored: " + why);
  }
  return profile;
}

std::unique_ptr<GroupEngine> make_engine(const std::vector<std::shared_ptr<Engine>>& engines,
                                         const DeviceGroup& group,
                                         const std::optional<GroupProfile>& measured) {
  GroupOptions options{.measured = measured};
  for (const auto& engine : engines) options.profiles.push_back(engine->profile());
  return std::make_unique<GroupEngine>(group, std::move(options));
}

// An array that is on one of the devices already is a leaf for the others alone.
bool have_the_same_leaves(std::vector<Shipment>& shipments) {
  std::vector<Leaf>& first = shipments.front().nest.leaves();
  return std::ranges::all_of(shipments, [&](Shipment& shipment) {
    return shipment.offsets == shipments.front().offsets &&
           std::ranges::equal(shipment.nest.leaves(), first, [](const Leaf& a, const Leaf& b) {
             return a.data == b.data && a.bytes == b.bytes;
           });
  });
}

}  // namespace

Group::Group(std::vector<std::shared_ptr<Engine>> engines,
             const std::optional<std::filesystem::path>& cache_directory)
    : engines_(std::move(engines)),
      devices_(group_of(engines_)),
      measured_(stored_profile(devices_, cache_directory)),
      group_(make_engine(engines_, devices_, measured_)) {}

std::shared_ptr<Group> Group::open(std::vector<std::shared_ptr<Engine>> engines,
                                   const std::optional<std::filesystem::path>& cache_directory) {
  const Unlocked unlocked;
  return {new Group(std::move(engines), cache_directory), [](Group* group) {
            group->close();
            delete group;
          }};
}

void Group::refuse_closed() const {
  for (const auto& engine : engines_) engine->refuse_fork();
  if (!group_.is_open()) throw Closed(kClosed);
}

std::shared_ptr<GroupEngine> Group::engine() const {
  for (const auto& engine : engines_) engine->refuse_fork();
  auto group = group_.get();
  if (!group) throw Closed(kClosed);
  return group;
}

std::pair<std::vector<Flight>, std::size_t> Group::send(nb::handle tree,
                                                        const std::vector<nb::object>& expand,
                                                        const FilledSlot* slot) {
  refuse_closed();
  // Arrays for one host device stay in a slot; those for several are copied out of it.
  const FilledSlot* const read_there = engines_.front()->is_cuda() ? slot : nullptr;
  std::vector<Shipment> shipments;
  shipments.reserve(expand.size());
  for (std::size_t i = 0; i < expand.size(); ++i) {
    shipments.push_back(engines_[i]->load(tree, expand[i], false, read_there));
  }
  const std::size_t link_bytes = enqueue(shipments, read_there);
  std::vector<Flight> flights;
  flights.reserve(expand.size());
  for (std::size_t i = 0; i < expand.size(); ++i) {
    flights.push_back(engines_[i]->finish(std::move(shipments[i])));
  }
  return {std::move(flights), link_bytes};
}

std::size_t Group::crossings() const {
  const bool pays = !measured_ || measured_->feeding_once_pays();
  return pays ? devices_.cliques().size() : engines_.size();
}

std::size_t Group::enqueue(std::vector<Shipment>& shipments, const FilledSlot* slot) const {
  const std::vector<Leaf>& leaves = shipments.front().nest.leaves();
  std::vector<std::optional<Stream>> streams;
  streams.reserve(shipments.size());
  for (std::size_t i = 0; i < shipments.size(); ++i) {
    streams.push_back(engines_[i]->stream_of(shipments[i].flight));
  }
  const auto plainly = [&] {
    const Unlocked unlocked;
    for (std::size_t i = 0; i < shipments.size(); ++i) {
      if (shipments[i].nest.leaves().empty()) continue;
      engines_[i]->enqueue(shipments[i], {.after = streams[i] ? &*streams[i] : nullptr});
    }
    std::size_t bytes = 0;
    for (const Shipment& shipment : shipments) bytes += shipment.flight.bytes();
    return bytes;
  };
  if (!have_the_same_leaves(shipments)) return plainly();

  std::vector<GroupPiece> in_place;
  std::vector<GroupPiece> staged;
  const Groups& groups = shipments.front().groups;
  std::size_t bytes = groups.slot.size();
  if (bytes > 0) in_place.push_back({groups.slot.data(), 0, bytes});
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const Leaf& leaf = leaves[i];
    if (is_in(slot, leaf)) continue;
    const MemoryKind kind =
        leaf.bytes == 0 ? MemoryKind::pageable : engines_.front()->device().kind_of(leaf.data);
    if (kind == MemoryKind::device) return plainly();  // a host device's
    const bool is_locked =
        kind != MemoryKind::pageable && leaf.bytes >= engines_.front()->info().tuning.alone_pinned_bytes;
    (is_locked ? in_place : staged).push_back({leaf.data, shipments.front().offsets[i], leaf.bytes});
    bytes += leaf.bytes;
  }
  if (bytes < kLeastInGroup) return plainly();

  GroupCopyOptions options;
  std::vector<std::byte*> destinations;
  for (std::size_t i = 0; i < shipments.size(); ++i) {
    destinations.push_back(shipments[i].flight.pending_.storage->data());
    options.after.push_back(streams[i] ? &*streams[i] : nullptr);
  }
  const auto keep = [&](const Transfer& transfer) {
    for (Shipment& shipment : shipments) shipment.flight.pending_.transfers.push_back(transfer);
  };
  // The threads read all sources later, also those of small arrays.
  std::vector<nb::object>& sources = shipments.front().flight.pending_.sources;
  sources.clear();
  for (const Leaf& leaf : leaves) {
    if (!is_in(slot, leaf)) sources.push_back(leaf.source);
  }
  const Unlocked unlocked;
  for (const auto* const pieces : {&in_place, &staged}) {
    if (pieces->empty()) continue;
    if (pieces == &staged) options.source_kind = MemoryKind::pageable;
    keep(shipments.size() == engines_.size() ? engine()->feed_once(destinations, *pieces, options)
                                             : engine()->relay(0, destinations.front(), *pieces, options));
  }
  return shipments.size() == engines_.size() ? bytes * crossings() : bytes;
}

std::vector<std::size_t> Group::carried() const {
  const Unlocked unlocked;
  return engine()->carried();
}

void Group::close() {
  const Unlocked unlocked;
  group_.close();
}

void bind_group(nb::module_& module) {
  nb::class_<Group>(module, "Group", "Sends to several devices over the links of all.")
      .def(nb::new_(&Group::open), nb::arg("engines"), nb::arg("cache_directory") = nb::none())
      .def("carried", &Group::carried, "Bytes that each device has pulled over its link so far.")
      .def("close", &Group::close);
}

}  // namespace penstock::python
