#pragma once

#include "doctor/timeline/timeline.hpp"

#include <cstddef>
#include <vector>

namespace penstock {

/// True if it begins within the window.
[[nodiscard]] constexpr bool begins_in(TimeSpan span, TimeSpan window) noexcept {
  return span.begin >= window.begin && span.begin < window.end;
}

/// Spans in order, none empty, none touching the next. The functions below take and give such lists.
using SpanList = std::vector<TimeSpan>;

/// Adds a span that begins no earlier than those before it.
void append_span(SpanList& list, TimeSpan span);
/// The spans, which may be in any order and overlap, as a list.
[[nodiscard]] SpanList span_list(std::vector<TimeSpan> spans);
/// What is in one of the lists, or in both.
[[nodiscard]] SpanList merge(SpanList a, const SpanList& b);
[[nodiscard]] TraceTime total_length(const SpanList& list) noexcept;
/// The parts of `a` that are in `b`, and those that are not.
[[nodiscard]] SpanList intersect(const SpanList& a, const SpanList& b);
[[nodiscard]] SpanList subtract(const SpanList& a, const SpanList& b);
/// The length of what is in both, without making a list of it.
[[nodiscard]] TraceTime overlap(const SpanList& a, const SpanList& b) noexcept;

/// A list that tells quickly how much of a span it covers.
class SpanIndex {
 public:
  explicit SpanIndex(SpanList spans);
  [[nodiscard]] const SpanList& spans() const noexcept { return spans_; }
  [[nodiscard]] TraceTime covered(TimeSpan span) const noexcept;
  /// The end of the last span that begins before `time`, and the beginning of the first that ends after it.
  /// `fallback` if there is none.
  [[nodiscard]] TraceTime end_before(TraceTime time, TraceTime fallback) const noexcept;
  [[nodiscard]] TraceTime begin_after(TraceTime time, TraceTime fallback) const noexcept;

 private:
  [[nodiscard]] TraceTime covered_until(TraceTime time) const noexcept;

  SpanList spans_;
  std::vector<TraceTime> before_;  ///< length of all spans before each
};

}  // namespace penstock
