#include "doctor/rules/stream_order.hpp"

#include <cstddef>
#include <functional>
#include <limits>
#include <queue>
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
  friend bool operator>(const WaitingCopy& a, const WaitingCopy& b) { return a.end > b.end; }
};

/// A stream up to what began on it last.
struct StreamState {
  TraceTime begin = kNever;
  TraceTime end = kNever;
  TraceTime end_before = kNever;  ///< of the last that began earlier than that
  std::priority_queue<WaitingCopy, std::vector<WaitingCopy>, std::greater<>> waiting;
};

bool is_before(const TimeSpan& a, const TimeSpan& b) {
  return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
}

/// Goes through what runs on the streams of a device, in order.
class StreamSweep {
 public:
  explicit StreamSweep(std::size_t copies) : ready_(copies) {}

  void add_kernel(std::uint32_t stream, const TimeSpan& time) {
    StreamState& state = begin_on(stream, time);
    for (; ends_before(state, time.begin); state.waiting.pop())
      ready_[state.waiting.top().index] = state.waiting.top().ready;
  }
  void add_copy(std::uint32_t stream, const TimeSpan& time, std::optional<std::size_t> index) {
    StreamState& state = begin_on(stream, time);
    if (index) state.waiting.push({time.end, state.end_before, *index});
    while (ends_before(state, time.begin)) state.waiting.pop();
  }
  [[nodiscard]] std::vector<std::optional<TraceTime>> take() { return std::move(ready_); }

 private:
  StreamState& begin_on(std::uint32_t stream, const TimeSpan& time) {
    StreamState& state = streams_[stream];
    if (time.begin > state.begin) state.end_before = state.end;
    state.begin = time.begin;
    state.end = time.end;
    return state;
  }
  static bool ends_before(const StreamState& state, TraceTime time) {
    return !state.waiting.empty() && state.waiting.top().end <= time;
  }

  std::vector<std::optional<TraceTime>> ready_;
  std::unordered_map<std::uint32_t, StreamState> streams_;
};

}  // namespace

std::vector<std::optional<TraceTime>> ready_before_kernels(const Timeline& timeline, std::uint16_t device,
                                                           const std::vector<ViewedCopy>& copies) {
  StreamSweep sweep(copies.size());
  auto work = timeline.work.begin();
  const auto add_work_until = [&](const TimeSpan* time) {
    for (; work != timeline.work.end() && (time == nullptr || is_before(work->time, *time)); ++work) {
      if (work->device == device) sweep.add_kernel(work->stream, work->time);
    }
  };
  std::size_t next = 0;
  for (const TimelineCopy& copy : timeline.copies) {
    if (copy.device != device) continue;
    add_work_until(&copy.time);
    const bool is_asked = next < copies.size() && copies[next].copy == &copy;
    sweep.add_copy(copy.stream, copy.time, is_asked ? std::optional(next) : std::nullopt);
    if (is_asked) ++next;
  }
  add_work_until(nullptr);
  return sweep.take();
}

}  // namespace penstock
