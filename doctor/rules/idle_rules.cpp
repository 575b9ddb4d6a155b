#include "doctor/rules/rule.hpp"
#include "doctor/rules/rule_tools.hpp"

#include <penstock/core/bytes.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace penstock {

namespace {

constexpr double kStarved = 0.05;  // of the time
constexpr TraceTime kPause = 10;   // as much as in most steps

/// A time of the program's own work in which the device idles.
struct HostWork {
  QuietTime quiet;
  TraceTime idle = 0;
};

/// A checkpoint, a validation or the beginning of an epoch is no part of a step.
void leave_out_pauses(const DeviceView& view, std::vector<HostWork>& works) {
  if (works.empty()) return;
  std::map<std::size_t, TraceTime> by_step;
  for (const HostWork& work : works) by_step[step_at(view, work.quiet.time.begin)] += work.idle;
  std::vector<TraceTime> idle;
  idle.reserve(by_step.size());
  for (const auto& [step, time] : by_step) idle.push_back(time);
  const auto middle = idle.begin() + static_cast<std::ptrdiff_t>(idle.size() / 2);
  std::nth_element(idle.begin(), middle, idle.end());
  std::erase_if(works, [&](const HostWork& work) {
    return by_step[step_at(view, work.quiet.time.begin)] > kPause * *middle;
  });
}

std::vector<HostWork> host_works(const DeviceView& view) {
  std::vector<HostWork> works;
  for (const QuietTime& quiet : view.own_work) {
    const TraceTime idle = quiet.time.end - quiet.time.begin - view.busy.covered(quiet.time);
    if (idle > 0) works.push_back({quiet, idle});
  }
  leave_out_pauses(view, works);
  return works;
}

/// Each place has the share of the idle time that it has of the looks.
void add_places(Places& places, const HostWork& work) {
  std::map<std::uint32_t, std::size_t> looks;
  for (const TimelineLook& look : work.quiet.looks) ++looks[look.name];
  for (const auto& [name, count] : looks) {
    const double share = static_cast<double>(count) / static_cast<double>(work.quiet.looks.size());
    CallSite site;
    site.frame = name;
    places.add(site, share * seconds_of(work.idle));
  }
}

std::optional<Finding> find_waiting_for_data(const DeviceView& view) {
  const double waiting = view.account.per_step(view.account.part(DevicePart::waiting_for_data));
  if (view.account.share(DevicePart::waiting_for_data) < kStarved) return std::nullopt;
  Finding finding;
  Places places;
  std::set<std::uint16_t> threads;
  std::vector<const TimelineHostSpan*> frames;  // around the span
  for (const TimelineHostSpan& span : view.timeline.host) {
    std::erase_if(frames, [&span](const TimelineHostSpan* frame) {
      return frame->thread != span.thread || frame->time.end <= span.time.begin;
    });
    if (span.kind == HostSpanKind::frame) frames.push_back(&span);
    if (span.kind != HostSpanKind::loader_wait || !view.host.launches[span.thread]) continue;
    if (span.time.begin < view.account.window.begin || span.time.end > view.account.window.end) continue;
    finding.count += 1 / view.steps();
    CallSite site;
    site.frame = frames.empty() ? kNoName : frames.back()->name;
    site.op = span.name;
    places.add(site, 0, span.time);
    threads.insert(span.thread);
  }
  places.fill(finding, view.timeline);
  finding.seconds = waiting;
  const double waited = view.account.per_step(view.waits.covered(view.account.window));
  finding.gain = {0, std::min(waiting + idle_seconds(view), waited)};
  finding.text =
      fmt::format("The GPU idles while the loop waits for its loader: {} of {}{}.", format_seconds(waiting),
                  format_seconds(view.account.step_seconds()), view.account.steps > 0 ? " a step" : "");
  if (threads.size() > 1)
    finding.text += fmt::format(" {} threads wait, and the places count the waits of all.", threads.size());
  finding.meaning =
      "Batches are made more slowly than they are used. A loader that keeps up saves all of this.";
  if (!finding.places.empty() && finding.places.front().op.starts_with("penstock"))
    finding.change = "print(loader.stats())   says what limits it";
  return finding;
}

std::optional<Finding> find_host_work(const DeviceView& view) {
  const auto& steps = view.timeline.steps;
  const bool is_steady = steps.size() >= kSteadySteps;
  // What a trace is of was chosen. A recording begins with the program.
  if (!view.timeline.has_looks || !(is_steady || is_trace(view.timeline))) return std::nullopt;
  const std::size_t first = is_steady ? first_steady_step(view) : 0;
  Places places;
  std::vector<TraceTime> steady;  // beginnings
  SpanList quiet;
  TraceTime idle = 0;
  Finding finding;
  for (const HostWork& work : host_works(view)) {
    if (is_steady && work.quiet.time.begin >= steps[first].begin) steady.push_back(work.quiet.time.begin);
    append_span(quiet, work.quiet.time);
    idle += work.idle;
    finding.count += 1 / view.steps();
    add_places(places, work);
  }
  finding.seconds = view.account.per_step(idle);
  if (finding.seconds < kStarved * view.account.step_seconds()) return std::nullopt;
  if (is_steady && !in_half_of_steps(view, view.host_steps, first, steady)) return std::nullopt;
  places.fill(finding, view.timeline);
  finding.gain = {0, std::min(view.account.per_step(total_length(quiet)), idle_seconds(view))};
  finding.text = fmt::format("The GPU idles while the program is in its own code on the host: {} of {}{}.",
                             format_seconds(finding.seconds), format_seconds(view.account.step_seconds()),
                             view.account.steps > 0 ? " a step" : "");
  finding.meaning =
      "Nothing is queued for the GPU meanwhile. If this makes the next batch, it can be done beside "
      "the GPU's work.";
  return finding;
}

constexpr auto kIdleRules = std::to_array<Rule>({
    {.id = "waiting-for-data",
     .needs = Needs(Need::loader_waits),
     .find = find_waiting_for_data,
     .advice =
         {"penstock doctor --loader train.py:loader   says which stage is slow, and how many workers pay",
          "penstock.feed(loader), or penstock.Loader for data in arrays"},
     .compiled_advice = Advice{"loader.stats()   says what limits the loader", ""},
     .may_be_unexamined = true,
     .row = {"the GPU idles for want of data for 5 % of the time", "0: it depends on the loader",
             "the time for want of data, and all that the GPU idles otherwise, at most the waits for the "
             "loader"}},
    {.id = "host-work",
     .needs = Needs(Need::calls, Need::looks, Need::recorded_steady_steps),
     .find = find_host_work,
     .advice =
         {"do it in a Dataset's __getitem__, with DataLoader(..., num_workers=4); or ahead, in a thread "
          "of its own",
          "for batch in penstock.feed(DataLoader(dataset, num_workers=4)): ...; penstock.Loader for data in "
          "arrays"},
     .row =
         {"the GPU idles for 5 % of the time, and in half of the steps after the first quarter of them, "
          "while [the program is in its own code](#the-programs-own-work) and calls nothing of CUDA for 1 ms "
          "at least. At least 4 steps are needed; in a trace with fewer, all of it counts",
          "0: it depends on what the work is",
          "all that the GPU idles in the step, other than for a DataLoader, at most the time of that work"}},
});

}  // namespace

std::span<const Rule> idle_rules() { return kIdleRules; }

}  // namespace penstock
