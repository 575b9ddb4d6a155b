#pragma once

#include "doctor/device_activity.hpp"

#include <penstock/doctor/timeline.hpp>

#include <span>
#include <vector>

namespace penstock {

/// A time in which no thread that launches kernels is in a call or waits for a loader.
struct QuietTime {
  TimeSpan time;
  /// Of one thread: that whose call comes next, or if that was not seen, the one that was seen most.
  std::span<const TimelineLook> looks;
};

/// Those within `window` that take 1 ms at least, and in which a thread that launches kernels was seen.
/// In the order of time. A pure function.
[[nodiscard]] std::vector<QuietTime> quiet_times(const Timeline& timeline, const HostActivity& host,
                                                 TimeSpan window);

}  // namespace penstock
