#pragma once

#include "harness.hpp"

#include <penstock/core/statistics.hpp>
#include <penstock/device/device.hpp>
#include <penstock/memory/pool.hpp>

#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace penstock::bench {

/// The times of copies of 51 KB out of pinned memory, on a stream of another thread, while this one calls
/// `work` over and over for so many seconds.
inline std::vector<double> foreign_copies(const Device& device, double seconds,
                                          const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  const auto is_over = [&] {
    return std::chrono::steady_clock::now() - begin > std::chrono::duration<double>(seconds);
  };
  std::vector<double> taken;
  std::thread other([&] {
    constexpr std::size_t kForeign = 51200;
    Pool pinned = make_pinned_pool(device, {.segment_bytes = kForeign});
    Pool memory = make_device_pool(device, {.segment_bytes = kForeign});
    const Buffer from = pinned.allocate(kForeign);
    const Buffer to = memory.allocate(kForeign);
    const Stream stream = device.create_stream();
    std::mt19937 random(1);
    for (int i = 0; !is_over(); ++i) {
      const double one = time([&] {
        stream.copy(to.data(), from.data(), kForeign, CopyDirection::h2d);
        stream.synchronize();
      });
      if (i >= 20) taken.push_back(one);
      std::this_thread::sleep_for(std::chrono::microseconds(300 + random() % 1500));
    }
  });
  while (!is_over()) work();
  other.join();
  return taken;
}

inline std::string foreign_text(const Summary& seconds) {
  return fmt::format("median {:.3f} ms, p99 {:.3f} ms", 1e3 * seconds.median, 1e3 * seconds.p99);
}

}  // namespace penstock::bench
