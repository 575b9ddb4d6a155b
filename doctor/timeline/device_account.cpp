#include "doctor/timeline/device_account.hpp"

#include "doctor/timeline/device_activity.hpp"
#include "doctor/timeline/work_labels.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <set>
#include <unordered_set>
#include <utility>

namespace penstock {

namespace {

TimeSpan clip(TimeSpan span, TimeSpan window) {
  return {std::max(span.begin, window.begin), std::min(span.end, window.end)};
}

/// The least span around others.
class Hull {
 public:
  void widen(TimeSpan span) { span_ = {std::min(span_.begin, span.begin), std::max(span_.end, span.end)}; }
  [[nodiscard]] TimeSpan window() const { return span_.begin <= span_.end ? span_ : TimeSpan{}; }

 private:
  TimeSpan span_{std::numeric_limits<TraceTime>::max(), std::numeric_limits<TraceTime>::min()};
};

bool is_kernel(const TimelineWork& work) { return work.label != kMemorySet; }

bool is_launch(const TimelineCall& call) { return call.kind == CallKind::launch; }

/// By thread: it makes a call that `counts`.
template <typename Test>
std::vector<bool> threads_of(const Timeline& timeline, const Test& counts) {
  std::vector<bool> threads(std::size_t{1} << 16);
  for (const TimelineCall& call : timeline.calls) {
    if (counts(call)) threads[call.thread] = true;
  }
  return threads;
}

bool has_any(const std::vector<bool>& threads) { return std::ranges::find(threads, true) != threads.end(); }

/// As threads_that_launch(). If a device runs no kernels, or no launches are recorded: it copies to or from
/// the device. If no such calls are recorded either: it calls CUDA.
std::vector<bool> launching_threads(const Timeline& timeline, std::uint16_t device) {
  if (std::ranges::any_of(timeline.work, [device](const TimelineWork& work) {
        return work.device == device && is_kernel(work);
      })) {
    if (std::vector<bool> threads = threads_that_launch(timeline); has_any(threads)) return threads;
  }
  std::unordered_set<std::uint32_t> copies;
  for (const TimelineCopy& copy : timeline.copies) {
    if (copy.device == device && copy.correlation != 0) copies.insert(copy.correlation);
  }
  const std::vector<bool> threads = threads_of(timeline, [&copies](const TimelineCall& call) {
    return call.kind == CallKind::copy && copies.contains(call.correlation);
  });
  return has_any(threads) ? threads : threads_of(timeline, [](const TimelineCall&) { return true; });
}

/// By DevicePart: when a device does it. Together they are the window.
std::array<SpanList, kDeviceParts> device_parts(const Timeline& timeline, TimeSpan window,
                                                const DeviceActivity& activity, const HostActivity& host) {
  std::array<SpanList, kDeviceParts> parts;
  const auto of = [&parts](DevicePart part) -> SpanList& { return parts[static_cast<std::size_t>(part)]; };
  if (!timeline.has_kernels) {
    append_span(of(DevicePart::not_observed), window);
    return parts;
  }
  of(DevicePart::kernel) = activity.computing;
  of(DevicePart::communication) = subtract(activity.kernels, activity.computing);
  of(DevicePart::exposed_copy) = subtract(activity.busy, activity.kernels);
  SpanList idle = subtract({window}, activity.busy);
  if (!timeline.has_copies || !host.observed) {
    of(DevicePart::not_observed) = std::move(idle);
    return parts;
  }
  for (const auto& [part, doing] : {std::pair(DevicePart::waiting_for_data, &host.waits),
                                    {DevicePart::starting, &host.starts},
                                    {DevicePart::launch_or_sync, &host.busy}}) {
    of(part) = intersect(idle, *doing);
    idle = subtract(idle, *doing);
  }
  of(DevicePart::other_idle) = std::move(idle);
  return parts;
}

}  // namespace

std::string_view device_part_name(DevicePart part) noexcept {
  constexpr std::array<std::string_view, kDeviceParts> kNames = {
      "kernel",   "communication",  "exposed_copy", "waiting_for_data",
      "starting", "launch_or_sync", "other_idle",   "not_observed"};
  return kNames[static_cast<std::size_t>(part)];
}

std::string_view device_part_label(DevicePart part) noexcept {
  constexpr std::array<std::string_view, kDeviceParts> kLabels = {
      "kernels",           "communication",
      "exposed copies",    "idle, waiting for data",
      "idle, CUDA starts", "idle, launch or synchronization",
      "idle, other",       "not observed"};
  return kLabels[static_cast<std::size_t>(part)];
}

double DeviceAccount::share(DevicePart of) const noexcept {
  return total() > 0 ? static_cast<double>(part(of)) / static_cast<double>(total()) : 0;
}

double DeviceAccount::per_step(TraceTime time) const noexcept {
  return seconds_of(time) / static_cast<double>(std::max<std::size_t>(steps, 1));
}

double DeviceAccount::step_seconds() const noexcept { return per_step(total()); }

bool lacks_launches(const Timeline& timeline) {
  return std::ranges::any_of(timeline.work, is_kernel) && std::ranges::none_of(timeline.calls, is_launch);
}

std::vector<bool> threads_that_launch(const Timeline& timeline) { return threads_of(timeline, is_launch); }

HostActivity host_activity(const Timeline& timeline, std::uint16_t device) {
  HostActivity host;
  host.launches = launching_threads(timeline, device);
  std::vector<TimeSpan> busy;
  std::vector<TimeSpan> waits;
  std::vector<TimeSpan> starts;
  // A thread's spans are in order, so that those within others are left out as they come.
  const auto add = [](std::vector<TimeSpan>& spans, TimeSpan span) {
    if (spans.empty() || span.begin < spans.back().begin || span.end > spans.back().end)
      spans.push_back(span);
  };
  for (const TimelineCall& call : timeline.calls) {
    if (host.launches[call.thread]) add(call.kind == CallKind::other ? starts : busy, call.time);
  }
  host.calls = span_list(busy);
  for (const TimelineHostSpan& span : timeline.host) {
    if (!host.launches[span.thread]) continue;
    if (span.kind == HostSpanKind::op) add(busy, span.time);
    if (span.kind == HostSpanKind::loader_wait) add(waits, span.time);
  }
  host.waits = span_list(std::move(waits));
  host.starts = subtract(span_list(std::move(starts)), host.waits);
  host.busy = subtract(subtract(span_list(std::move(busy)), host.waits), host.starts);
  host.observed = timeline.has_ops || timeline.has_frames || !host.waits.empty() ||
                  (timeline.source == TimelineSource::recorder && !host.busy.empty());
  if (!timeline.has_launches || !timeline.has_calls || lacks_launches(timeline)) host.observed = false;
  if (timeline.calls.empty()) host.observed = false;
  return host;
}

TimeSpan whole_window(const Timeline& timeline) {
  Hull hull;
  for (const auto& record : timeline.copies) hull.widen(record.time);
  for (const auto& record : timeline.work) hull.widen(record.time);
  for (const auto& record : timeline.calls) hull.widen(record.time);
  for (const auto& record : timeline.host) hull.widen(record.time);
  return hull.window();
}

TimeSpan account_window(const Timeline& timeline) {
  if (timeline.steps.empty()) return whole_window(timeline);
  Hull hull;
  for (const TimeSpan& step : timeline.steps) hull.widen(step);
  return hull.window();
}

DeviceActivity device_activity(const Timeline& timeline, std::uint16_t device, TimeSpan window) {
  DeviceActivity activity;
  SpanList within;
  for (const TimelineWork& work : timeline.work) {
    if (work.device != device) continue;
    append_span(activity.kernels, clip(work.time, window));
    if (!is_communication(work.label)) append_span(activity.computing, clip(work.time, window));
  }
  for (const TimelineCopy& copy : timeline.copies) {
    if (copy.device != device) continue;
    SpanList& list = copy.direction == CopyDirection::h2d   ? activity.h2d
                     : copy.direction == CopyDirection::d2h ? activity.d2h
                                                            : within;
    append_span(list, clip(copy.time, window));
  }
  activity.kernels = merge(std::move(activity.kernels), within);
  activity.computing = merge(std::move(activity.computing), within);
  activity.busy = merge(activity.kernels, merge(activity.h2d, activity.d2h));
  return activity;
}

DeviceAccount device_account(const Timeline& timeline, std::uint16_t device, TimeSpan window,
                             const DeviceActivity& activity, const HostActivity& host) {
  DeviceAccount account;
  account.device = device;
  const auto name = timeline.devices.find(device);
  if (name != timeline.devices.end()) account.name = name->second;
  account.window = window;
  account.steps = timeline.steps.size();
  account.step_times = step_times(timeline.steps);
  account.has_kernels = timeline.has_kernels;
  account.has_copies = timeline.has_copies;
  const auto parts = device_parts(timeline, window, activity, host);
  std::ranges::transform(parts, account.parts.begin(), total_length);
  for (const TimelineCopy& copy : timeline.copies) {
    if (copy.device != device || copy.direction == CopyDirection::d2d || !begins_in(copy.time, window))
      continue;
    CopyFigures& figures = copy.direction == CopyDirection::h2d ? account.h2d : account.d2h;
    ++figures.count;
    figures.bytes += copy.bytes;
    figures.unsized += copy.bytes == 0 ? 1 : 0;
  }
  account.kernels = static_cast<std::uint64_t>(
      std::ranges::count_if(timeline.work, [device, window](const TimelineWork& work) {
        return work.device == device && begins_in(work.time, window);
      }));
  account.h2d.busy = total_length(activity.h2d);
  account.d2h.busy = total_length(activity.d2h);
  account.h2d.exposed = total_length(subtract(subtract(activity.h2d, activity.kernels), activity.d2h));
  account.d2h.exposed = total_length(subtract(subtract(activity.d2h, activity.kernels), activity.h2d));
  return account;
}

std::vector<std::uint16_t> active_devices(const Timeline& timeline) {
  std::set<std::uint16_t> devices;
  for (const auto& copy : timeline.copies) devices.insert(copy.device);
  for (const auto& work : timeline.work) devices.insert(work.device);
  return {devices.begin(), devices.end()};
}

}  // namespace penstock
