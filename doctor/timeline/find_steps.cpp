#include "doctor/timeline/alike_steps.hpp"
#include "doctor/timeline/device_activity.hpp"
#include "doctor/timeline/timeline.hpp"
#include "doctor/timeline/trace_steps.hpp"
#include "doctor/timeline/work_labels.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace penstock {

namespace {

constexpr std::size_t kRepeats = 5;
constexpr std::size_t kMostCandidates = 4096;
constexpr double kTrusted = 1.5;  // steps that repeat exactly count as so many that are nearly the same
constexpr TraceTime kInterruption = 10;  // as long as most steps
constexpr TraceTime kStart = 2;          // as long as most steps, and longer than all later ones

/// The labelled work and the copies of the device that has most of them, in the order of their beginnings.
/// Kernels are the same if their labels are, but for the lowest `left_out` bits.
std::vector<StepItem> items_of(const Timeline& timeline, int left_out) {
  std::map<std::uint16_t, std::size_t> counts;
  for (const TimelineWork& work : timeline.work) ++counts[work.device];
  if (counts.empty()) return {};
  const std::uint16_t device =
      std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
        return a.second < b.second;
      })->first;
  std::unordered_map<int, std::uint32_t> kinds;
  std::vector<StepItem> items;
  for (const TimelineWork& work : timeline.work) {
    if (work.device != device || work.label == 0) continue;
    const auto next = static_cast<std::uint32_t>(kFirstKernel + kinds.size());
    items.push_back({kinds.try_emplace(work.label >> left_out, next).first->second, work.time});
  }
  for (const TimelineCopy& copy : timeline.copies) {
    if (copy.device != device || copy.direction == CopyDirection::d2d) continue;
    // Sizes may differ from batch to batch.
    items.push_back({copy.direction == CopyDirection::h2d ? kCopiesToDevice : kCopiesToHost, copy.time});
  }
  std::ranges::sort(
      items, {}, [](const StepItem& item) { return std::tuple(item.time.begin, item.time.end, item.kind); });
  return items;
}

/// The longest stretch around `middle` in which each item equals the one `period` later: from its first item
/// to behind its last.
std::pair<std::size_t, std::size_t> stretch(std::span<const StepItem> items, std::size_t middle,
                                            std::size_t period) {
  std::size_t first = middle;
  while (first > 0 && items[first - 1].kind == items[first - 1 + period].kind) --first;
  std::size_t last = middle;
  while (last + period < items.size() && items[last].kind == items[last + period].kind) ++last;
  return {first, last + period};
}

/// True if ranges of one name, in the order of their beginnings, may be steps.
bool may_be_steps(std::span<const TimeSpan> ranges, TraceTime covered) {
  if (ranges.size() < kRepeats || 2 * covered < ranges.back().end - ranges.front().begin) return false;
  return std::ranges::adjacent_find(
             ranges, [](const TimeSpan& a, const TimeSpan& b) { return b.begin < a.end; }) == ranges.end();
}

std::vector<TimeSpan> steps_of_ranges(const Timeline& timeline) {
  if (timeline.ranges.empty()) return {};
  const std::vector<bool> launches = threads_that_launch(timeline);
  std::map<std::pair<std::uint16_t, std::uint64_t>, std::vector<TimeSpan>> named;
  for (const TimelineRange& range : timeline.ranges) {
    if (launches[range.thread]) named[{range.thread, range.label}].push_back(range.time);
  }
  TraceTime most = 0;
  std::vector<std::pair<TraceTime, std::vector<TimeSpan>>> may_be;
  for (auto& [name, ranges] : named) {
    std::ranges::sort(ranges, {}, &TimeSpan::begin);
    TraceTime covered = 0;
    for (const TimeSpan& range : ranges) covered += range.end - range.begin;
    if (!may_be_steps(ranges, covered)) continue;
    most = std::max(most, covered);
    may_be.emplace_back(covered, std::move(ranges));
  }
  // Steps within epochs cover nearly as much, and passes within steps do not.
  std::vector<TimeSpan> steps;
  for (auto& [covered, ranges] : may_be) {
    if (10 * covered >= 9 * most && ranges.size() > steps.size()) steps = std::move(ranges);
  }
  for (std::size_t i = 1; i < steps.size(); ++i) steps[i - 1].end = steps[i].begin;
  return steps;
}

