#pragma once

#include "doctor/device_view.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace penstock {

/// Calls or copies by where they were made, and when they ran.
class Places {
 public:
  void add(const CallSite& site, std::uint64_t bytes, TimeSpan time);
  /// Sets the finding's places and its evidence.
  void fill(Finding& finding, const Timeline& timeline) const;

 private:
  std::map<std::pair<std::uint32_t, std::uint32_t>, FindingPlace> places_;  ///< by frame and operator
  std::vector<TimeSpan> times_;
};

/// The number of steps in which one of these times lies.
[[nodiscard]] std::size_t steps_with(const DeviceView& view, const std::vector<TraceTime>& times);

/// True if what happened at these times did so in every second step at least; without steps, three times.
/// What comes often in few steps is not regular.
[[nodiscard]] bool is_regular(const DeviceView& view, const std::vector<TraceTime>& times);
[[nodiscard]] bool is_regular(const DeviceView& view, const std::vector<ViewedCopy>& copies);

[[nodiscard]] TraceTime uncovered(const SpanList& list, const SpanIndex& by);

/// The time in which the device idles because of a wait of the host: from the end of its work, or from the
/// wait's beginning if that is later, until it works again. Empty if it works when the wait ends.
[[nodiscard]] TimeSpan gap_after(const DeviceView& view, TimeSpan wait);

/// True if most of the copies are on streams on which kernels run too.
[[nodiscard]] bool shares_stream(const DeviceView& view, const std::vector<ViewedCopy>& copies);

/// The conversion that a copy's operator made before it copied `bytes`; null if it made none.
[[nodiscard]] const TimelineWidening* widening_around(const DeviceView& view, const KnownCall& made,
                                                      std::uint64_t bytes);

/// The step that is on at a time, counted from 0.
[[nodiscard]] std::size_t step_at(const DeviceView& view, TraceTime time);

}  // namespace penstock
