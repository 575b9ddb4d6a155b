#pragma once

#include <penstock/device/device.hpp>
#include <penstock/device/memory_kind.hpp>

#include <cstddef>
#include <memory>
#include <span>

namespace penstock {

class PoolState;

/// Owns a range of a pool's memory. Move-only. Its kind never changes. Destroying it gives the range back for
/// reuse at once: the owner has seen all work on it done, or says otherwise with release_after. Not
/// thread-safe itself; different buffers may be used and released from different threads.
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
  /// The range as bytes. Only for host kinds does the host reach them.
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, bytes_}; }

  /// Gives the range back once the work enqueued on `stream` so far is done, without blocking the host. The
  /// buffer is empty afterwards. Throws DeviceError when the release cannot be marked: the host has then
  /// waited for the stream instead, and where that fails too the range is never used again, nor given to
  /// upstream.
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
