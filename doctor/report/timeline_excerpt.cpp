#include "doctor/report/timeline_excerpt.hpp"

#include "doctor/timeline/call_sites.hpp"
#include "doctor/timeline/device_activity.hpp"
#include "doctor/timeline/time_spans.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <ranges>
#include <tuple>
#include <utility>

namespace penstock {

namespace {

constexpr TraceTime kUnmarkedParts =
    60;  // "steps" of a recording that marks none; three of them are a twentieth
constexpr TraceTime kFinest = 1 << 16;  // the first resolution, as a part of the window

bool is_within(TimeSpan time, TimeSpan window) { return time.begin < window.end && time.end > window.begin; }

/// The marked steps, or equal parts of the recording.
std::vector<TimeSpan> candidate_steps(const Timeline& timeline) {
  if (!timeline.steps.empty()) return timeline.steps;
  const TimeSpan all = account_window(timeline);
  std::vector<TimeSpan> parts;
  for (TraceTime i = 0; i < kUnmarkedParts; ++i) {
    const auto at = [&](TraceTime part) { return all.begin + (all.end - all.begin) / kUnmarkedParts * part; };
    parts.push_back({at(i), at(i + 1)});
  }
  return parts;
}

/// The first of `count` steps in a row that are nearest to the mean of all.
std::size_t choose_steps(const std::vector<TimeSpan>& steps, std::size_t count, const Diagnosis& diagnosis) {
  std::vector<SpanIndex> evidence;
  evidence.reserve(diagnosis.findings.size());
  for (const Finding& finding : diagnosis.findings) evidence.emplace_back(finding.evidence);
  const TimeSpan all{steps.front().begin, steps.back().end};
  const double share = static_cast<double>(count) / static_cast<double>(steps.size());
  std::size_t best = 0;
  double least = std::numeric_limits<double>::max();
  for (std::size_t first = 0; first + count <= steps.size(); ++first) {
    const TimeSpan window{steps[first].begin, steps[first + count - 1].end};
    const auto off = [share](TraceTime here, TraceTime in_all) {
      return std::abs(static_cast<double>(here) - share * static_cast<double>(in_all));
    };
    double distance = off(window.end - window.begin, all.end - all.begin);
    for (const SpanIndex& spans : evidence) distance += off(spans.covered(window), spans.covered(all));
    if (distance >= least) continue;
    least = distance;
    best = first;
  }
  return best;
}

ExcerptBar bar(TimeSpan time, std::string_view kind) {
  const TraceTime length = time.end - time.begin;
  return {.time = time, .kind = kind, .busy = length, .longest = length};
}

std::string_view copy_kind(const TimelineCopy& copy) {
  if (copy.direction == CopyDirection::d2h) return "copy to the host";
  if (copy.source == MemoryKind::pageable) return "copy from pageable memory";
  return copy.source ? "copy from pinned memory" : "copy to the GPU";
}

/// The account of a device, moment by moment.
ExcerptLane account_lane(const Timeline& timeline, const HostActivity& host, std::uint16_t device,
                         TimeSpan window, const std::string& group) {
  const auto parts = device_parts(timeline, window, device_activity(timeline, device, window), host);
  ExcerptLane lane{group, "where the time goes", true, {}};
  for (const DevicePart part : kAllDeviceParts) {
    for (const TimeSpan& time : parts[static_cast<std::size_t>(part)])
      lane.bars.push_back(bar(time, device_part_label(part)));
  }
  std::sort(lane.bars.begin(), lane.bars.end(),
            [](const ExcerptBar& a, const ExcerptBar& b) { return a.time.begin < b.time.begin; });
  return lane;
}

/// By thread: it launches kernels, or stands for one that does.
std::vector<bool> shown_threads(const Timeline& timeline, const Diagnosis& diagnosis) {
  std::vector<bool> threads = threads_that_launch(timeline);
  for (const DeviceAccount& account : diagnosis.accounts) {
    const std::vector<bool> of_device = launching_threads(timeline, account.device);
    for (std::size_t i = 0; i < threads.size(); ++i) threads[i] = threads[i] || of_device[i];
  }
  return threads;
}

class ExcerptMaker {
 public:
  ExcerptMaker(const Timeline& timeline, const Diagnosis& diagnosis, const ExcerptOptions& options)
      : timeline_(timeline),
        diagnosis_(diagnosis),
        options_(options),
        launches_(shown_threads(timeline, diagnosis)) {}

