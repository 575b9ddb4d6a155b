#include "doctor/read/seen_waits.hpp"

#include "doctor/read/recording_format.hpp"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace penstock {

namespace {

constexpr TraceTime kUnseen = 50'000'000;  // longest time in which a thread may wait without a look at it

/// From the end of the thread's last call before `time` to the beginning of its next one.
TimeSpan between_calls(const Timeline& timeline, std::uint16_t thread, TraceTime time) {
  using Limits = std::numeric_limits<TraceTime>;
  const auto& calls = timeline.calls;
  const auto next = std::ranges::partition_point(calls, [&](const TimelineCall& call) {
    return std::pair(call.thread, call.time.begin) <= std::pair(thread, time);
  });
  TimeSpan between{Limits::min(), Limits::max()};
  if (next != calls.end() && next->thread == thread) between.end = next->time.begin;
  if (next != calls.begin() && std::prev(next)->thread == thread) between.begin = std::prev(next)->time.end;
  return between;
}

bool is_seen_elsewhere(const Timeline& timeline, std::uint16_t thread, TimeSpan time) {
  const auto look = std::ranges::partition_point(timeline.looks, [&](const TimelineLook& other) {
    return std::pair(other.thread, other.time) < std::pair(thread, time.begin);
  });
  return look != timeline.looks.end() && look->thread == thread && look->time <= time.end;
}

struct JoinedWait {
  SeenWait wait;
  TimeSpan free;  // of calls, and of other waits
};

bool are_one(const JoinedWait& a, const JoinedWait& b) {
  return a.wait.thread == b.wait.thread && a.wait.frame == b.wait.frame && a.wait.loader == b.wait.loader &&
         a.free.begin == b.free.begin && b.wait.time.begin - a.wait.time.end <= kUnseen;
}

/// Up to the calls around it, on each side on which the thread was not seen elsewhere.
void widen(JoinedWait& joined, const Timeline& timeline) {
  SeenWait& wait = joined.wait;
  const TimeSpan before{std::max(joined.free.begin, wait.time.begin - kUnseen), wait.time.begin};
  const TimeSpan after{wait.time.end, std::min(joined.free.end, wait.time.end + kUnseen)};
  if (!is_seen_elsewhere(timeline, wait.thread, before)) wait.time.begin = before.begin;
  if (!is_seen_elsewhere(timeline, wait.thread, after)) wait.time.end = after.end;
}

/// Waits of one thread for different loaders, or at different lines.
void keep_apart(std::vector<JoinedWait>& joined) {
  for (std::size_t i = 1; i < joined.size(); ++i) {
    JoinedWait& a = joined[i - 1];
    JoinedWait& b = joined[i];
    if (a.wait.thread != b.wait.thread) continue;
    a.free.end = std::min(a.free.end, b.wait.time.begin);
    b.free.begin = std::max(b.free.begin, a.free.end);
  }
}

}  // namespace

std::vector<SeenWait> join_waits(std::vector<SeenWait> seen, const Timeline& timeline) {
  std::ranges::sort(seen, {}, [](const SeenWait& wait) { return std::tuple(wait.thread, wait.time.begin); });
  std::vector<JoinedWait> joined;
  for (SeenWait& wait : seen) {
    const TraceTime middle = wait.time.begin + (wait.time.end - wait.time.begin) / 2;
    const TimeSpan free = between_calls(timeline, wait.thread, middle);
    wait.time = {std::max(wait.time.begin, free.begin), std::min(wait.time.end, free.end)};
    if (wait.time.begin >= wait.time.end) continue;
    JoinedWait* const last = joined.empty() ? nullptr : &joined.back();
    if (last != nullptr && are_one(*last, {wait, free})) {
      last->wait.time.end = wait.time.end;
      continue;
    }
    joined.push_back({wait, free});
  }
  keep_apart(joined);
  std::vector<SeenWait> waits;
  waits.reserve(joined.size());
  for (JoinedWait& one : joined) {
    if (timeline.has_looks && one.wait.loader != recording::kCompiledLoader) widen(one, timeline);
    waits.push_back(one.wait);
  }
  return waits;
}

}  // namespace penstock
