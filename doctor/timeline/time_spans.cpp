#include "doctor/timeline/time_spans.hpp"

#include <algorithm>
#include <utility>

namespace penstock {

void append_span(SpanList& list, TimeSpan span) {
  if (span.begin >= span.end) return;
  if (list.empty() || span.begin > list.back().end) {
    list.push_back(span);
  } else {
    list.back().end = std::max(list.back().end, span.end);
  }
}

SpanList span_list(std::vector<TimeSpan> spans) {
  std::sort(spans.begin(), spans.end(), [](TimeSpan a, TimeSpan b) { return a.begin < b.begin; });
  SpanList list;
  for (const TimeSpan& span : spans) append_span(list, span);
  return list;
}

TraceTime total_length(const SpanList& list) noexcept {
  TraceTime sum = 0;
  for (const TimeSpan& span : list) sum += span.end - span.begin;
  return sum;
}

SpanList merge(SpanList a, const SpanList& b) {
  if (b.empty()) return a;
  SpanList merged;
  for (std::size_t i = 0, j = 0; i < a.size() || j < b.size();) {
    const bool first = j == b.size() || (i < a.size() && a[i].begin <= b[j].begin);
    append_span(merged, first ? a[i++] : b[j++]);
  }
  return merged;
}

SpanList intersect(const SpanList& a, const SpanList& b) {
  SpanList both;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    append_span(both, {std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)});
    ++(a[i].end < b[j].end ? i : j);
  }
  return both;
}

SpanList subtract(const SpanList& a, const SpanList& b) {
  SpanList left;
  std::size_t j = 0;
  for (TimeSpan rest : a) {
    while (j < b.size() && b[j].end <= rest.begin) ++j;
    for (std::size_t k = j; k < b.size() && b[k].begin < rest.end; ++k) {
      append_span(left, {rest.begin, b[k].begin});
      rest.begin = std::max(rest.begin, b[k].end);
    }
    append_span(left, rest);
  }
  return left;
}

TraceTime overlap(const SpanList& a, const SpanList& b) noexcept {
  TraceTime sum = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    sum += std::max<TraceTime>(0, std::min(a[i].end, b[j].end) - std::max(a[i].begin, b[j].begin));
    ++(a[i].end < b[j].end ? i : j);
  }
  return sum;
}

SpanIndex::SpanIndex(SpanList spans) : spans_(std::move(spans)) {
  before_.reserve(spans_.size());
  TraceTime sum = 0;
  for (const TimeSpan& span : spans_) {
    before_.push_back(sum);
    sum += span.end - span.begin;
  }
}

TraceTime SpanIndex::covered_until(TraceTime time) const noexcept {
  const auto after = std::ranges::lower_bound(spans_, time, {}, &TimeSpan::begin);
  if (after == spans_.begin()) return 0;
  const auto last = after - 1;
  return before_[static_cast<std::size_t>(last - spans_.begin())] + std::min(time, last->end) - last->begin;
}

TraceTime SpanIndex::covered(TimeSpan span) const noexcept {
  return covered_until(span.end) - covered_until(span.begin);
}

TraceTime SpanIndex::end_before(TraceTime time, TraceTime fallback) const noexcept {
  const auto after = std::ranges::lower_bound(spans_, time, {}, &TimeSpan::begin);
  return after == spans_.begin() ? fallback : (after - 1)->end;
}

TraceTime SpanIndex::begin_after(TraceTime time, TraceTime fallback) const noexcept {
  const auto after = std::ranges::upper_bound(spans_, time, {}, &TimeSpan::end);
  return after == spans_.end() ? fallback : after->begin;
}

}  // namespace penstock
