#include "doctor/rules/stream_order.hpp"

#include <cstddef>
#include <limits>
#include <tuple>
#include <unordered_map>

namespace penstock {

namespace {

constexpr TraceTime kNever = std::numeric_limits<TraceTime>::min();

/// A copy whose stream has begun nothing since it ended.
struct WaitingCopy {
  TraceTime end = 0;
  TraceTime ready = 0;
  std::size_t index = 0;
};

/// A stream up to what began on it last.
struct StreamState {
  TraceTime begin = kNever;
  TraceTime end = kNever;
  TraceTime end_before = kNever;  ///< of the last that began earlier than that
  std::vector<WaitingCopy> waiting;
};

bool is_before(const TimeSpan& a, const TimeSpan& b) {
  return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
}

}  // namespace

std::vector<std::optional<TraceTime>> ready_before_kernels(const Timeline& timeline, std::uint16_t device,
                                                           const std::vector<ViewedCopy>& copies) {
  std::vector<std::optional<TraceTime>> ready(copies.size());
  std::unordered_map<std::uint32_t, StreamState> streams;
  const auto begin_on = [&](std::uint32_t stream, const TimeSpan& time, bool is_kernel) -> StreamState& {
    StreamState& state = streams[stream];
    std::erase_if(state.waiting, [&](const WaitingCopy& copy) {
      if (copy.end > time.begin) return false;
      if (is_kernel) ready[copy.index] = copy.ready;
      return true;
    });
    if (time.begin > state.begin) state.end_before = state.end;
    state.begin = time.begin;
    state.end = time.end;
    return state;
  };
  auto work = timeline.work.begin();
  const auto begin_work_until = [&](const TimeSpan* time) {
    for (; work != timeline.work.end() && (time == nullptr || is_before(work->time, *time)); ++work) {
      if (work->device == device) begin_on(work->stream, work->time, true);
    }
  };
  std::size_t next = 0;
  for (const TimelineCopy& copy : timeline.copies) {
    if (copy.device != device) continue;
    begin_work_until(&copy.time);
    StreamState& state = begin_on(copy.stream, copy.time, false);
    if (next == copies.size() || copies[next].copy != &copy) continue;
    // One that takes no time is itself what comes next.
    if (copy.time.begin < copy.time.end) state.waiting.push_back({copy.time.end, state.end_before, next});
    ++next;
  }
  begin_work_until(nullptr);
  return ready;
}

}  // namespace penstock
