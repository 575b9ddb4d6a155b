#pragma once

#include <penstock/device/device.hpp>

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace penstock::testing {

/// Copies from one place to two others, side by side, all the time. Whoever else uses the wire waits for one
/// or two copies.
class Traffic {
 public:
  Traffic(const Device& device, std::byte* to, const std::byte* from, std::size_t bytes,
          CopyDirection direction) {
    for (int i = 0; i < 2; ++i) {
      threads_.emplace_back([=, this, stream = device.create_stream()] {
        std::byte* const own = to + static_cast<std::size_t>(i) * bytes;
        while (!over_) {
          for (int each = 0; each < 8; ++each) stream.copy(own, from, bytes, direction);
          stream.synchronize();
        }
      });
    }
  }
  ~Traffic() {
    over_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  Traffic(const Traffic&) = delete;
  Traffic& operator=(const Traffic&) = delete;

 private:
  std::atomic<bool> over_{false};
  std::vector<std::thread> threads_;
};

}  // namespace penstock::testing
