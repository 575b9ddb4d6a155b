#pragma once

#include <penstock/device/device.hpp>
#include <penstock/memory/memory_resource.hpp>

#include <map>
#include <mutex>

namespace penstock {

/// Pinned memory from the kernel: pages mapped, touched by several threads, registered. Where registering is
/// refused, from the driver's own allocator. Whole pages are taken; deallocate unregisters and unmaps.
class PinnedResource final : public MemoryResource {
 public:
  /// `touch_threads` 0: up to 8, as processors allow.
  explicit PinnedResource(Device device, unsigned touch_threads = 0);

  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment) override;
  void deallocate(void* data, std::size_t bytes, std::size_t alignment) noexcept override;
  [[nodiscard]] MemoryKind kind() const noexcept override { return MemoryKind::pinned; }

  /// Bytes locked now, whole pages.
  [[nodiscard]] std::size_t locked_bytes() const;

 private:
  enum class Origin { registered, driver };
  struct Range {
    std::size_t bytes = 0;
    Origin origin = Origin::registered;
  };

  [[nodiscard]] void* map_and_register(std::size_t bytes);
  [[nodiscard]] void* from_driver(std::size_t bytes, const char* why);
  void give_back(void* data, Range range) noexcept;

  Device device_;
  unsigned touch_threads_;
  mutable std::mutex mutex_;
  std::map<void*, Range> ranges_;
  std::size_t locked_bytes_ = 0;
};

}  // namespace penstock
