#include "doctor/timeline/quiet_times.hpp"

#include <algorithm>
#include <limits>

namespace penstock {

namespace {

/// A thread that launches kernels.
struct LaunchingThread {
  std::span<const TimelineCall> calls;
  std::span<const TimelineLook> looks;

  /// When it calls next.
  [[nodiscard]] TraceTime call_after(TraceTime time) const {
    const auto begin = [](const TimelineCall& call) { return call.time.begin; };
    const auto next = std::ranges::lower_bound(calls, time, {}, begin);
    return next == calls.end() ? std::numeric_limits<TraceTime>::max() : next->time.begin;
  }
  [[nodiscard]] std::span<const TimelineLook> looks_in(TimeSpan span) const {
    return {std::ranges::lower_bound(looks, span.begin, {}, &TimelineLook::time),
            std::ranges::lower_bound(looks, span.end, {}, &TimelineLook::time)};
  }
};

std::vector<LaunchingThread> launching_threads(const Timeline& timeline, const HostActivity& host) {
  std::vector<LaunchingThread> threads;
  for (std::size_t thread = 0; thread < host.launches.size(); ++thread) {
    if (host.launches[thread])
      threads.push_back({of_thread(timeline.calls, thread), of_thread(timeline.looks, thread)});
  }
  return threads;
}

std::span<const TimelineLook> looks_in(const std::vector<LaunchingThread>& threads, TimeSpan time) {
  const auto next = std::ranges::min_element(
      threads, {}, [time](const LaunchingThread& thread) { return thread.call_after(time.end); });
  if (next == threads.end()) return {};
  if (const auto looks = next->looks_in(time); !looks.empty()) return looks;
  std::span<const TimelineLook> most;
  for (const LaunchingThread& thread : threads) {
    if (const auto looks = thread.looks_in(time); looks.size() > most.size()) most = looks;
  }
  return most;
}

}  // namespace

std::vector<QuietTime> quiet_times(const Timeline& timeline, const HostActivity& host, TimeSpan window) {
  const std::vector<LaunchingThread> threads = launching_threads(timeline, host);
  std::vector<QuietTime> times;
  for (const TimeSpan& time : subtract(subtract(subtract({window}, host.waits), host.starts), host.calls)) {
    if (time.end - time.begin < kQuiet) continue;
    if (const auto looks = looks_in(threads, time); !looks.empty()) times.push_back({time, looks});
  }
  return times;
}

}  // namespace penstock
