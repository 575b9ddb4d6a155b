#pragma once

#include <penstock/device/device.hpp>

#include <atomic>
#include <cstdint>

namespace penstock::testing {

/// Holds a stream's later work back until `open`. Its destructor opens it and waits for the stream, so that
/// nothing hangs.
class Gate {
 public:
  /// The stream outlives the gate.
  Gate(const Device& device, const Stream& stream)
      : device_(device),
        stream_(stream),
        word_(static_cast<std::uint32_t*>(device_.allocate_host(sizeof(std::uint32_t)))) {
    std::atomic_ref(*word_).store(0);
    stream_.wait_value(word_, 1);
  }
  ~Gate() {
    open();
    try {
      stream_.synchronize();
    } catch (...) {
    }
    device_.deallocate_host(word_);
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void open() { std::atomic_ref(*word_).store(1); }
  /// Other streams may wait for it: it becomes 1 when the gate opens.
  [[nodiscard]] std::uint32_t* word() const { return word_; }

 private:
  Device device_;
  const Stream& stream_;
  std::uint32_t* word_;
};

/// A stream behind a gate of its own.
class GatedStream {
 public:
  explicit GatedStream(const Device& device) : stream_(device.create_stream()), gate_(device, stream_) {}

  void open() { gate_.open(); }
  [[nodiscard]] const Stream& stream() const { return stream_; }
  [[nodiscard]] std::uint32_t* word() const { return gate_.word(); }

 private:
  Stream stream_;
  Gate gate_;
};

}  // namespace penstock::testing
