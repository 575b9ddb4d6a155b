#pragma once

#include "doctor/rules/device_view.hpp"
#include "doctor/rules/findings.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace penstock {

/// Calls or copies by where they were made.
class Places {
 public:
  void add(const CallSite& site, std::uint64_t bytes, TimeSpan time);
  /// Of a wait for the device, which idles so long after it. The wait holds it up by that, but not by more
  /// than its own length.
  void add_wait(const CallSite& site, std::uint64_t bytes, TimeSpan time, TraceTime idle);
  void add(const CallSite& site, double seconds);
  /// Sets the finding's places. Stacks that share a line and an operator are one place.
  void fill(Finding& finding, const Timeline& timeline) const;

 private:
  using Key = std::pair<std::uint32_t, std::uint32_t>;  ///< frame and operator

  struct Known {
    FindingPlace place;
    TraceTime held = 0;  ///< by which waits hold the device up
  };

  std::map<Key, Known> places_;
};

/// True if there are half as many times as steps from `first` on, and half of the active ones among these
/// hold one, but two at least. So what comes often in one step is not regular.
[[nodiscard]] bool in_half_of_steps(const DeviceView& view, const std::vector<bool>& active,
                                    std::size_t first, const std::vector<TraceTime>& times);

/// True if what happened at these times did so in every second step; without steps, three times. Steps in
/// which the host does nothing do not count for times of the host, nor those of the device for its copies.
[[nodiscard]] bool is_regular(const DeviceView& view, const std::vector<TraceTime>& times);
[[nodiscard]] bool is_regular(const DeviceView& view, const std::vector<ViewedCopy>& copies);

[[nodiscard]] TraceTime uncovered(const SpanList& list, const SpanIndex& by);

/// The time in which the device idles because of a wait of the host: from the end of its work, or from the
/// wait's beginning if that is later, until it works again. Empty if it works when the wait ends.
[[nodiscard]] TimeSpan gap_after(const DeviceView& view, TimeSpan wait);

/// The time in which the device idles, other than for a loader or while CUDA starts. A host that waits less
/// launches ahead, and may hide as much of it as it waits less.
[[nodiscard]] TraceTime idle_in(const DeviceView& view, TimeSpan window);
/// The same, of the whole window, in seconds of a step.
[[nodiscard]] double idle_seconds(const DeviceView& view);

/// True if most of the copies are on streams on which kernels run too.
[[nodiscard]] bool share_stream(const DeviceView& view, const std::vector<ViewedCopy>& copies);

/// True if most of the copies are on a stream that waits for one on which kernels run, only because one of
/// the two is the default stream. False if it is not known of what kind they are.
[[nodiscard]] bool wait_for_default_stream(const DeviceView& view, const std::vector<ViewedCopy>& copies);

/// The conversion that a copy's operator made before it copied `bytes`; null if it made none.
[[nodiscard]] const TimelineWidening* widening_around(const DeviceView& view, const KnownCall& made,
                                                      std::uint64_t bytes);

/// The first of the steps after those in which a program still gets ready.
[[nodiscard]] std::size_t first_steady_step(const DeviceView& view);

/// The step that is on at a time, counted from 0.
[[nodiscard]] std::size_t step_at(const DeviceView& view, TraceTime time);

}  // namespace penstock
