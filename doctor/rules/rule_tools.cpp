#include "doctor/rules/rule_tools.hpp"

#include "doctor/timeline/frame_names.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

namespace penstock {

namespace {

bool is_regular(const DeviceView& view, const std::vector<bool>& active,
                const std::vector<TraceTime>& times) {
  constexpr std::size_t kOften = 3;
  if (view.account.steps == 0) return times.size() >= kOften;
  return in_half_of_steps(view, active, 0, times);
}

/// On which a device's kernels run.
std::set<std::uint32_t> kernel_streams(const DeviceView& view) {
  std::set<std::uint32_t> streams;
  for (const TimelineWork& work : view.timeline.work) {
    if (work.device == view.account.device) streams.insert(work.stream);
  }
  return streams;
}

template <typename Test>
bool are_most_on(const std::vector<ViewedCopy>& copies, const Test& is_of_these) {
  const auto on_these = std::ranges::count_if(
      copies, [&](const ViewedCopy& viewed) { return is_of_these(viewed.copy->stream); });
  return 2 * static_cast<std::size_t>(on_these) >= copies.size();
}

}  // namespace

void Places::add(const CallSite& site, std::uint64_t bytes, TimeSpan time) {
  add(site, seconds_of(time.end - time.begin));
  places_[{site.frame, site.op}].place.bytes += bytes;
}

void Places::add_wait(const CallSite& site, std::uint64_t bytes, TimeSpan time, TraceTime idle) {
  add(site, bytes, time);
  auto& [place, held] = places_[{site.frame, site.op}];
  held += std::min(time.end - time.begin, idle);
  place.idle_seconds = place.idle_seconds.value_or(0) + seconds_of(idle);
}

void Places::add(const CallSite& site, double seconds) {
  FindingPlace& place = places_[{site.frame, site.op}].place;
  ++place.count;
  place.seconds += seconds;
}

void Places::fill(Finding& finding, const Timeline& timeline) const {
  const auto text = [&timeline](std::uint32_t name) {
    return name != kNoName ? timeline.names[name] : std::string();
  };
  struct Sum : Known {
    std::pair<std::uint64_t, double> most;  ///< calls and seconds of one stack
    std::uint32_t frame = kNoName;          ///< that has them
  };
  std::map<std::pair<std::string, std::string>, Sum> sums;
  for (const auto& [site, known] : places_) {
    Sum& sum = sums[{text(site.first), text(site.second)}];
    sum.place.count += known.place.count;
    sum.place.bytes += known.place.bytes;
    sum.place.seconds += known.place.seconds;
    if (known.place.idle_seconds)
      sum.place.idle_seconds = sum.place.idle_seconds.value_or(0) + *known.place.idle_seconds;
    sum.held += known.held;
    const std::pair stack(known.place.count, known.place.seconds);
    if (stack > std::exchange(sum.most, std::max(sum.most, stack))) sum.frame = site.first;
  }
  std::vector<Known> list;
  for (auto& [texts, sum] : sums) {
    std::tie(sum.place.function, sum.place.op) = texts;
    sum.place.stack = stack_of(timeline, sum.frame);
    list.push_back(std::move(sum));
  }
  const auto order = [](const Known& known) {
    const FindingPlace& place = known.place;
    return std::tuple(-known.held, -place.seconds, std::string_view(place.function),
                      std::string_view(place.op));
  };
  std::ranges::sort(list, {}, order);
  for (Known& known : list) finding.places.push_back(std::move(known.place));
}

bool in_half_of_steps(const DeviceView& view, const std::vector<bool>& active, std::size_t first,
                      const std::vector<TraceTime>& times) {
  constexpr std::size_t kFewest = 3;  // what is in one step only may be there once
  const std::size_t steps = active.size() - first;
  const auto busy = static_cast<std::size_t>(
      std::count(active.begin() + static_cast<std::ptrdiff_t>(first), active.end(), true));
  std::set<std::size_t> with;
  for (const TraceTime time : times) with.insert(step_at(view, time));
  return 2 * times.size() >= steps && 2 * with.size() >= std::min(steps, std::max(busy, kFewest));
}

bool is_regular(const DeviceView& view, const std::vector<TraceTime>& times) {
  return is_regular(view, view.host_steps, times);
}

bool is_regular(const DeviceView& view, const std::vector<ViewedCopy>& copies) {
  std::vector<TraceTime> times;
  times.reserve(copies.size());
  for (const ViewedCopy& viewed : copies) times.push_back(viewed.copy->time.begin);
  return is_regular(view, view.device_steps, times);
}

TraceTime uncovered(const SpanList& list, const SpanIndex& by) {
  TraceTime sum = 0;
  for (const TimeSpan& span : list) sum += span.end - span.begin - by.covered(span);
  return sum;
}

TimeSpan gap_after(const DeviceView& view, TimeSpan wait) {
  const TimeSpan window = view.account.window;
  const TraceTime begin = std::max(wait.begin, view.busy.end_before(wait.end, window.begin));
  const TraceTime end = view.busy.begin_after(wait.end, window.end);
  return {begin, std::max(begin, end)};
}

TraceTime idle_in(const DeviceView& view, TimeSpan window) {
  const SpanList explained = intersect({window}, view.explained.spans());
  const TraceTime left_out = total_length(explained) - overlap(explained, view.busy.spans());
  return window.end - window.begin - view.busy.covered(window) - left_out;
}

double idle_seconds(const DeviceView& view) {
  return view.account.per_step(idle_in(view, view.account.window));
}

bool share_stream(const DeviceView& view, const std::vector<ViewedCopy>& copies) {
  const std::set<std::uint32_t> streams = kernel_streams(view);
  return are_most_on(copies, [&](std::uint32_t stream) { return streams.contains(stream); });
}

bool wait_for_default_stream(const DeviceView& view, const std::vector<ViewedCopy>& copies) {
  const auto kind_of = [&](std::uint32_t stream) {
    const auto known = view.timeline.stream_kinds.find({view.account.device, stream});
    return known != view.timeline.stream_kinds.end() ? known->second : StreamKind::non_blocking;
  };
  std::set<StreamKind> kernels;
  for (const std::uint32_t stream : kernel_streams(view)) kernels.insert(kind_of(stream));
  return are_most_on(copies, [&](std::uint32_t stream) {
    const StreamKind kind = kind_of(stream);
    return (kind == StreamKind::default_stream && kernels.contains(StreamKind::blocking)) ||
           (kind == StreamKind::blocking && kernels.contains(StreamKind::default_stream));
  });
}

const TimelineWidening* widening_around(const DeviceView& view, const KnownCall& made, std::uint64_t bytes) {
  if (made.site.op == kNoName) return nullptr;
  const TimelineCall& call = view.call(made);
  const auto& all = view.timeline.widenings;
  auto after = std::partition_point(all.begin(), all.end(), [&](const TimelineWidening& widening) {
    return std::pair(widening.thread, widening.begin) <= std::pair(call.thread, call.time.begin);
  });
  while (after != all.begin()) {
    const TimelineWidening& widening = *--after;
    if (widening.thread != call.thread || widening.begin < made.site.op_time.begin) break;
    if (widening.elements * widening.to_bytes == bytes) return &widening;
  }
  return nullptr;
}

std::size_t step_at(const DeviceView& view, TraceTime time) {
  const auto& steps = view.timeline.steps;
  const auto after = std::ranges::upper_bound(steps, time, {}, &TimeSpan::begin);
  return static_cast<std::size_t>(std::max<std::ptrdiff_t>(after - steps.begin() - 1, 0));
}

std::size_t first_steady_step(const DeviceView& view) {
  constexpr double kWarmUp = 0.25;  // of the steps
  return static_cast<std::size_t>(kWarmUp * static_cast<double>(view.timeline.steps.size()));
}

}  // namespace penstock
