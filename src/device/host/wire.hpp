#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>

namespace penstock {

/// One direction of a modelled link. Copies take turns; each takes the latency plus its bytes over the rate.
class Wire {
 public:
  using Clock = std::chrono::steady_clock;

  Wire(double bytes_per_second, std::chrono::nanoseconds latency) noexcept;

  /// False if there is no modelled link, and work takes its own time.
  [[nodiscard]] bool modelled() const noexcept { return bytes_per_second_ > 0 || latency_.count() > 0; }

  /// Takes the next turn, for `bytes` that are ready to go now. Returns the time at which they will have
  /// arrived. The caller moves them meanwhile and then waits for that time with wait_until.
  [[nodiscard]] Clock::time_point take_turn(std::size_t bytes) noexcept;

 private:
  const double bytes_per_second_;
  const std::chrono::nanoseconds latency_;
  std::atomic<Clock::rep> free_at_{0};
};

/// Sleeps, and polls at the end, until `time`.
void wait_until(Wire::Clock::time_point time) noexcept;

}  // namespace penstock
