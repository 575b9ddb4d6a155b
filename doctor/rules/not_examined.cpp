#include "doctor/rules/not_examined.hpp"

#include "doctor/rules/device_view.hpp"
#include "doctor/rules/rule.hpp"
#include "doctor/timeline/device_account.hpp"

#include <penstock/core/bytes.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace penstock {

namespace {

using List = std::vector<NotExamined>;

void add_steps(List& list, const Timeline& timeline) {
  if (timeline.steps.empty()) {
    list.push_back({ids_that_need(Need::steps, {"step"}),
                    is_trace(timeline) ? "No steps are marked, and no sequence of kernels and copies repeats "
                                         "as steps do. So all figures are of the whole recording. Call the "
                                         "profiler's step() in the loop."
                                       : "No steps were found, as no sequence of kernels and copies repeats "
                                         "exactly. So all figures are "
                                         "of the whole recording."});
  }
  if (timeline.steps.size() < kSteadySteps) {
    std::vector<std::string> of_recordings;
    if (!is_trace(timeline)) of_recordings = ids_that_need(Need::recorded_steady_steps);
    std::vector<std::string> names = ids_that_need(Need::steady_steps, std::move(of_recordings));
    list.push_back(
        {std::move(names),
         fmt::format("Pinning{} after the first steps: fewer than 4 steps were recorded.",
                     is_trace(timeline) ? " and allocations" : ", allocations and the program's own work")});
  }
}

void add_host(List& list, const Timeline& timeline, const HostActivity& host) {
  const bool trace = is_trace(timeline);
  if (!timeline.has_frames) {
    list.push_back({{},
                    trace ? "Places in the program: no stacks were recorded. Profile with with_stack=True."
                          : "Places in the program: no lines of Python were recorded."});
  }
  if (!host.observed) {
    list.push_back(
        {ids_that_need(Need::loader_waits, {"waiting_for_data", "launch_or_sync", "other_idle"}),
         trace && !timeline.has_ops && !timeline.has_frames
             ? "Why the GPU idles: the host was not recorded. Profile with ProfilerActivity.CPU too."
             : "Why the GPU idles: not all calls of CUDA were recorded."});
  } else if (host.waits.empty()) {
    list.push_back(
        {ids_that_need(Need::loader_waits, {"waiting_for_data"}),
         trace
             ? "Waiting for data: the thread that launches kernels called next() of no DataLoader. Waits for "
               "another loader count as other idle time."
             : "Waiting for data: the thread that launches kernels was never seen in next() of a DataLoader, "
               "or of penstock's Loader or feed. Waits for another loader count as other idle time."});
  }
  if (host.observed && !timeline.has_looks) {
    list.push_back({ids_that_need(Need::looks),
                    trace ? "The program's own work between calls of CUDA: no stacks were recorded. Profile "
                            "with with_stack=True."
                          : "The program's own work between calls of CUDA: no thread that launches kernels "
                            "was looked at. Threads of Python are, unless lines are left out. Earlier "
                            "recorders did not look."});
  }
}

void add_outside(List& list, const Timeline& timeline, TimeSpan window) {
  const TimeSpan all = whole_window(timeline);
  const TraceTime outside = all.end - all.begin - (window.end - window.begin);
  if (!is_trace(timeline) || timeline.steps.empty() || outside <= window.end - window.begin) return;
  const auto is_outside = [window](const auto& record) { return !begins_in(record.time, window); };
  const auto copies = std::ranges::count_if(timeline.copies, [&](const TimelineCopy& copy) {
    return copy.direction != CopyDirection::d2d && is_outside(copy);
  });
  const auto waits = std::ranges::count_if(timeline.calls, [&](const TimelineCall& call) {
    return is_synchronization(call.kind) && is_outside(call);
  });
  list.push_back(
      {{},
       fmt::format("What lies outside the steps: {} of {}, with {} copies between host and GPU and "
                   "{} waits of the host.",
                   format_seconds(seconds_of(outside)), format_seconds(seconds_of(all.end - all.begin)),
                   copies, waits)});
}

// Why nothing is known of a need. Empty: it is.

std::string why_no_types(const Timeline& timeline, TimeSpan) {
  if (timeline.has_types) return "";
  return is_trace(timeline)
             ? "Values widened before the copy: no types were recorded. Profile with record_shapes=True."
             : "Values widened before the copy: only a trace of PyTorch's profiler tells types, with "
               "record_shapes=True.";
}

std::string why_no_memory_kinds(const Timeline& timeline, TimeSpan) {
  const auto unknown = std::ranges::count_if(timeline.copies, [](const TimelineCopy& copy) {
    return copy.direction == CopyDirection::h2d && !copy.source;
  });
  if (unknown == 0) return "";
  return fmt::format("Pageable and pinned memory: the source's kind is not recorded for {} copies.", unknown);
}

std::string why_no_sizes(const Timeline& timeline, TimeSpan) {
  const auto unknown =
      std::ranges::count_if(timeline.copies, [](const TimelineCopy& copy) { return copy.bytes == 0; });
  if (unknown == 0) return "";
  return fmt::format(
      "Sizes of copies: the bytes of {} copies are not recorded. No finding about copies has these.",
      unknown);
}

std::string why_no_contents(const Timeline& timeline, TimeSpan window) {
  if (is_trace(timeline)) return "The same data sent again: a trace has no contents of copies.";
  const auto unknown = std::ranges::count_if(timeline.copies, [window](const TimelineCopy& copy) {
    return copy.direction == CopyDirection::h2d && copy.bytes > kSmallBytes && begins_in(copy.time, window) &&
           copy.contents == 0;
  });
  if (unknown == 0) return "";
  return fmt::format("The same data sent again: the contents of {} copies of more than 64 KiB are not known.",
                     unknown);
}

struct Examined {
  Need need;
  std::string (*why_not)(const Timeline& timeline, TimeSpan window);
};
constexpr auto kExamined = std::to_array<Examined>({{Need::types, why_no_types},
                                                    {Need::memory_kinds, why_no_memory_kinds},
                                                    {Need::sizes, why_no_sizes},
                                                    {Need::contents, why_no_contents}});

/// All findings, as each of them tells what the GPU's idle time costs, and the parts of the account from
/// `first` on.
std::vector<std::string> all_that_needs_idle_time(DevicePart first) {
  std::vector<std::string> names(finding_ids().begin(), finding_ids().end());
  for (const DevicePart part : kAllDeviceParts) {
    if (part >= first && part != DevicePart::not_observed) names.emplace_back(device_part_name(part));
  }
  return names;
}

std::string why_missing(std::string_view what, bool refused) {
  return refused ? fmt::format("CUPTI refused to record {}.", what)
                 : fmt::format("{} were left out of the recording. Record them.", what);
}

/// Empty: calls were recorded.
std::string why_calls_are_missing(const Timeline& timeline) {
  if (!timeline.has_launches) return why_missing("the calls that launch kernels", timeline.refused.launches);
  if (!timeline.has_calls) return why_missing("calls other than launches", timeline.refused.calls);
  if (timeline.calls.empty()) return "no calls of CUDA were recorded.";
  return lacks_launches(timeline) ? "no calls that launch kernels were recorded." : "";
}

}  // namespace

