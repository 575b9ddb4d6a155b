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
#include <optional>
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
  bool is_held = false;               ///< by the default stream (default_stream.hpp)
};

/// What the rules look at: one device's part of a timeline.
struct DeviceView {
  const Timeline& timeline;
  const HostActivity& host;
  const DeviceAccount& account;
  const SpanIndex& kernels;
  const SpanIndex& busy;                   ///< kernels and copies
  const SpanIndex& waits;                  ///< for a DataLoader
  const SpanIndex& explained;              ///< these, and the start of CUDA: no part of what others gain
  const std::vector<QuietTime>& own_work;  ///< of the program
  /// Of all threads. If the host runs ahead, those of the window's copies come before it.
  const std::vector<KnownCall>& calls;
  /// Synchronizations that belong to large copies to a device, whichever it is.
  const std::set<const KnownCall*>& waits_for_inputs;
  const std::vector<bool>& host_steps;  ///< by step: threads that launch kernels make calls in it
  std::vector<bool> device_steps;       ///< by step: the device's kernels or copies begin in it
  std::vector<ViewedCopy> copies;       ///< in the order of their beginnings
  double h2d_ceiling = 0;
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

/// The rules of docs/doctor.md, each a pure function. nullopt: nothing was found.
using Rule = std::optional<Finding> (*)(const DeviceView&);
std::optional<Finding> find_waiting_for_data(const DeviceView& view);
std::optional<Finding> find_host_work(const DeviceView& view);
std::optional<Finding> find_pageable_copies(const DeviceView& view);
std::optional<Finding> find_blocking_copies(const DeviceView& view);
std::optional<Finding> find_exposed_copies(const DeviceView& view);
std::optional<Finding> find_default_stream_waits(const DeviceView& view);
std::optional<Finding> find_same_data_again(const DeviceView& view);
std::optional<Finding> find_small_copies(const DeviceView& view);
std::optional<Finding> find_widened_copies(const DeviceView& view);
std::optional<Finding> find_round_trips(const DeviceView& view);
std::optional<Finding> find_contended_copies(const DeviceView& view);
std::optional<Finding> find_far_memory(const DeviceView& view);
std::optional<Finding> find_synchronizations(const DeviceView& view);
std::optional<Finding> find_pinning(const DeviceView& view);
std::optional<Finding> find_device_allocations(const DeviceView& view);

/// What other threads' waits for the device may cost. nullopt: about nothing.
std::optional<NotExamined> waits_of_other_threads(const DeviceView& view);

}  // namespace penstock
