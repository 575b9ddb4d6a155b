#include "doctor/rules/not_examined.hpp"
#include "doctor/rules/rule.hpp"
#include "doctor/rules/rule_tools.hpp"
#include "doctor/timeline/active_steps.hpp"

#include <penstock/core/bytes.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

namespace penstock {

namespace {

constexpr double kHeld = 0.02;  // of a step

/// "aten::item" in the words of a program.
std::string_view cause_of(std::string_view op) {
  if (op == "aten::item" || op == "aten::_local_scalar_dense" || op == "aten::is_nonzero") return ".item()";
  if (op == "aten::nonzero" || op == "aten::masked_select" || op == "aten::index")
    return "a size that depends on values";
  if (op == "aten::to" || op == "aten::copy_" || op == "aten::_to_copy") return ".cpu() or .to()";
  return op;
}

/// A wait of the host for the device: with the copy that it waits for, if that is one to the host. Its call
/// may be that copy's own.
struct HostWait {
  const KnownCall* call = nullptr;
  TimeSpan time;
  std::uint64_t bytes = 0;
};

/// Of threads that launch kernels or of the others, in the order of threads, and of time within each. Waits
/// for large copies to any device are left to other rules.
std::vector<HostWait> host_waits(const DeviceView& view, bool of_launching) {
  std::map<const KnownCall*, const ViewedCopy*> of_outputs;
  std::map<const KnownCall*, const ViewedCopy*> waiting_copies;  // to the host, whose calls end after them
  for (const ViewedCopy& viewed : view.copies) {
    const TimelineCopy& copy = *viewed.copy;
    if (viewed.waited == nullptr) {
      if (copy.direction == CopyDirection::d2h && viewed.made != nullptr &&
          view.call(*viewed.made).time.end >= copy.time.end)
        waiting_copies[viewed.made] = &viewed;
    } else if (copy.direction == CopyDirection::d2h) {
      of_outputs[viewed.waited] = &viewed;
    }
  }
  std::vector<HostWait> waits;
  for (const KnownCall& known : view.shared.calls) {
    const TimelineCall& call = view.call(known);
    if (view.is_of_launching_thread(known) != of_launching) continue;
    if (!view.is_within(call.time.begin) || known.site.in_wait ||
        view.shared.waits_for_inputs.contains(&known))
      continue;
    if (const auto waiting = waiting_copies.find(&known); waiting != waiting_copies.end())
      waits.push_back({&known, call.time, waiting->second->copy->bytes});
    if (!is_synchronization(call.kind)) continue;
    HostWait wait{&known, call.time, 0};
    const auto output = of_outputs.find(&known);
    if (output != of_outputs.end()) {
      // The call of a copy to pageable memory itself waits.
      wait.time.begin = view.call(*output->second->made).time.begin;
      wait.bytes = output->second->copy->bytes;
    }
    waits.push_back(wait);
  }
  return waits;
}

/// Calls of two kinds that should happen once, but happen in half of the steps after the first ones.
std::optional<Finding> steady_calls(const DeviceView& view, CallKind kind, CallKind opposite) {
  const auto& steps = view.timeline.steps;
  if (steps.size() < kSteadySteps) return std::nullopt;
  const std::size_t first = first_steady_step(view);
  const auto steady = static_cast<double>(steps.size() - first);
  Finding finding;
  Places places;
  TraceTime took = 0;
  std::vector<TimeSpan> gaps;
  std::vector<TraceTime> times;
  std::vector<bool> threads(view.host.launches.size());
  for (const KnownCall& known : view.shared.calls) {
    const TimelineCall& call = view.call(known);
    if (call.kind != kind && call.kind != opposite) continue;
    if (call.time.begin < steps[first].begin || !view.is_within(call.time.begin)) continue;
    times.push_back(call.time.begin);
    threads[call.thread] = true;
    took += call.time.end - call.time.begin;
    gaps.push_back(gap_after(view, call.time));
    places.add(known.site, 0, call.time);
  }
  const auto active = active_steps_of_threads(view.timeline, threads, view.account.window);
  if (!in_half_of_steps(view, active, first, times)) return std::nullopt;
  places.fill(finding, view.timeline);
  finding.count = static_cast<double>(times.size()) / steady;
  finding.seconds = seconds_of(took) / steady;
  // New memory is slow at first, too, so all that the device idles then may go.
  const TraceTime gap = uncovered(span_list(std::move(gaps)), view.explained);
  const TraceTime idle = idle_in(view, {steps[first].begin, view.account.window.end});
  finding.gain = {0, seconds_of(std::max(gap, std::min(took, idle))) / steady};
  return finding;
}

std::optional<Finding> find_synchronizations(const DeviceView& view) {
  const std::vector<HostWait> waits = host_waits(view, true);
  std::vector<TraceTime> times;
  times.reserve(waits.size());
  for (const HostWait& wait : waits) times.push_back(wait.time.begin);
  if (!is_regular(view, times)) return std::nullopt;
  Finding finding;
  Places places;
  std::vector<TimeSpan> gaps;
  TraceTime blocked = 0;
  TraceTime kept = 0;  // of the gaps, what the host would have been ahead by
  for (const HostWait& wait : waits) {
    const TraceTime took = wait.time.end - wait.time.begin;
    const TimeSpan gap = gap_after(view, wait.time);
    const bool again = !gaps.empty() && gaps.back().end == gap.end;
    gaps.push_back(gap);
    blocked += took;
    const TraceTime idle_after = again ? 0 : gap.end - gap.begin - view.explained.covered(gap);
    kept += std::min(took, idle_after);
    places.add_wait(wait.call->site, wait.bytes, wait.time, idle_after);
    finding.count += 1 / view.steps();
    finding.bytes += static_cast<double>(wait.bytes) / view.steps();
  }
  places.fill(finding, view.timeline);
  finding.seconds = view.account.per_step(blocked);
  const double gap = view.account.per_step(uncovered(span_list(std::move(gaps)), view.explained));
  // Without a wait, the host's own work and the GPU's run side by side: what the GPU idles may all be hidden,
  // and the host saves what it waits.
  finding.gain = {view.account.per_step(kept) / 2, std::min(idle_seconds(view), finding.seconds)};
  const FindingPlace& first = finding.places.front();
  const std::string_view cause = cause_of(first.op);
  const std::string by = cause.empty() ? "" : fmt::format(", mostly by {}", cause);
  const bool idles = first.idle_seconds.value_or(0) > 0;
  finding.text = fmt::format(
      "Waits of the host for the GPU: {:.3g} in {}, {} together{}. After them the GPU idles {}{}.",
      finding.count, view.account.steps > 0 ? "a step" : "the recording", format_seconds(finding.seconds),
      idles ? "" : by, format_seconds(gap), idles ? by : "");
  finding.meaning =
      "After each wait the GPU has nothing queued, until the host has launched the next kernels.";
  return finding;
}

std::optional<Finding> find_pinning(const DeviceView& view) {
  std::optional<Finding> finding = steady_calls(view, CallKind::pin, CallKind::unpin);
  if (!finding) return std::nullopt;
  finding->text =
      fmt::format("Calls that pin or unpin host memory, after the first steps too: {:.3g} in a step, {}.",
                  finding->count, format_seconds(finding->seconds));
  finding->meaning =
      "Pinning takes the driver's lock and milliseconds for large memory. It should happen once.";
  return finding;
}

std::optional<Finding> find_device_allocations(const DeviceView& view) {
  std::optional<Finding> finding = steady_calls(view, CallKind::allocate, CallKind::free);
  if (!finding) return std::nullopt;
  finding->text = fmt::format(
      "Calls that allocate or free the GPU's memory, after the first steps too: {:.3g} in a step, {}.",
      finding->count, format_seconds(finding->seconds));
  finding->meaning =
      "Freeing waits for the GPU's work. PyTorch keeps its memory, so that it allocates only if that does "
      "not suffice, or was given back.";
  return finding;
}

constexpr auto kCallRules = std::to_array<Rule>({
    {.id = "synchronizations",
     .needs = Needs(Need::calls),
     .find = find_synchronizations,
     .advice = {"keep values on the GPU (total += loss.detach()), and read them every 100 steps", ""},
     .compiled_advice = Advice{"keep values on the GPU, and read them every 100 steps", ""},
     .row = {"the host waits for a stream, an event or the device, other than for copies of more than 64 KiB "
             "to a GPU; or the call of a copy to the host ends after it",
             "half of what the GPU idles after, or of the wait if it is shorter, for each",
             "all that the GPU idles in the step, other than for a DataLoader, at most the waits"}},
    {.id = "pinning",
     .needs = Needs(Need::calls, Need::steady_steps),
     .find = find_pinning,
     .advice = {"allocate pinned buffers once, before the loop, and copy into them",
                "penstock.feed(loader) keeps its pinned memory; so do penstock.to_device(batch), and "
                "penstock.park(state) for state that leaves the GPU and comes back"},
     .compiled_advice =
         Advice{"allocate pinned buffers once, before the loop", "penstock::make_pinned_pool(device)"},
     .row = {"host memory is pinned or unpinned in half of the steps after the first quarter of them. At "
             "least 4 steps are needed",
             "0",
             "what the GPU idles from these calls until it works again. Or, if it is more: all that it "
             "idles, at most the calls"}},
    {.id = "device-allocations",
     .needs = Needs(Need::calls, Need::steady_steps),
     .find = find_device_allocations,
     .advice = {"no torch.cuda.empty_cache() in the loop; allocate buffers once, before it", ""},
     .compiled_advice = Advice{"allocate buffers once, before the loop; or cudaMallocAsync and cudaFreeAsync",
                               "penstock::make_device_pool(device)"},
     .row =
         {"the GPU's memory is allocated or freed in half of the steps after the first quarter of them. "
          "`cudaMallocAsync`, which allocates in the order of a stream, does not count. At least 4 steps are "
          "needed",
          "0",
          "what the GPU idles from these calls until it works again. Or, if it is more: all that it "
          "idles, at most the calls"}},
});

}  // namespace

std::span<const Rule> call_rules() { return kCallRules; }

std::optional<NotExamined> waits_of_other_threads(const DeviceView& view) {
  if (view.account.kernels == 0) return std::nullopt;
  std::vector<TimeSpan> spans;  // by which a thread that waits for these threads may have been held up
  for (const HostWait& wait : host_waits(view, false)) {
    const TimeSpan gap = gap_after(view, wait.time);
    spans.push_back({gap.begin, std::min(gap.end, gap.begin + wait.time.end - wait.time.begin)});
  }
  const double held = view.account.per_step(uncovered(span_list(std::move(spans)), view.explained));
  if (held < kHeld * view.account.step_seconds()) return std::nullopt;
  return NotExamined{
      {"synchronizations"},
      fmt::format("Synchronizations of threads that launch no kernels: the GPU idles after them, and up to "
                  "{} of {} is due to them if a thread that launches waits for these threads.",
                  format_seconds(held), view.account.steps > 0 ? "a step" : "the recording")};
}

}  // namespace penstock