  TimelineExcerpt make() {
    const std::vector<TimeSpan> steps = candidate_steps(timeline_);
    const std::size_t count = std::clamp<std::size_t>(options_.steps, 1, steps.size());
    const std::size_t first = choose_steps(steps, count, diagnosis_);
    excerpt_.window = {steps[first].begin, steps[first + count - 1].end};
    if (!timeline_.steps.empty()) {
      excerpt_.first_step = first;
      excerpt_.steps.assign(steps.begin() + static_cast<std::ptrdiff_t>(first),
                            steps.begin() + static_cast<std::ptrdiff_t>(first + count));
    }
    const std::size_t devices = std::min(diagnosis_.accounts.size(), options_.most_devices);
    excerpt_.devices_left_out = diagnosis_.accounts.size() - devices;
    for (std::size_t i = 0; i < devices; ++i) add_device(diagnosis_.accounts[i]);
    add_threads();
    for (std::size_t i = 0; i < devices; ++i) add_findings(diagnosis_.accounts[i]);
    std::erase_if(excerpt_.lanes, [](const ExcerptLane& lane) { return lane.bars.empty(); });
    make_coarser();
    return std::move(excerpt_);
  }

 private:
  void add_device(const DeviceAccount& account) {
    const std::uint16_t device = account.device;
    const std::string group = fmt::format("GPU {}", device);
    ExcerptLane kernels{group, "kernels", false, {}};
    ExcerptLane to_device{group, "copies H2D", false, {}};
    ExcerptLane to_host{group, "copies D2H", false, {}};
    for (const TimelineWork& work : timeline_.work) {
      if (work.time.begin >= excerpt_.window.end) break;
      if (work.device == device && is_within(work.time, excerpt_.window))
        kernels.bars.push_back(bar(work.time, "kernel"));
    }
    for (const TimelineCopy& copy : timeline_.copies) {
      if (copy.time.begin >= excerpt_.window.end) break;
      if (copy.device != device || !is_within(copy.time, excerpt_.window)) continue;
      if (copy.direction == CopyDirection::d2d) {
        kernels.bars.push_back(bar(copy.time, "copy within GPUs"));
      } else {
        ExcerptLane& lane = copy.direction == CopyDirection::h2d ? to_device : to_host;
        lane.bars.push_back(bar(copy.time, copy_kind(copy)));
        lane.bars.back().bytes = copy.bytes;
      }
    }
    std::ranges::sort(kernels.bars, {},
                      [](const ExcerptBar& bar) { return std::tuple(bar.time.begin, bar.time.end); });
    excerpt_.lanes.push_back(
        account_lane(timeline_, host_activity(timeline_, device), device, excerpt_.window, group));
    for (ExcerptLane* lane : {&kernels, &to_device, &to_host}) excerpt_.lanes.push_back(std::move(*lane));
  }

  void add_threads() {
    std::map<std::uint16_t, std::pair<ExcerptLane, ExcerptLane>> threads;  // waits and calls
    const auto lanes_of = [&threads](std::uint16_t thread) -> auto& {
      auto& lanes = threads[thread];
      lanes.first.group = lanes.second.group = fmt::format("thread {}", thread);
      lanes.first.name = "loader";
      lanes.second.name = "calls";
      return lanes;
    };
    const std::vector<KnownCall> known = find_call_sites(timeline_);
    auto site = known.begin();
    for (std::size_t i = 0; i < timeline_.calls.size(); ++i) {
      const TimelineCall& call = timeline_.calls[i];
      while (site != known.end() && site->call < i) ++site;
      if (!launches_[call.thread] || !is_within(call.time, excerpt_.window)) continue;
      std::vector<ExcerptBar>& bars = lanes_of(call.thread).second.bars;
      bars.push_back(bar(call.time, call_kind_name(call.kind)));
      if (site != known.end() && site->call == i) bars.back().place = place_of(site->site);
    }
    for (const TimelineHostSpan& span : timeline_.host) {
      const bool shown = span.kind == HostSpanKind::loader_wait && launches_[span.thread];
      if (shown && is_within(span.time, excerpt_.window))
        lanes_of(span.thread).first.bars.push_back(bar(span.time, "next() of the DataLoader"));
    }
    const std::size_t shown = std::min(threads.size(), options_.most_threads);
    excerpt_.threads_left_out = threads.size() - shown;
    for (auto& [thread, lanes] : std::views::take(threads, static_cast<std::ptrdiff_t>(shown))) {
      excerpt_.lanes.push_back(std::move(lanes.first));
      excerpt_.lanes.push_back(std::move(lanes.second));
    }
  }

