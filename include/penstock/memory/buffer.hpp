#pragma once

#include <penstock/device/device.hpp>
#include <penstock/device/memory_kind.hpp>

#include <cstddef>
#include <memory>
#include <span>

namespace penstock {

class PoolState;

/// Owns a range of a pool's memory. Move-only. Its kind never changes. Destroying it gives the range back for
/// reuse at once. If work on it may not be done yet, use release_after instead. One thread at a time;
/// different threads may use and release different buffers.
class Buffer {
 public:
  Buffer() noexcept = default;
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }
  [[nodiscard]] bool empty() const noexcept { return bytes_ == 0; }
  [[nodiscard]] MemoryKind kind() const noexcept { return kind_; }
  /// The range as bytes. The host reaches them only if the kind is a host kind.
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, bytes_}; }

  /// Gives the range back once the work enqueued on `stream` so far is done, without blocking the host. The
  /// buffer is empty afterwards. Throws DeviceError if the release cannot be marked; the host has then waited
  /// for the stream. If that failed too, the range is never used again nor given to upstream.
  void release_after(const Stream& stream);
  /// Gives the range back now; the same as destroying the buffer.
  void release() noexcept;

 private:
  friend class PoolState;
  Buffer(std::shared_ptr<PoolState> pool, std::byte* data, std::size_t bytes, MemoryKind kind) noexcept;

  std::shared_ptr<PoolState> pool_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  MemoryKind kind_ = MemoryKind::pageable;
};

}  // namespace penstock
