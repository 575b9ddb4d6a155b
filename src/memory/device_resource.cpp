#include "memory/device_resource.hpp"

#include <penstock/core/bytes.hpp>

#include <cstdint>

namespace penstock {

namespace {
constexpr std::size_t kPromisedAlignment = 256;
}

void* DeviceResource::allocate(std::size_t bytes, std::size_t alignment) {
  if (alignment <= kPromisedAlignment) return device_.allocate(bytes);
  void* const data = device_.allocate(bytes + alignment);
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  void* const aligned = static_cast<std::byte*>(data) + (align_up(address, alignment) - address);
  try {
    const std::lock_guard lock(mutex_);
    shifted_.emplace(aligned, data);
  } catch (...) {
    device_.deallocate(data);
    throw;
  }
  return aligned;
}

void DeviceResource::deallocate(void* data, std::size_t, std::size_t) noexcept {
  {
    const std::lock_guard lock(mutex_);
    const auto entry = shifted_.find(data);
    if (entry != shifted_.end()) {
      data = entry->second;
      shifted_.erase(entry);
    }
  }
  device_.deallocate(data);
}

}  // namespace penstock
