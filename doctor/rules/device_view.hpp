#pragma once

#include "doctor/rules/findings.hpp"
#include "doctor/timeline/call_sites.hpp"
#include "doctor/timeline/device_account.hpp"
#include "doctor/timeline/device_activity.hpp"
#include "doctor/timeline/quiet_times.hpp"
#include "doctor/timeline/time_spans.hpp"
#include "doctor/timeline/timeline.hpp"

#include <penstock/transfer/link_profile.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace penstock {

inline constexpr std::size_t kSteadySteps = 4;  ///< fewer steps have no steady state
/// Up to here the driver takes pageable memory without a wait, and a copy costs as much whatever its size.
inline constexpr std::uint64_t kSmallBytes = std::uint64_t{64} << 10;

/// A copy between host and device within the window, and the calls that belong to it.
struct ViewedCopy {
  const TimelineCopy* copy = nullptr;
  const KnownCall* made = nullptr;    ///< null: not recorded, as of a copy in a graph
  const KnownCall* waited = nullptr;  ///< the synchronization that belongs to it, if one does
};

/// What the views of a timeline's devices share. It stays where it is: views and copies refer to it.
struct TimelineView {
  explicit TimelineView(const Timeline& viewed);
  TimelineView(const TimelineView&) = delete;
  TimelineView& operator=(const TimelineView&) = delete;

  const Timeline& timeline;
  TimeSpan window;  ///< what accounts and findings are of
  /// Of all threads. If the host runs ahead, those of the window's copies come before it.
  std::vector<KnownCall> calls;
  std::vector<ViewedCopy> copies;               ///< of all devices, in the order of their beginnings
  std::set<const KnownCall*> waits_for_inputs;  ///< synchronizations that belong to large copies to a device
};

/// What the rules look at: one device's part of a timeline.
struct DeviceView {
  const TimelineView& shared;
  const Timeline& timeline;
  HostActivity host;
  DeviceAccount account;
  SpanIndex kernels;
  SpanIndex busy;                        ///< kernels and copies
  SpanIndex waits;                       ///< for a DataLoader
  SpanIndex explained;                   ///< these, and the start of CUDA: no part of what others gain
  std::vector<QuietTime> own_work;       ///< of the program
  std::vector<bool> host_steps;          ///< by step: threads that launch kernels make calls in it
  std::vector<bool> device_steps;        ///< by step: the device's kernels or copies begin in it
  std::vector<ViewedCopy> copies;        ///< in the order of their beginnings
  const LinkProfile* profile = nullptr;  ///< of the recorded machine; null: not known

  [[nodiscard]] const TimelineCall& call(const KnownCall& known) const { return timeline.calls[known.call]; }
  /// True if its thread is one of those that decide when the device works (device_activity.hpp).
  [[nodiscard]] bool is_of_launching_thread(const KnownCall& known) const {
    return host.launches[call(known).thread];
  }
  [[nodiscard]] bool is_within(TraceTime time) const {
    return time >= account.window.begin && time < account.window.end;
  }
  [[nodiscard]] double steps() const { return static_cast<double>(std::max<std::size_t>(account.steps, 1)); }
};

/// They outlive the view.
[[nodiscard]] DeviceView view_device(const TimelineView& of, std::uint16_t device,
                                     const LinkProfile* profile);

}  // namespace penstock
