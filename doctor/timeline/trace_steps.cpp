#include "doctor/timeline/trace_steps.hpp"

#include "doctor/timeline/device_activity.hpp"
#include "doctor/timeline/quiet_times.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace penstock {

namespace {

constexpr std::size_t kLeastSteps = 5;
constexpr std::size_t kMostLoaders = 4;  // of a step
constexpr TraceTime kOutside = 2;        // as long as the steps: a loop of steps is most of what one traces

bool is_called_between(const Timeline& timeline, const std::vector<std::uint16_t>& threads, TimeSpan time) {
  return std::ranges::any_of(threads, [&](std::uint16_t thread) {
    const auto calls = of_thread(timeline.calls, thread);
    const auto first = std::ranges::partition_point(
        calls, [time](const TimelineCall& call) { return call.time.begin < time.begin; });
    return first != calls.end() && first->time.begin < time.end;
  });
}

std::size_t count_within(const auto& records, TimeSpan window, const auto& counts) {
  return static_cast<std::size_t>(std::ranges::count_if(
      records, [&](const auto& record) { return begins_in(record.time, window) && counts(record); }));
}

}  // namespace

std::vector<TimeSpan> steps_of_draws(const Timeline& timeline) {
  if (!is_trace(timeline)) return {};
  const std::vector<bool> launches = threads_that_launch(timeline);
  std::vector<std::uint16_t> threads;
  for (std::size_t i = 0; i < launches.size(); ++i) {
    if (launches[i]) threads.push_back(static_cast<std::uint16_t>(i));
  }
  std::vector<TimeSpan> draws;
  for (const TimelineHostSpan& span : timeline.host) {
    if (span.kind == HostSpanKind::loader_wait && launches[span.thread]) draws.push_back(span.time);
  }
  std::ranges::sort(draws, {}, &TimeSpan::begin);
  std::vector<TimeSpan> steps;
  TraceTime last = 0;  // end of the last draw
  for (const TimeSpan& draw : draws) {
    if (steps.empty() || is_called_between(timeline, threads, {last, draw.begin})) {
      if (!steps.empty()) steps.back().end = draw.begin;
      steps.push_back(draw);
    }
    last = draw.end;
  }
  if (!steps.empty()) steps.pop_back();  // nobody draws behind it
  if (steps.size() < kLeastSteps) steps.clear();
  return steps;
}

bool are_epochs(const Timeline& timeline, const std::vector<TimeSpan>& steps,
                const std::vector<TimeSpan>& draws) {
  if (!is_trace(timeline) || steps.empty()) return false;
  const TimeSpan window{steps.front().begin, steps.back().end};
  const auto within =
      std::ranges::count_if(draws, [window](const TimeSpan& draw) { return begins_in(draw, window); });
  return static_cast<std::size_t>(within) > kMostLoaders * steps.size();
}

bool may_be_parts(const Timeline& timeline, const std::vector<TimeSpan>& steps) {
  if (!is_trace(timeline) || steps.empty()) return false;
  const TimeSpan window{steps.front().begin, steps.back().end};
  const TimeSpan all = whole_window(timeline);
  const TraceTime within = window.end - window.begin;
  if (all.end - all.begin - within <= kOutside * within) return false;
  const auto any = [](const auto&) { return true; };
  const std::size_t marks =
      count_within(timeline.copies, window,
                   [](const TimelineCopy& copy) { return copy.direction != CopyDirection::d2d; }) +
      count_within(timeline.calls, window,
                   [](const TimelineCall& call) { return is_synchronization(call.kind); }) +
      count_within(timeline.ranges, window, any);
  return count_within(timeline.work, window, any) == 0 || 2 * marks < steps.size();
}

}  // namespace penstock
