#include "doctor/timeline/timeline.hpp"

#include <algorithm>
#include <cstddef>
#include <tuple>

namespace penstock {

// A recording may have ten million of each.
static_assert(sizeof(TimelineCopy) == 48 && sizeof(TimelineCall) == 24);

namespace {

/// Sorts what usually is in order already.
template <typename Record, typename Key>
void put_in_order(std::vector<Record>& records, const Key& key) {
  const auto before = [&](const Record& a, const Record& b) { return key(a) < key(b); };
  if (!std::is_sorted(records.begin(), records.end(), before))
    std::sort(records.begin(), records.end(), before);
}

}  // namespace

void sort_timeline(Timeline& timeline) {
  const auto by_begin = [](const auto& record) { return std::tuple(record.time.begin, record.time.end); };
  const auto by_thread = [](const auto& record) {
    return std::tuple(record.thread, record.time.begin, -record.time.end);
  };
  put_in_order(timeline.copies, by_begin);
  put_in_order(timeline.work, by_begin);
  put_in_order(timeline.calls, by_thread);
  put_in_order(timeline.host, [&](const TimelineHostSpan& span) {
    return std::tuple_cat(by_thread(span), std::tuple(span.kind));
  });
  put_in_order(timeline.looks, [](const TimelineLook& look) { return std::tuple(look.thread, look.time); });
  put_in_order(timeline.widenings, [](const TimelineWidening& w) { return std::tuple(w.thread, w.begin); });
  put_in_order(timeline.steps, [](const TimeSpan& step) { return std::tuple(step.begin, step.end); });
}

}  // namespace penstock
