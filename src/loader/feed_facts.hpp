#pragma once

#include <penstock/data/dataset.hpp>
#include <penstock/device/device.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

/// Where one field lies on the host, and how the device can reach it there.
struct FieldFacts {
  /// Who page-locked the field's memory before the loader was made.
  enum class PageLock : std::uint8_t {
    none,
    registered,  ///< all of it, by a Registration of the program
    foreign,     ///< another library's allocator, say; not a Registration, which may end before the loader
  };

  Field stored;
  std::uint64_t samples = 0;
  std::size_t sample_bytes = 0;
  bool in_memory = false;     ///< the samples lie side by side in the address space
  bool strided = false;       ///< the samples lie in memory, with gaps between them
  bool file_mapping = false;  ///< the samples lie in a mapping of a file, which anybody can cut short
  bool aligned = false;       ///< to the type of the field
  bool decoded = false;       ///< see FieldReader
  std::string decoder{};      ///< what decodes it on the device; empty: nothing
  std::string not_decoder{};  ///< why the device does not, if it was to be tried
  bool on_disk = false;       ///< see BlockReader::is_of
  bool varies = false;        ///< the bytes of a sample depend on the epoch
  PageLock page_lock = PageLock::none;
  std::size_t allocation_bytes = 0;       ///< of the array that the field is a slice of
  std::size_t allocation_used_bytes = 0;  ///< by all fields of the dataset

  /// Why the pages cannot be locked. Set once locking was tried and refused.
  std::optional<std::string> lock_refused{};
  /// There is no pinned memory for a copy. Set once a copy was tried.
  bool copy_refused = false;

  [[nodiscard]] std::size_t bytes() const noexcept {
    return static_cast<std::size_t>(samples) * sample_bytes;
  }
};

struct DeviceFacts {
  bool batched_copies = false;  ///< see DeviceInfo
  DeviceTuning tuning{};        ///< see DeviceInfo
  std::size_t free_bytes = 0;   ///< of device memory
  /// The device does not have all memory that the plan reserves. Set once it was tried.
  bool memory_refused = false;
};

/// Everything that the plan depends on, apart from the options and the link's profile.
struct FeedFacts {
  std::vector<FieldFacts> fields;
  DeviceFacts device;
  std::size_t batch = 0;       ///< samples of a whole batch
  std::size_t host_bytes = 0;  ///< of the host's memory
  /// There is no pinned memory for rows. Set once a copy was tried.
  bool rows_refused = false;
};

/// Asks the dataset and the device. Nothing else asks them before the plan is made. Throws DeviceError.
[[nodiscard]] FeedFacts collect_facts(const Dataset& dataset, const Device& device, std::size_t batch);

}  // namespace penstock
