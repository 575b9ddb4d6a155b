#pragma once

#include <penstock/core/shared_pages.hpp>
#include <penstock/device/backend.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <shared_mutex>
#include <span>
#include <vector>

namespace penstock {

/// Fills memory that was not written yet, to show who reads it.
inline constexpr int kPoison = 0xDB;

/// How the host device reaches a range of memory.
struct RangeKind {
  MemoryKind kind = MemoryKind::pageable;
  bool writable = true;
  bool whole = true;  ///< false: it begins in device or locked memory and runs past its end
};

/// The memory of one host device and its view of the host's: a budget, and the ranges of device memory and of
/// locked memory. Thread-safe; looking up takes a shared lock.
class HostMemory {
 public:
  HostMemory(std::size_t total, std::optional<std::size_t> lock_bytes, bool poison);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  /// If `shared`, of pages that other processes can map.
  void* device_allocate(std::size_t bytes, bool shared = false);
  void device_free(void* data) noexcept;
  void* host_allocate(std::size_t bytes);
  void host_free(void* data) noexcept;
  void host_register(void* data, std::size_t bytes, bool read_only);
  void host_unregister(void* data) noexcept;

  [[nodiscard]] DeviceMemory memory() const;
  /// The pages of a shared allocation that `data` lies in, and the offset in them; null if there is none.
  struct SharedPlace {
    const SharedPages* pages = nullptr;
    std::size_t offset = 0;
    std::size_t bytes = 0;  ///< from there to the allocation's end
  };
  [[nodiscard]] SharedPlace find_shared(const void* data) const;
  [[nodiscard]] RangeKind kind_of(const void* data, std::size_t bytes) const;
  /// True if the device may carry out all of `pieces`. Also counts the bytes that would cross the link.
  [[nodiscard]] bool reaches(std::span<const CopyPiece> pieces, std::size_t& to_device,
                             std::size_t& to_host) const;

 private:
  enum class Origin : std::uint8_t { device, allocated, registered };

  struct KnownRange {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    Origin origin = Origin::device;
    bool read_only = false;
  };

  [[nodiscard]] RangeKind look_up(std::uintptr_t begin, std::uintptr_t end) const noexcept;
  [[nodiscard]] std::vector<KnownRange>::const_iterator find(std::uintptr_t address) const noexcept;
  void insert(const KnownRange& range);
  std::optional<KnownRange> remove(const void* data, Origin origin) noexcept;

  const std::size_t total_;
  const std::optional<std::size_t> lock_bytes_;
  const bool poison_;
  mutable std::shared_mutex mutex_;
  std::vector<KnownRange> ranges_;                // sorted, disjoint
  std::map<std::uintptr_t, SharedPages> shared_;  // the pages of ranges that are shared, by their begin
  std::size_t used_ = 0;
  std::size_t registered_ = 0;
};

}  // namespace penstock
