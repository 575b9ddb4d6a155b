#pragma once

#include <penstock/device/device.hpp>
#include <penstock/memory/memory_resource.hpp>

#include <map>
#include <memory>
#include <mutex>

namespace penstock {

/// Pinned memory from the kernel: whole pages, mapped, touched by host workers, and registered. If
/// registering is refused, it comes from the driver's allocator. deallocate unregisters and unmaps.
class PinnedResource final : public MemoryResource {
 public:
  /// `workers` touch the pages; null: the device's.
  explicit PinnedResource(Device device, std::shared_ptr<HostWorkers> workers = nullptr);

  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment) override;
  void deallocate(void* data, std::size_t bytes, std::size_t alignment) noexcept override;
  [[nodiscard]] MemoryKind kind() const noexcept override { return MemoryKind::pinned; }

 private:
  enum class Origin { registered, driver };
  struct Pages {
    std::size_t bytes = 0;
    Origin origin = Origin::registered;
  };

  [[nodiscard]] void* map_and_register(std::size_t bytes);
  [[nodiscard]] void* from_driver(std::size_t bytes, const char* why);
  void give_back(void* data, Pages pages) noexcept;

  Device device_;
  std::shared_ptr<HostWorkers> workers_;
  std::mutex mutex_;
  std::map<void*, Pages> pages_;
};

}  // namespace penstock
