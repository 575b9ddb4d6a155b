#include "doctor/read/trace_looks.hpp"

#include "doctor/timeline/quiet_times.hpp"
#include "doctor/timeline/time_spans.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

namespace {

constexpr TraceTime kLook = 100'000;
constexpr TraceTime kMostLooks = 1000;  // in one time without calls

/// The innermost frame at ascending times.
class FramesOfThread {
 public:
  explicit FramesOfThread(std::span<const TimelineHostSpan> spans) : spans_(spans) {}

  /// Null: no frame is known.
  const TimelineHostSpan* at(TraceTime time) {
    for (; !spans_.empty() && spans_.front().time.begin <= time; spans_ = spans_.subspan(1)) {
      if (spans_.front().kind == HostSpanKind::frame) open_.push_back(&spans_.front());
    }
    while (!open_.empty() && open_.back()->time.end <= time) open_.pop_back();
    return open_.empty() ? nullptr : open_.back();
  }

 private:
  std::span<const TimelineHostSpan> spans_;
  std::vector<const TimelineHostSpan*> open_;
};

void look_at_thread(Timeline& timeline, std::uint16_t thread) {
  const auto spans = of_thread(timeline.host, thread);
  if (spans.empty()) return;
  TimeSpan all = spans.front().time;
  for (const TimelineHostSpan& span : spans) all.end = std::max(all.end, span.time.end);
  std::vector<TimeSpan> calls;
  for (const TimelineCall& call : of_thread(timeline.calls, thread)) calls.push_back(call.time);
  FramesOfThread frames(spans);
  for (const TimeSpan& quiet : subtract({all}, span_list(std::move(calls)))) {
    const TraceTime length = quiet.end - quiet.begin;
    if (length < kQuiet) continue;
    const TraceTime stride = std::max(kLook, length / kMostLooks);
    for (TraceTime time = quiet.begin + stride / 2; time < quiet.end; time += stride) {
      const TimelineHostSpan* const frame = frames.at(time);
      if (frame != nullptr) timeline.looks.push_back({time, frame->name, thread});
    }
  }
}

}  // namespace

void look_at_stacks(Timeline& timeline) {
  timeline.has_looks = timeline.has_frames;
  for (auto call = timeline.calls.begin(); call != timeline.calls.end();) {
    const std::uint16_t thread = call->thread;
    look_at_thread(timeline, thread);
    call = std::partition_point(call, timeline.calls.end(),
                                [thread](const TimelineCall& other) { return other.thread <= thread; });
  }
}

}  // namespace penstock
