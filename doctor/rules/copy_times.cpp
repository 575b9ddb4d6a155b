#include "doctor/rules/copy_times.hpp"

#include "doctor/rules/rule_tools.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace penstock {

namespace {

/// The spans of the copies, which `span_of` gives, in a list.
template <typename SpanOf>
SpanList spans_of(const std::vector<ViewedCopy>& copies, const SpanOf& span_of) {
  std::vector<TimeSpan> spans;
  std::ranges::transform(copies, std::back_inserter(spans), span_of);
  return span_list(std::move(spans));
}

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

double unexplained(const DeviceView& view, const SpanList& gaps) {
  SpanList own_work;
  for (const QuietTime& quiet : view.own_work) append_span(own_work, quiet.time);
  return view.account.per_step(uncovered(subtract(gaps, own_work), view.explained));
}

SpanList gaps_before(const DeviceView& view, const std::vector<ViewedCopy>& copies) {
  return spans_of(copies, [&view](const ViewedCopy& viewed) { return gap_before(view, viewed); });
}

}  // namespace

double exposed_seconds(const DeviceView& view, const std::vector<ViewedCopy>& copies) {
  const SpanList times = spans_of(copies, [](const ViewedCopy& viewed) { return viewed.copy->time; });
  return view.account.per_step(uncovered(times, view.kernels));
}

double idle_before(const DeviceView& view, const std::vector<ViewedCopy>& copies) {
  return unexplained(view, gaps_before(view, copies));
}

double idle_around(const DeviceView& view, const std::vector<ViewedCopy>& copies) {
  return unexplained(
      view, merge(gaps_before(view, copies),
                  spans_of(copies, [&view](const ViewedCopy& viewed) { return gap_behind(view, viewed); })));
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
  const auto all = spans_of(copies, [&view](const ViewedCopy& viewed) { return wait_for(view, viewed); });
  const auto before = spans_of(copies, [&view](const ViewedCopy& viewed) {
    const TimeSpan wait = wait_for(view, viewed);
    return TimeSpan{wait.begin, std::clamp(viewed.copy->time.begin, wait.begin, wait.end)};
  });
  return {view.account.per_step(total_length(all)), view.account.per_step(total_length(before))};
}

double taken_seconds(const DeviceView& view, const std::vector<ViewedCopy>& copies) {
  const auto waits = spans_of(copies, [&view](const ViewedCopy& viewed) { return wait_for(view, viewed); });
  const auto times =
      spans_of(copies, [&view](const ViewedCopy& viewed) { return part_in_window(view, viewed.copy->time); });
  return view.account.per_step(total_length(merge(waits, times)));
}

double most_without_waits(const DeviceView& view, double exposed, double waited) {
  return std::min(exposed + idle_seconds(view), waited);
}

}  // namespace penstock
