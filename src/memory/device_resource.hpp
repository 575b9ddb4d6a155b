#pragma once

#include <penstock/device/device.hpp>
#include <penstock/memory/memory_resource.hpp>

#include <map>
#include <mutex>
#include <utility>

namespace penstock {

/// Device memory from the driver.
class DeviceResource final : public MemoryResource {
 public:
  explicit DeviceResource(Device device) : device_(std::move(device)) {}

  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment) override;
  void deallocate(void* data, std::size_t bytes, std::size_t alignment) noexcept override;
  [[nodiscard]] MemoryKind kind() const noexcept override { return MemoryKind::device; }

 private:
  Device device_;
  std::mutex mutex_;
  std::map<void*, void*> shifted_;  // aligned address -> the driver's, if the driver does not promise as much
};

}  // namespace penstock