/// Where each step begins, and at last where the last one ends, if they repeat exactly.
std::vector<std::size_t> find_equal_steps(std::span<const StepItem> items) {
  const std::size_t middle = items.size() / 2;
  std::size_t period = 0;
  std::pair<std::size_t, std::size_t> best{0, 0};
  std::size_t candidates = 0;
  // A multiple of the period covers as much, so only a longer stretch counts.
  const auto is_longer = [](std::size_t length, std::size_t than) { return length > than + than / 10; };
  // A step that begins with the middle item ends where that item comes again.
  for (std::size_t next = middle + 1; next < items.size() && candidates < kMostCandidates; ++next) {
    if (!is_longer(items.size(), best.second - best.first)) break;
    if (items[next].kind != items[middle].kind) continue;
    ++candidates;
    const auto found = stretch(items, middle, next - middle);
    const std::size_t length = found.second - found.first;
    if (length / (next - middle) < kRepeats || !is_longer(length, best.second - best.first)) continue;
    best = found;
    period = next - middle;
  }
  if (period == 0 || 2 * (best.second - best.first) < items.size()) return {};
  std::vector<TraceTime> idle(period);
  for (std::size_t i = best.first + 1; i < best.second; ++i) {
    idle[(i - best.first) % period] += std::max<TraceTime>(0, items[i].time.begin - items[i - 1].time.end);
  }
  const auto phase = static_cast<std::size_t>(std::max_element(idle.begin(), idle.end()) - idle.begin());
  std::vector<std::size_t> begins;
  for (std::size_t i = best.first + phase; i < best.second; i += period) begins.push_back(i);
  return begins;
}

/// Leaves out a step in the first or the last tenth that takes much longer than most, and those before or
/// after it: the program prepares something there, such as its loader after a first try of the model. So does
/// a step in the first tenth that takes longer than any behind these.
void leave_out_pauses_at_ends(std::vector<TimeSpan>& steps) {
  if (steps.size() < kRepeats) return;
  const auto length = [](const TimeSpan& step) { return step.end - step.begin; };
  const auto part = static_cast<std::ptrdiff_t>(std::max<std::size_t>(1, steps.size() / 10));
  std::vector<TraceTime> lengths(steps.size());
  std::ranges::transform(steps, lengths.begin(), length);
  const TraceTime longest_later = *std::max_element(lengths.begin() + part, lengths.end());
  const auto middle = lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 2);
  std::ranges::nth_element(lengths, middle);
  const TraceTime interrupted = kInterruption * *middle;
  const TraceTime starting = std::min(interrupted, std::max(kStart * *middle, longest_later));
  const auto takes_longer = [&](TraceTime than) {
    return [&, than](const TimeSpan& step) { return length(step) > than; };
  };
  const auto last = std::find_if(steps.end() - part, steps.end(), takes_longer(interrupted));
  const auto first =
      std::find_if(std::reverse_iterator(steps.begin() + part), steps.rend(), takes_longer(starting));
  steps.erase(last, steps.end());
  steps.erase(steps.begin(), first.base());
}

/// Steps of the kernels and the copies that repeat.
std::vector<TimeSpan> steps_that_repeat(const Timeline& timeline) {
  std::vector<StepItem> items = items_of(timeline, 0);
  std::vector<std::size_t> begins = find_equal_steps(items);
  const auto known = static_cast<std::size_t>(kTrusted * static_cast<double>(begins.size()));
  if (std::vector<std::size_t> more = find_alike_steps(items, known); !more.empty()) begins = std::move(more);
  if (begins.empty() && timeline.source == TimelineSource::recorder) {
    items = items_of(timeline, kGridBits);
    begins = find_alike_steps(items, 0);
  }
  if (!begins.empty() && begins.front() == 0) begins.erase(begins.begin());
  // The idle time is the step's that it leads to, as are the calls within it.
  const auto beginning = [&items](std::size_t i) {
    return std::min(items[i].time.begin, items[i - 1].time.end);
  };
  std::vector<TimeSpan> steps;
  for (std::size_t i = 1; i < begins.size(); ++i)
    steps.push_back({beginning(begins[i - 1]), beginning(begins[i])});
  leave_out_pauses_at_ends(steps);
  return steps;
}

}  // namespace

std::vector<TimeSpan> find_steps(const Timeline& timeline) {
  std::vector<TimeSpan> steps = steps_of_ranges(timeline);
  if (steps.empty()) {
    steps = steps_that_repeat(timeline);
    if (may_be_parts(timeline, steps)) steps.clear();
  }
  std::vector<TimeSpan> draws = steps_of_draws(timeline);
  if (!draws.empty() && (steps.empty() || are_epochs(timeline, steps, draws))) return draws;
  return steps;
}

}  // namespace penstock
