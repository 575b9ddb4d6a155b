#pragma once

#include <penstock/device/device.hpp>
#include <penstock/memory/pool.hpp>

#include <atomic>
#include <cstdint>

namespace penstock::testing {

/// A stream whose later work is held back until `open`. Opens itself at the end, so that nothing can hang on
/// it.
class GatedStream {
 public:
  explicit GatedStream(const Device& device)
      : device_(device),
        pool_(make_pinned_pool(device, {.budget_bytes = 1 << 20, .segment_bytes = 4096})),
        word_(pool_.allocate(4)),
        stream_(device.create_stream()) {
    std::atomic_ref(*word()).store(0);
    device_.backend().stream_wait_value(stream_.native(), word(), 1);
  }
  ~GatedStream() {
    open();
    try {
      stream_.synchronize();
    } catch (...) {
    }
  }
  GatedStream(const GatedStream&) = delete;
  GatedStream& operator=(const GatedStream&) = delete;

  void open() { std::atomic_ref(*word()).store(1); }
  [[nodiscard]] const Stream& stream() const { return stream_; }
  /// 1 once it is open, for other streams to wait for.
  [[nodiscard]] std::uint32_t* word() const { return reinterpret_cast<std::uint32_t*>(word_.data()); }

 private:
  Device device_;
  Pool pool_;
  Buffer word_;
  Stream stream_;
};

}  // namespace penstock::testing
