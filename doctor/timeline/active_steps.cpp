#include "doctor/timeline/active_steps.hpp"

#include <algorithm>
#include <cstddef>

namespace penstock {

namespace {

/// Adds the steps in which one of the records begins that `counts`. The records are in the order of their
/// beginnings, and may be many more than the steps.
template <typename Iterator, typename Test>
void add_steps(const std::vector<TimeSpan>& steps, TimeSpan window, Iterator first, Iterator last,
               const Test& counts, std::vector<bool>& active) {
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const TraceTime end = i + 1 < steps.size() ? steps[i + 1].begin : window.end;
    first = std::partition_point(first, last,
                                 [&](const auto& record) { return record.time.begin < steps[i].begin; });
    const Iterator found = std::find_if(
        first, last, [&](const auto& record) { return record.time.begin >= end || counts(record); });
    if (found != last && found->time.begin < end) active[i] = true;
  }
}

}  // namespace

std::vector<bool> active_steps_of_device(const Timeline& timeline, std::uint16_t device, TimeSpan window) {
  std::vector<bool> active(timeline.steps.size());
  const auto add = [&](const auto& records) {
    add_steps(
        timeline.steps, window, records.begin(), records.end(),
        [device](const auto& record) { return record.device == device; }, active);
  };
  add(timeline.work);
  add(timeline.copies);
  return active;
}

std::vector<bool> active_steps_of_threads(const Timeline& timeline, const std::vector<bool>& threads,
                                          TimeSpan window) {
  std::vector<bool> active(timeline.steps.size());
  const auto all = [](const TimelineCall&) { return true; };
  for (auto first = timeline.calls.begin(); first != timeline.calls.end();) {
    const auto last = std::partition_point(first, timeline.calls.end(), [first](const TimelineCall& call) {
      return call.thread <= first->thread;
    });
    if (threads[first->thread]) add_steps(timeline.steps, window, first, last, all, active);
    first = last;
  }
  return active;
}

}  // namespace penstock
