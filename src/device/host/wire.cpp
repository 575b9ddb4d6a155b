#include "device/host/wire.hpp"

#include "core/shared/pause.hpp"

#include <algorithm>
#include <thread>

namespace penstock {

Wire::Wire(double bytes_per_second, std::chrono::nanoseconds latency) noexcept
    : bytes_per_second_(bytes_per_second), latency_(latency) {}

Wire::Clock::time_point Wire::take_turn(std::size_t bytes) noexcept {
  Clock::duration cost = latency_;
  if (bytes_per_second_ > 0) {
    cost += std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(static_cast<double>(bytes) / bytes_per_second_));
  }
  const Clock::rep now = Clock::now().time_since_epoch().count();
  Clock::rep free_at = free_at_.load(std::memory_order_relaxed);
  Clock::rep end = 0;
  do {
    end = std::max(now, free_at) + cost.count();
  } while (!free_at_.compare_exchange_weak(free_at, end, std::memory_order_relaxed));
  return Clock::time_point(Clock::duration(end));
}

void wait_until(Wire::Clock::time_point time) noexcept {
  // A sleep may last this much longer than asked.
  constexpr std::chrono::microseconds kMargin{100};
  for (auto left = time - Wire::Clock::now(); left.count() > 0; left = time - Wire::Clock::now()) {
    if (left > kMargin) {
      std::this_thread::sleep_for(left - kMargin);
    } else {
      cpu_pause();
    }
  }
}

}  // namespace penstock
