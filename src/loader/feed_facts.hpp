#pragma once

#include <penstock/data/dataset.hpp>
#include <penstock/device/device.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

/// One field as it lies on the host, and how the device can reach it there.
struct FieldFacts {
  /// Who has page-locked the field's memory before the loader was made.
  enum class PageLock : std::uint8_t {
    none,
    registered,  ///< all of it, by a Registration of the program
    foreign,     ///< another library's allocator, say; not by a Registration, which may end before the loader
  };

  Field stored;
  std::uint64_t samples = 0;
  std::size_t sample_bytes = 0;
  bool in_memory = false;     ///< the samples lie side by side in the address space
  bool file_mapping = false;  ///< which is a mapping of a file: anybody can cut that short
  bool aligned = false;       ///< to the type of the field
  PageLock page_lock = PageLock::none;
  std::size_t allocation_bytes = 0;       ///< of the array that the field is a slice of
  std::size_t allocation_used_bytes = 0;  ///< by all fields of the dataset

  /// Set if it was tried: the pages cannot be locked, and why.
  std::optional<std::string> lock_refused{};
  /// Set if it was tried: there is no pinned memory for a copy.
  bool copy_refused = false;

  [[nodiscard]] std::size_t bytes() const noexcept {
    return static_cast<std::size_t>(samples) * sample_bytes;
  }
};

struct DeviceFacts {
  bool batched_copies = false;  ///< see DeviceInfo
  DeviceTuning tuning{};        ///< the same
  std::size_t free_bytes = 0;   ///< of device memory
  /// Set if it was tried: the device does not have all memory that the plan reserves.
  bool memory_refused = false;
};

/// All that the plan goes by, beside the options and the link's profile.
struct FeedFacts {
  std::vector<FieldFacts> fields;
  DeviceFacts device;
  std::size_t batch = 0;  ///< samples of a whole batch
};

/// Asks the dataset and the device: nothing else does before the plan is made. Throws DeviceError.
[[nodiscard]] FeedFacts collect_facts(const Dataset& dataset, const Device& device, std::size_t batch);

}  // namespace penstock
