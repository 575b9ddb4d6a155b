#include "doctor/rules/copy_times.hpp"

#include "doctor/rules/rule_tools.hpp"

#include <algorithm>
#include <utility>

namespace penstock {

namespace {

/// Empty if the span is outside the window.
TimeSpan part_in_window(const DeviceView& view, TimeSpan span) {
  const auto [begin, end] = view.account.window;
  return {std::clamp(span.begin, begin, end), std::clamp(span.end, begin, end)};
}

/// In which the device idles until a copy begins, and after it ends.
/// A copy is to blame for no more idle time than it takes, or its call.
TraceTime longest_gap(const DeviceView& view, const ViewedCopy& viewed) {
  const TimeSpan copy = viewed.copy->time;
  const TimeSpan wait = wait_for(view, viewed);
  return std::max(copy.end - copy.begin, wait.end - wait.begin);
}
TimeSpan gap_before(const DeviceView& view, const ViewedCopy& viewed) {
  const TraceTime end = viewed.copy->time.begin;
  const TraceTime begin = view.busy.end_before(end, view.account.window.begin);
  return {std::clamp(begin, end - longest_gap(view, viewed), end), end};
}
TimeSpan gap_behind(const DeviceView& view, const ViewedCopy& viewed) {
  const TraceTime begin = viewed.copy->time.end;
  const TraceTime end = view.busy.begin_after(begin, view.account.window.end);
  return {begin, std::clamp(end, begin, begin + longest_gap(view, viewed))};
}

double unexplained(const DeviceView& view, std::vector<TimeSpan> gaps) {
  SpanList own_work;
  for (const QuietTime& quiet : view.own_work) append_span(own_work, quiet.time);
  return view.account.per_step(uncovered(subtract(span_list(std::move(gaps)), own_work), view.explained));
}

}  // namespace

double exposed_seconds(const DeviceView& view, const std::vector<ViewedCopy>& copies) {
  std::vector<TimeSpan> spans;
  spans.reserve(copies.size());
  for (const ViewedCopy& viewed : copies) spans.push_back(viewed.copy->time);
  return view.account.per_step(uncovered(span_list(std::move(spans)), view.kernels));
}

double idle_before(const DeviceView& view, const std::vector<ViewedCopy>& copies) {
  std::vector<TimeSpan> gaps;
  gaps.reserve(copies.size());
  for (const ViewedCopy& viewed : copies) gaps.push_back(gap_before(view, viewed));
  return unexplained(view, std::move(gaps));
}

double idle_around(const DeviceView& view, const std::vector<ViewedCopy>& copies) {
  std::vector<TimeSpan> gaps;
  gaps.reserve(2 * copies.size());
  for (const ViewedCopy& viewed : copies) {
    gaps.push_back(gap_before(view, viewed));
    gaps.push_back(gap_behind(view, viewed));
  }
  return unexplained(view, std::move(gaps));
}

TimeSpan wait_for(const DeviceView& view, const ViewedCopy& viewed) {
  if (viewed.made == nullptr) return {};
  const TimeSpan made = view.call(*viewed.made).time;
  if (viewed.waited == nullptr) return part_in_window(view, made);
  const TimeSpan waited = view.call(*viewed.waited).time;
  const bool is_pinned = viewed.copy->source == MemoryKind::pinned;
  return part_in_window(view, {is_pinned ? waited.begin : made.begin, waited.end});
}

WaitsForCopies waits_for(const DeviceView& view, const std::vector<ViewedCopy>& copies) {
  std::vector<TimeSpan> all;  // one call may make many copies
  std::vector<TimeSpan> before;
  for (const ViewedCopy& viewed : copies) {
    const TimeSpan wait = wait_for(view, viewed);
    all.push_back(wait);
    before.push_back({wait.begin, std::clamp(viewed.copy->time.begin, wait.begin, wait.end)});
  }
  const auto seconds = [&view](std::vector<TimeSpan>& waits) {
    return view.account.per_step(total_length(span_list(std::move(waits))));
  };
  return {seconds(all), seconds(before)};
}

double taken_seconds(const DeviceView& view, const std::vector<ViewedCopy>& copies) {
  std::vector<TimeSpan> spans;
  spans.reserve(2 * copies.size());
  for (const ViewedCopy& viewed : copies) {
    spans.push_back(part_in_window(view, viewed.copy->time));
    spans.push_back(wait_for(view, viewed));
  }
  return view.account.per_step(total_length(span_list(std::move(spans))));
}

double most_without_waits(const DeviceView& view, double exposed, double waited) {
  return std::min(exposed + idle_seconds(view), waited);
}

}  // namespace penstock
