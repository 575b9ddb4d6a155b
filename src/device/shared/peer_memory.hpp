#pragma once

#include <penstock/device/device.hpp>
#include <penstock/device/requests.hpp>

#include <cstddef>

namespace penstock {

/// Names `data` and the bytes behind it, up to the end of their allocation. Does not block. Throws
/// InvalidArgument if it is not device memory of this device, Unsupported if the memory was not made by
/// Device::allocate_shared, or cannot be shared. Throws DeviceError.
[[nodiscard]] PeerMemoryHandle name_memory(const Device& device, const void* data);

/// Device memory of another process, which copies on this device's streams may read. The two processes order
/// their work by themselves, on the host: a device that waits for another process hangs if that one dies.
///
/// The memory stays mapped if the other process ends. If that process frees it first, a GPU's driver makes no
/// promise about the bytes. Keeps its device open. Move-only.
class PeerMemory {
 public:
  /// Maps the memory. May block the host for milliseconds. Throws Unsupported if this device cannot reach it:
  /// no link between the devices, a container without the other GPU, or memory of this very process. Throws
  /// DeviceError, also if the other process has ended or has freed the memory.
  PeerMemory(Device device, const PeerMemoryHandle& handle);
  /// Waits for the work queued on the device, and unmaps the memory.
  ~PeerMemory();
  PeerMemory(PeerMemory&& other) noexcept;
  PeerMemory& operator=(PeerMemory&& other) noexcept;

  [[nodiscard]] const std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  Device device_;
  void* mapped_ = nullptr;  ///< the begin of the allocation
  const std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace penstock
