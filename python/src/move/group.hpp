#pragma once

#include "closable.hpp"
#include "move/engine.hpp"

#include <penstock/device/device_group.hpp>
#include <penstock/transfer/group_engine.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace penstock::python {

/// Handing fewer bytes to the members' threads takes longer than the links of the others save.
inline constexpr std::size_t kLeastInGroup = std::size_t{1} << 20;

/// Sends to several devices, each of which has an engine, over the links of all.
class Group {
 public:
  /// The last owner closes it. It and the caller hold the interpreter's lock. Throws InvalidArgument for
  /// devices that cannot be in one group.
  [[nodiscard]] static std::shared_ptr<Group> open(
      std::vector<std::shared_ptr<Engine>> engines,
      const std::optional<std::filesystem::path>& cache_directory);

  /// Feeds all devices once, or the first one alone, over the links of all. `expand`: one for each that
  /// receives. `slot`: see Engine::send; its arrays go to each device's own memory, and it stays taken until
  /// all have them. Gives a flight to each device, and the bytes that the links of all carry.
  [[nodiscard]] std::pair<std::vector<Flight>, std::size_t> send(nb::handle tree,
                                                                 const std::vector<nb::object>& expand,
                                                                 const FilledSlot* slot);

  /// Throws Closed after close(), and DeviceError in a forked process.
  void refuse_closed() const;
  /// See Closable::get. Throws as refuse_closed does.
  [[nodiscard]] std::shared_ptr<GroupEngine> engine() const;
  /// Of the devices, in their order.
  [[nodiscard]] const std::vector<std::shared_ptr<Engine>>& engines() const noexcept { return engines_; }
  [[nodiscard]] const DeviceGroup& devices() const noexcept { return devices_; }
  [[nodiscard]] const std::optional<GroupProfile>& measured() const noexcept { return measured_; }
  /// Bytes that each device has pulled over its link so far.
  [[nodiscard]] std::vector<std::size_t> carried() const;

  /// As Engine::close. Before the engines are closed.
  void close();

 private:
  Group(std::vector<std::shared_ptr<Engine>> engines,
        const std::optional<std::filesystem::path>& cache_directory);
  /// Enqueues the leaves that all shipments have in common. To the first device alone if there is only one
  /// shipment. Returns the bytes that the links of all carry.
  std::size_t enqueue(std::vector<Shipment>& shipments, const FilledSlot* slot) const;
  /// How many links each byte for all devices crosses.
  [[nodiscard]] std::size_t crossings() const;

  const std::vector<std::shared_ptr<Engine>> engines_;
  const DeviceGroup devices_;
  const std::optional<GroupProfile> measured_;
  Closable<GroupEngine> group_;
};

void bind_group(nb::module_& module);

}  // namespace penstock::python