  void add_findings(const DeviceAccount& account) {
    const std::string on =
        diagnosis_.accounts.size() > 1 ? fmt::format(" on GPU {}", account.device) : std::string();
    for (const Finding& finding : diagnosis_.findings) {
      if (finding.device != account.device) continue;
      ExcerptLane lane{"findings" + on, finding.id, false, {}};
      for (const TimeSpan& time : finding.evidence) {
        if (is_within(time, excerpt_.window)) lane.bars.push_back(bar(time, "evidence"));
      }
      excerpt_.lanes.push_back(std::move(lane));
    }
  }

  std::size_t place_of(const CallSite& site) {
    const auto [at, added] = places_.try_emplace({site.frame, site.op}, excerpt_.places.size());
    if (!added) return at->second;
    std::string text = site.frame == kNoName ? "" : timeline_.names[site.frame];
    if (site.op != kNoName) text += (text.empty() ? "" : ", ") + timeline_.names[site.op];
    if (text.empty()) return at->second = 0;
    at->second = texts_.try_emplace(text, excerpt_.places.size()).first->second;
    if (at->second == excerpt_.places.size()) excerpt_.places.push_back(std::move(text));
    return at->second;
  }

  /// Joins neighbours as long as they are not longer than the resolution together.
  [[nodiscard]] std::vector<ExcerptBar> joined(const std::vector<ExcerptBar>& bars) const {
    std::vector<ExcerptBar> list;
    for (const ExcerptBar& next : bars) {
      if (list.empty() ||
          std::max(next.time.end, list.back().time.end) - list.back().time.begin > excerpt_.resolution) {
        list.push_back(next);
        continue;
      }
      ExcerptBar& last = list.back();
      last.time.end = std::max(last.time.end, next.time.end);
      last.count += next.count;
      last.bytes += next.bytes;
      last.busy += next.busy;
      if (next.longest <= last.longest) continue;
      last.longest = next.longest;
      last.kind = next.kind;
      last.place = next.place;
    }
    return list;
  }

  /// The same for bars without gaps. What each kind takes of them stays, as one bar.
  [[nodiscard]] std::vector<ExcerptBar> joined_tiles(const std::vector<ExcerptBar>& bars) const {
    std::vector<ExcerptBar> list;
    for (std::size_t first = 0, next = 0; first < bars.size(); first = next) {
      const TraceTime begin = bars[first].time.begin;
      const auto kinds = static_cast<std::ptrdiff_t>(list.size());
      for (; next < bars.size(); ++next) {
        if (next > first && bars[next].time.end - begin > excerpt_.resolution) break;
        const auto same = std::find_if(list.begin() + kinds, list.end(),
                                       [&](const ExcerptBar& bar) { return bar.kind == bars[next].kind; });
        if (same == list.end()) {
          list.push_back(bars[next]);
        } else {
          same->count += bars[next].count;
          same->busy += bars[next].busy;
        }
      }
      TraceTime end = begin;
      for (auto kind = list.begin() + kinds; kind != list.end(); ++kind) {
        kind->time = {end, end + kind->busy};
        end = kind->time.end;
      }
    }
    return list;
  }

  void make_coarser() {
    const auto count = [&] {
      std::size_t sum = 0;
      for (const ExcerptLane& lane : excerpt_.lanes) sum += lane.bars.size();
      return sum;
    };
    const TraceTime length = excerpt_.window.end - excerpt_.window.begin;
    while (count() > options_.most_bars && excerpt_.resolution < length) {
      excerpt_.resolution = std::max<TraceTime>({1, length / kFinest, 2 * excerpt_.resolution});
      for (ExcerptLane& lane : excerpt_.lanes)
        lane.bars = lane.tiles ? joined_tiles(lane.bars) : joined(lane.bars);
    }
  }

  const Timeline& timeline_;
  const Diagnosis& diagnosis_;
  const ExcerptOptions& options_;
  std::vector<bool> launches_;
  TimelineExcerpt excerpt_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> places_;
  std::map<std::string, std::size_t> texts_;  ///< frames with other callers have the same
};

}  // namespace

TimelineExcerpt excerpt_timeline(const Timeline& timeline, const Diagnosis& diagnosis,
                                 const ExcerptOptions& options) {
  return ExcerptMaker(timeline, diagnosis, options).make();
}

}  // namespace penstock
