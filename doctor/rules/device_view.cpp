#include "doctor/rules/device_view.hpp"

#include "doctor/timeline/active_steps.hpp"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>

namespace penstock {

namespace {

constexpr TraceTime kAtOnce = 10'000;

/// The next call, if it is a synchronization that belongs to a copy's: it follows at once, in the same
/// operator or, if frames name lines, from the same line. Between the two, a recorder may read the copied
/// bytes. Null if it is another.
const KnownCall* wait_behind(const Timeline& timeline, const std::vector<KnownCall>& calls,
                             const KnownCall& made) {
  const std::size_t next = static_cast<std::size_t>(&made - calls.data()) + 1;
  if (next >= calls.size()) return nullptr;
  const KnownCall& known = calls[next];
  const TimelineCall& copy = timeline.calls[made.call];
  const TimelineCall& call = timeline.calls[known.call];
  if (call.thread != copy.thread || call.kind != CallKind::stream_synchronize) return nullptr;
  // A launch between them is not among the known calls, but among all.
  if (known.call != made.call + 1) return nullptr;
  const bool same_op =
      made.site.op != kNoName && known.site.op == made.site.op && known.site.op_time == made.site.op_time;
  const bool same_line = timeline.source == TimelineSource::recorder && made.site.frame != kNoName &&
                         known.site.frame == made.site.frame;
  return same_op || same_line || call.time.begin - copy.time.end <= kAtOnce ? &known : nullptr;
}

/// Of all devices.
std::vector<ViewedCopy> view_copies(const Timeline& timeline, TimeSpan window,
                                    const std::vector<KnownCall>& calls) {
  std::unordered_map<std::uint32_t, const KnownCall*> made;
  for (const KnownCall& known : calls) {
    const TimelineCall& call = timeline.calls[known.call];
    if (call.kind == CallKind::copy && call.correlation != 0) made[call.correlation] = &known;
  }
  std::vector<ViewedCopy> copies;
  for (const TimelineCopy& copy : timeline.copies) {
    if (copy.direction == CopyDirection::d2d || !begins_in(copy.time, window)) continue;
    const auto by = made.find(copy.correlation);
    const KnownCall* const call = by != made.end() ? by->second : nullptr;
    copies.push_back({&copy, call, call != nullptr ? wait_behind(timeline, calls, *call) : nullptr});
  }
  return copies;
}

std::set<const KnownCall*> waits_for_inputs(const std::vector<ViewedCopy>& copies) {
  std::set<const KnownCall*> waits;
  for (const ViewedCopy& viewed : copies) {
    const TimelineCopy& copy = *viewed.copy;
    if (viewed.waited == nullptr || copy.direction != CopyDirection::h2d) continue;
    if (copy.bytes > kSmallBytes) waits.insert(viewed.waited);
  }
  return waits;
}

std::vector<ViewedCopy> copies_of(const std::vector<ViewedCopy>& all, std::uint16_t device) {
  std::vector<ViewedCopy> copies;
  std::ranges::copy_if(all, std::back_inserter(copies),
                       [device](const ViewedCopy& viewed) { return viewed.copy->device == device; });
  return copies;
}

}  // namespace

TimelineView::TimelineView(const Timeline& viewed)
    : timeline(viewed),
      window(account_window(timeline)),
      calls(find_call_sites(timeline)),
      copies(view_copies(timeline, window, calls)),
      waits_for_inputs(penstock::waits_for_inputs(copies)) {}

DeviceView view_device(const TimelineView& of, std::uint16_t device, const LinkProfile* profile) {
  const Timeline& timeline = of.timeline;
  HostActivity host = host_activity(timeline, device);
  DeviceActivity activity = device_activity(timeline, device, of.window);
  DeviceAccount account = device_account(timeline, device, of.window, activity, host);
  SpanList explained = merge(host.waits, host.starts);
  std::vector<QuietTime> own_work = quiet_times(timeline, host, of.window);
  std::vector<bool> host_steps = active_steps_of_threads(timeline, host.launches, of.window);
  return {.shared = of,
          .timeline = timeline,
          .host = host,
          .account = std::move(account),
          .kernels = SpanIndex(std::move(activity.kernels)),
          .busy = SpanIndex(std::move(activity.busy)),
          .waits = SpanIndex(host.waits),
          .explained = SpanIndex(std::move(explained)),
          .own_work = std::move(own_work),
          .host_steps = std::move(host_steps),
          .device_steps = active_steps_of_device(timeline, device, of.window),
          .copies = copies_of(of.copies, device),
          .profile = profile};
}

}  // namespace penstock