std::vector<NotExamined> not_recorded(const Timeline& timeline) {
  List list;
  if (!timeline.has_kernels) {
    list.push_back({all_that_needs_idle_time(DevicePart::kernel),
                    "Kernels, exposed copies, idle time, and so all findings and gains: " +
                        why_missing("kernels", timeline.refused.kernels)});
  }
  if (!timeline.has_copies) {
    list.push_back({all_that_needs_idle_time(DevicePart::exposed_copy),
                    "Copies, idle time, and so all findings and gains: " +
                        why_missing("copies", timeline.refused.copies)});
  }
  if (const std::string why = why_calls_are_missing(timeline); !why.empty()) {
    list.push_back(
        {ids_that_need(Need::calls),
         "Synchronizations, blocking copies, asynchronous ones, copies that wait for others, pinning, "
         "allocations and the program's own work: " +
             why});
  }
  return list;
}

std::vector<NotExamined> not_examined(const Timeline& timeline, const HostActivity& host, TimeSpan window) {
  List list;
  for (const std::string& note : timeline.notes) list.push_back({{}, note});
  std::ranges::move(not_recorded(timeline), std::back_inserter(list));
  add_steps(list, timeline);
  add_outside(list, timeline, window);
  add_host(list, timeline, host);
  for (const Examined& examined : kExamined) {
    if (std::string why = examined.why_not(timeline, window); !why.empty())
      list.push_back({ids_that_need(examined.need), std::move(why)});
  }
  return list;
}

const NotExamined* find_not_examined(const std::vector<NotExamined>& list, std::string_view name) {
  const auto found = std::ranges::find_if(list, [name](const NotExamined& missing) {
    return std::ranges::find(missing.names, name) != missing.names.end();
  });
  return found != list.end() ? &*found : nullptr;
}

}  // namespace penstock
