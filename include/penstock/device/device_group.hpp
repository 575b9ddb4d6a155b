#pragma once

#include <penstock/device/device.hpp>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace penstock {

/// Open devices of one backend that receive together, and which of them reach each other's memory. A cheap
/// handle: copies share it, and it keeps its members open. Thread-safe.
class DeviceGroup {
 public:
  /// Lets every member name the memory of every other that it reaches (Device::enable_peer), and copies a
  /// block of 256 KiB that way to compare its bytes: a driver may say that GPUs reach each other, and bring
  /// wrong bytes. This may block the host for milliseconds. For as long, each member needs 256 KiB of its
  /// memory for each. Pairs without a link between them, pairs whose link the driver refuses, and pairs whose
  /// bytes arrive wrong or cannot be tried, are not an error: see `unreached`.
  ///
  /// Throws InvalidArgument if there is no member, if a device is given twice, or if the devices have
  /// different backends. Throws DeviceError.
  explicit DeviceGroup(std::vector<Device> members);

  [[nodiscard]] std::size_t size() const noexcept;
  [[nodiscard]] const Device& operator[](std::size_t member) const noexcept;

  /// True if copies on streams of `member` can name the memory of `other`, without host memory between, and
  /// bring it the right bytes.
  [[nodiscard]] bool reaches(std::size_t member, std::size_t other) const noexcept;
  /// The members, in as few sets as a first fit finds, within each of which all reach each other. One set if
  /// nothing is amiss. Each set is ascending.
  [[nodiscard]] const std::vector<std::vector<std::size_t>>& cliques() const noexcept;
  /// A sentence for each pair that does not reach each other both ways: which, why, and what to do. Empty if
  /// there is no such pair.
  [[nodiscard]] const std::vector<std::string>& unreached() const noexcept;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace penstock
