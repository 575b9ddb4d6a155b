#pragma once

#include "doctor/timeline/device_activity.hpp"
#include "doctor/timeline/timeline.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace penstock {

/// Shorter times are the pace of a program that launches slowly.
inline constexpr TraceTime kQuiet = 1'000'000;

/// `records` are in the order of their threads.
template <typename Record>
std::span<const Record> of_thread(const std::vector<Record>& records, std::size_t thread) {
  return {std::ranges::lower_bound(records, thread, {}, &Record::thread),
          std::ranges::upper_bound(records, thread, {}, &Record::thread)};
}

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
