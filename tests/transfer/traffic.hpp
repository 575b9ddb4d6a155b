#pragma once

#include <penstock/device/device.hpp>

#include <atomic>
#include <cstddef>
#include <deque>
#include <thread>
#include <vector>

namespace penstock::testing {

/// Copies from one place to three others, side by side, all the time: the next copies are queued before one
/// is done. Whoever else uses the wire waits for some of them.
class Traffic {
 public:
  Traffic(const Device& device, std::byte* to, const std::byte* from, std::size_t bytes,
          CopyDirection direction) {
    for (int i = 0; i < 3; ++i) {
      threads_.emplace_back([=, this, stream = device.create_stream()] {
        std::byte* const own = to + static_cast<std::size_t>(i) * bytes;
        std::deque<Event> queued;
        while (!over_) {
          stream.copy(own, from, bytes, direction);
          queued.push_back(device.create_event());
          queued.back().record(stream);
          if (queued.size() < kQueued) continue;
          queued.front().synchronize();
          queued.pop_front();
        }
        stream.synchronize();
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
  static constexpr std::size_t kQueued = 4;

  std::atomic<bool> over_{false};
  std::vector<std::thread> threads_;
};

}  // namespace penstock::testing
