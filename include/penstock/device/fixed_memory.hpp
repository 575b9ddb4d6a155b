#pragma once

#include <penstock/device/device.hpp>

#include <cstddef>
#include <memory>
#include <mutex>

namespace penstock {

namespace cuda {
class PrimaryContext;
}

/// Memory of a GPU whose pages may leave while its addresses stay, so that CUDA graphs and pointers into it
/// are valid again once it has pages. The bytes go with the pages. Other GPUs do not reach it. Thread-safe.
/// Once it is freed, every call does nothing.
class FixedMemory {
 public:
  /// Reserves addresses for whole pages of `bytes` at least, and takes the pages. Throws OutOfMemory and
  /// DeviceError.
  FixedMemory(int gpu, std::size_t bytes, const DeviceOptions& options = {});
  ~FixedMemory();
  FixedMemory(const FixedMemory&) = delete;
  FixedMemory& operator=(const FixedMemory&) = delete;

  [[nodiscard]] int gpu() const noexcept { return gpu_; }
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] bool is_free() const;

  /// Waits for the work on the GPU, and gives the pages back. Throws DeviceError; it has them still then.
  void drop_pages();
  /// Takes pages with unspecified bytes if it has none. Throws OutOfMemory and DeviceError; it has none then.
  void take_pages();
  /// Waits for the work on the GPU, and gives everything back. Not in a forked child.
  void free() noexcept;

 private:
  enum class State { no_pages, pages, free };
  mutable std::mutex mutex_;
  const int gpu_;
  const std::unique_ptr<const cuda::PrimaryContext> context_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  State state_ = State::no_pages;
};

}  // namespace penstock
