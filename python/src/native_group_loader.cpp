#include "native_group_loader.hpp"

#include "frameworks.hpp"

#include <utility>

namespace penstock::python {
namespace {

GroupLinks links_of(const Group& group) {
  GroupLinks links{.measured = group.measured()};
  for (const auto& engine : group.engines()) links.profiles.push_back(engine->transfers().profile());
  return links;
}

}  // namespace

NativeGroupLoader::NativeGroupLoader(std::shared_ptr<Group> group, const NativeLoader::Arrays& fields,
                                     LoaderOptions options)
    : group_(std::move(group)) {
  Dataset dataset = make_dataset(fields);
  const DeviceGroup& devices = group_->engine().group();
  GroupLinks links = links_of(*group_);
  {
    const nb::gil_scoped_release unlocked;
    loader_.emplace(std::move(dataset), devices, std::move(options), std::move(links));
  }
  add_streams(devices.size());
}

NativeGroupLoader::NativeGroupLoader(Relays /*relays*/, std::shared_ptr<Group> group,
                                     const NativeLoader::Arrays& fields, LoaderOptions options)
    : group_(std::move(group)) {
  Dataset dataset = make_dataset(fields);
  const DeviceGroup& devices = group_->engine().group();
  GroupLinks links = links_of(*group_);
  {
    const nb::gil_scoped_release unlocked;
    loader_.emplace(GroupLoader::relay(0, std::move(dataset), devices, std::move(options), std::move(links)));
  }
  add_streams(1);
}

void NativeGroupLoader::add_streams(std::size_t receivers) {
  for (std::size_t i = 0; i < receivers; ++i) {
    const Device& device = group_->engines()[i]->device();
    streams_.push_back(std::make_shared<const Stream>(device.create_stream()));
  }
}

NativeGroupLoader::~NativeGroupLoader() {
  // As a NativeLoader: its threads may release the arrays last.
  const nb::gil_scoped_release unlocked;
  loader_.reset();
}

nb::object NativeGroupLoader::next() {
  (void)group_->engine();  // throws in a forked process, and after close
  const auto& engines = group_->engines();
  const bool for_torch = is_for_torch(*engines.front());
  std::vector<Stream> streams;
  for (std::size_t i = 0; i < streams_.size(); ++i)
    streams.push_back(stream_of_next(*engines[i], *streams_[i]));
  std::optional<std::vector<DeviceBatch>> batches = with_sampler_errors(loader_->options(), [&] {
    return kept_.next([&] { return loader_->next(streams, &hear_signals); },
                      [&] {
                        for (std::size_t i = 0; i < streams.size(); ++i)
                          wait_if_on_host(*engines[i], streams[i]);
                      });
  });
  if (!batches) return nb::none();
  nb::list all;
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    const auto storage = std::make_shared<LeaseStorage>(
        engines[i]->device(), for_torch ? nullptr : streams_[i], std::move((*batches)[i]));
    const DeviceBatch& leased = storage->batch();
    nb::list arrays;
    for (std::size_t f = 0; f < leased.field_count(); ++f) {
      arrays.append(make_field(*engines[i], storage, leased.field(f)));
    }
    all.append(arrays);
  }
  return all;
}

bool NativeGroupLoader::next_into(nb::list made, const TensorWatch& watch) {
  if (!watch.unchanged()) return false;
  made.append(next());
  return true;
}

void NativeGroupLoader::start_epoch(std::uint64_t epoch) {
  with_sampler_errors(loader_->options(), [&] { kept_.drop_and([&] { loader_->start_epoch(epoch); }); });
}

void NativeGroupLoader::restore(const SamplerState& state) {
  kept_.drop_and([&] { loader_->restore(state); });
}

void NativeGroupLoader::end_epoch(std::uint64_t epoch) {
  start_epoch(epoch);
  const nb::gil_scoped_release unlocked;
  loader_->synchronize();
}

void NativeGroupLoader::close() {
  kept_.drop_and([this] { loader_->close(); });
}

}  // namespace penstock::python
