#include "device/shared/peer_memory.hpp"

#include <penstock/device/backend.hpp>

#include <utility>

namespace penstock {

PeerMemoryHandle name_memory(const Device& device, const void* data) {
  return device.backend().memory_export(data);
}

PeerMemory::PeerMemory(Device device, const PeerMemoryHandle& handle)
    : device_(std::move(device)),
      mapped_(device_.backend().memory_import(handle)),
      data_(static_cast<const std::byte*>(mapped_) + handle.offset),
      bytes_(static_cast<std::size_t>(handle.bytes)) {}

PeerMemory::~PeerMemory() {
  if (mapped_ != nullptr) device_.backend().memory_close(mapped_);
}

PeerMemory::PeerMemory(PeerMemory&& other) noexcept
    : device_(other.device_),
      mapped_(std::exchange(other.mapped_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

PeerMemory& PeerMemory::operator=(PeerMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(mapped_, other.mapped_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace penstock
