#include "doctor/read/recording_format.hpp"
#include "doctor/rules/copy_times.hpp"
#include "doctor/rules/rule.hpp"
#include "doctor/rules/rule_tools.hpp"
#include "doctor/rules/stream_order.hpp"
#include "doctor/timeline/frame_names.hpp"
#include "doctor/timeline/place_name.hpp"

#include <penstock/core/bytes.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace penstock {

namespace {

constexpr double kSmallCopies = 16;  // of a step
constexpr double kExposed = 0.05;    // of a step
constexpr double kContended = 0.05;  // of a step
constexpr TraceTime kBackToBack = 5'000;
constexpr std::uint64_t kLargeCopy = 1 << 20;
constexpr std::size_t kStateCopies = 4;  // of a step, that leave together
constexpr std::size_t kMostBefore = 64;  // copies that one waits for
constexpr TraceTime kRunGap = 200'000;   // between copies that could have been one
// Without a profile, one copy in place of many small ones: whatever its size, and its bytes per second.
constexpr double kPackedCopy = 10e-6;
constexpr double kPackedRate = 10e9;

bool is_large_input(const ViewedCopy& viewed, MemoryKind kind) {
  const TimelineCopy& copy = *viewed.copy;
  return copy.direction == CopyDirection::h2d && copy.bytes > kSmallBytes && copy.source == kind;
}

/// Seconds of one copy from pinned memory, as the link profile knows it.
double pinned_seconds(const LinkProfile& profile, std::uint64_t bytes) {
  return profile.predict(static_cast<std::size_t>(bytes), 1, {MemoryKind::pinned, MemoryKind::device});
}

/// The best rate of large pinned copies to the device, 0 if there are none.
double best_pinned_rate(const std::vector<ViewedCopy>& copies) {
  double best = 0;
  for (const ViewedCopy& viewed : copies) {
    const TimelineCopy& copy = *viewed.copy;
    const double seconds = seconds_of(copy.time.end - copy.time.begin);
    if (copy.direction != CopyDirection::h2d || copy.source != MemoryKind::pinned) continue;
    if (copy.bytes >= kLargeCopy && seconds > 0)
      best = std::max(best, static_cast<double>(copy.bytes) / seconds);
  }
  return best;
}

/// Seconds of a step that these copies would take from pinned memory; those that they take if it is not
/// known.
double seconds_if_pinned(const DeviceView& view, const std::vector<ViewedCopy>& copies,
                         const Finding& finding) {
  if (view.profile != nullptr) {
    double seconds = 0;
    for (const ViewedCopy& viewed : copies) seconds += pinned_seconds(*view.profile, viewed.copy->bytes);
    return seconds / view.steps();
  }
  const double rate = best_pinned_rate(view.copies);
  return rate > 0 ? finding.bytes / rate : finding.seconds;
}

/// Nanoseconds of one copy in place of many small ones.
TraceTime packed_time_of(const DeviceView& view, std::uint64_t bytes) {
  const double seconds = view.profile != nullptr ? pinned_seconds(*view.profile, bytes)
                                                 : kPackedCopy + static_cast<double>(bytes) / kPackedRate;
  return static_cast<TraceTime>(seconds * 1e9);
}

/// Fills in what findings about copies share.
Finding copy_finding(const DeviceView& view, const std::vector<ViewedCopy>& copies) {
  Finding finding;
  Places places;
  for (const ViewedCopy& viewed : copies) {
    const TimelineCopy& copy = *viewed.copy;
    finding.count += 1 / view.steps();
    finding.bytes += static_cast<double>(copy.bytes) / view.steps();
    finding.seconds += view.account.per_step(copy.time.end - copy.time.begin);
    places.add(viewed.made != nullptr ? viewed.made->site : CallSite{}, copy.bytes, copy.time);
  }
  places.fill(finding, view.timeline);
  return finding;
}

std::string count_text(const DeviceView& view, const Finding& finding) {
  return fmt::format("{:.3g} in {}, {}", finding.count, view.account.steps > 0 ? "a step" : "the recording",
                     format_bytes(static_cast<std::uint64_t>(finding.bytes)));
}

std::string rate_text(const Finding& finding) {
  return finding.seconds > 0 ? fmt::format(" at {}", format_gbps(finding.bytes / finding.seconds)) : "";
}

/// When a copy could have run, but copies of other streams that were called before did, one after the other
/// up to its own beginning. Empty if there is no such time. `copies` are of one direction. `free`: since when
/// the copy's stream had nothing else to do, and nullopt if no kernel is next on it.
TimeSpan wait_for_engine(const DeviceView& view, std::optional<TraceTime> free,
                         const std::vector<ViewedCopy>& copies, std::size_t i) {
  const ViewedCopy& late = copies[i];
  if (late.made == nullptr || !free) return {};
  const TimeSpan call = view.call(*late.made).time;
  const TraceTime ready = std::max(*free, call.end);
  TraceTime begin = late.copy->time.begin;
  for (std::size_t back = 1; back <= std::min(i, kMostBefore) && begin > ready; ++back) {
    const ViewedCopy& other = copies[i - back];
    const TimeSpan time = other.copy->time;
    const bool in_the_way = time.end <= begin && begin - time.end <= kBackToBack &&
                            (other.made == nullptr || view.call(*other.made).time.begin < call.begin);
    if (!in_the_way) break;
    begin = time.begin;
  }
  if (begin == late.copy->time.begin) return {};
  return {std::min(std::max(begin, ready), late.copy->time.begin), late.copy->time.begin};
}

template <typename Test>
std::vector<ViewedCopy> copies_that(const DeviceView& view, const Test& test) {
  std::vector<ViewedCopy> chosen;
  std::copy_if(view.copies.begin(), view.copies.end(), std::back_inserter(chosen), test);
  return chosen;
}

/// The share of a copy's bytes that the host added when it widened its values; 0: it did not.
double needless_share(const DeviceView& view, const ViewedCopy& viewed) {
  if (viewed.made == nullptr) return 0;
  const TimelineWidening* widening = widening_around(view, *viewed.made, viewed.copy->bytes);
  return widening == nullptr ? 0 : 1 - static_cast<double>(widening->from_bytes) / widening->to_bytes;
}

/// True if both copies are called from one function, directly or through others, and `then` from a later line
/// than `first`. Only a recording names the lines of calls. One line may do both in either order.
bool is_in_order_of_lines(const DeviceView& view, const ViewedCopy& first, const ViewedCopy& then) {
  if (view.timeline.source != TimelineSource::recorder || first.made == nullptr || then.made == nullptr)
    return false;
  const std::vector<std::string> a = stack_of(view.timeline, first.made->site.frame);
  const std::vector<std::string> b = stack_of(view.timeline, then.made->site.frame);
  const auto [mine, other] =
      std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend());  // the outermost first
  if (mine == a.rend() || other == b.rend()) return false;
  const auto from = parse_place_name(*mine);
  const auto to = parse_place_name(*other);
  return from && to && from->file == to->file && from->function == to->function && from->line < to->line;
}

/// True if a copy to the host ends before one back begins, in the same step, or in the step before if their
/// lines are in that order: steps may be parted between the two.
bool follows(const DeviceView& view, const ViewedCopy& left, const ViewedCopy& back) {
  if (left.copy->time.end > back.copy->time.begin) return false;
  const std::size_t from = step_at(view, left.copy->time.begin);
  const std::size_t to = step_at(view, back.copy->time.begin);
  return from == to || (from + 1 == to && is_in_order_of_lines(view, left, back));
}

/// True if the copies to the host are of state that is put away: in most steps several leave before the first
/// comes back, and kernels run for less than half of that time. Activations leave while kernels run. `trips`:
/// each copy to the host, and then the one back.
bool leave_together(const DeviceView& view, const std::vector<ViewedCopy>& trips) {
  struct Leaving {
    TimeSpan time{std::numeric_limits<TraceTime>::max(), 0};
    TraceTime back = std::numeric_limits<TraceTime>::max();
    std::size_t copies = 0;
  };
  std::map<std::size_t, Leaving> steps;
  for (std::size_t i = 0; i < trips.size(); i += 2) {
    const TimeSpan left = trips[i].copy->time;
    Leaving& step = steps[step_at(view, left.begin)];
    step.time = {std::min(step.time.begin, left.begin), std::max(step.time.end, left.end)};
    step.back = std::min(step.back, trips[i + 1].copy->time.begin);
    ++step.copies;
  }
  const auto together = std::ranges::count_if(steps, [&view](const auto& entry) {
    const Leaving& step = entry.second;
    return step.copies >= kStateCopies && step.time.end <= step.back &&
           2 * view.kernels.covered(step.time) < step.time.end - step.time.begin;
  });
  return 2 * static_cast<std::size_t>(together) > steps.size();
}

std::optional<Finding> find_pageable_copies(const DeviceView& view) {
  const auto copies = copies_that(
      view, [](const ViewedCopy& viewed) { return is_large_input(viewed, MemoryKind::pageable); });
  if (!is_regular(view, copies)) return std::nullopt;
  Finding finding = copy_finding(view, copies);
  const double exposed = exposed_seconds(view, copies);
  const double pinned = seconds_if_pinned(view, copies, finding);
  const auto [waited, waited_before] = waits_for(view, copies);
  finding.gain = {exposed * std::max(0.0, 1 - pinned / finding.seconds),
                  most_without_waits(view, exposed, taken_seconds(view, copies))};
  finding.text = fmt::format("Copies from pageable memory: {}{}. Nothing hides {} of their {}.",
                             count_text(view, finding), rate_text(finding), format_seconds(exposed),
                             format_seconds(finding.seconds));
  if (waited > 0)
    finding.text += fmt::format(" The host waits {} for them, of that {} before they begin.",
                                format_seconds(waited), format_seconds(waited_before));
  finding.meaning =
      "The driver first moves pageable memory through a small buffer of its own, and the host waits "
      "meanwhile.";
  return finding;
}

std::optional<Finding> find_blocking_copies(const DeviceView& view) {
  const auto copies = copies_that(view, [](const ViewedCopy& viewed) {
    return is_large_input(viewed, MemoryKind::pinned) && viewed.waited != nullptr;
  });
  if (!is_regular(view, copies)) return std::nullopt;
  Finding finding = copy_finding(view, copies);
  std::vector<TimeSpan> gaps;
  std::vector<TimeSpan> own_gaps;  // behind waits of threads that launch kernels
  for (const ViewedCopy& viewed : copies) {
    gaps.push_back(gap_after(view, wait_for(view, viewed)));
    if (view.is_of_launching_thread(*viewed.waited)) own_gaps.push_back(gaps.back());
  }
  const auto [waited, waited_before] = waits_for(view, copies);
  const double gap = view.account.per_step(uncovered(span_list(std::move(gaps)), view.explained));
  // Whether a thread that launches waits for another one is not recorded.
  const double own_gap = view.account.per_step(uncovered(span_list(std::move(own_gaps)), view.explained));
  finding.gain = {std::min(waited, own_gap) / 2,
                  most_without_waits(view, exposed_seconds(view, copies), waited)};
  finding.text = fmt::format(
      "Copies from pinned memory that the host waits for: {}. It waits {}, of that {} for earlier work "
      "before the copies begin, and the GPU idles {} after.",
      count_text(view, finding), format_seconds(waited), format_seconds(waited_before), format_seconds(gap));
  finding.meaning = "The memory is pinned, so the copy could run by itself while the host launches kernels.";
  return finding;
}

/// Why no kernel hides copies, by the streams that most of them are on, and the change.
struct StreamOrder {
  std::string_view meaning;
  std::string_view change;
};
StreamOrder stream_order(const DeviceView& view, const std::vector<ViewedCopy>& copies) {
  if (share_stream(view, copies))
    return {"They are on the stream of the kernels, so each waits for the others in turn.",
            "copy the next batch on a torch.cuda.Stream() of its own while this one is used"};
  if (wait_for_default_stream(view, copies))
    return {
        "They and the kernels wait for each other: work on the default stream waits for earlier work of "
        "every stream that was made without cudaStreamNonBlocking, and their later work waits for it.",
        "copy the next batch on a torch.cuda.Stream(), or make the stream non-blocking, such as "
        "cupy.cuda.Stream(non_blocking=True)"};
  return {"They have a stream of their own, but begin too late for a kernel to run meanwhile.",
          "copy the next batch before this one's kernels are launched"};
}

std::optional<Finding> find_exposed_copies(const DeviceView& view) {
  const auto copies = copies_that(view, [](const ViewedCopy& viewed) {
    return is_large_input(viewed, MemoryKind::pinned) && viewed.waited == nullptr;
  });
  const double exposed = exposed_seconds(view, copies);
  if (!is_regular(view, copies) || exposed < kExposed * view.account.step_seconds()) return std::nullopt;
  Finding finding = copy_finding(view, copies);
  const double kernel = view.account.per_step(view.account.working());
  const double room = std::max(0.0, kernel - (finding.seconds - exposed));
  finding.gain = {std::min(exposed, room) / 2, std::min(exposed, room) + idle_around(view, copies)};
  finding.text = fmt::format("Asynchronous copies that nothing hides: {}{}. Nothing hides {} of their {}.",
                             count_text(view, finding), rate_text(finding), format_seconds(exposed),
                             format_seconds(finding.seconds));
  const auto [meaning, change] = stream_order(view, copies);
  finding.meaning = meaning;
  finding.change = change;
  finding.penstock_change = "for batch in penstock.feed(loader): ...";
  return finding;
}

std::optional<Finding> find_small_copies(const DeviceView& view) {
  const auto copies = copies_that(view, [](const ViewedCopy& viewed) {
    const std::uint64_t bytes = viewed.copy->bytes;
    return viewed.copy->direction == CopyDirection::h2d && bytes > 0 && bytes <= kSmallBytes;
  });
  // Runs of copies between which no kernel begins.
  TraceTime uncovered_time = 0;
  TraceTime packed_time = 0;
  std::vector<ViewedCopy> in_runs;
  for (std::size_t first = 0; first < copies.size();) {
    TimeSpan hull = copies[first].copy->time;
    std::uint64_t bytes = copies[first].copy->bytes;
    std::size_t next = first + 1;
    for (; next < copies.size(); ++next) {
      const TimeSpan time = copies[next].copy->time;
      if (time.begin - hull.end > kRunGap || view.kernels.covered({hull.end, time.begin}) > 0) break;
      hull.end = std::max(hull.end, time.end);
      bytes += copies[next].copy->bytes;
    }
    if (next - first > 1) {
      const TraceTime alone = hull.end - hull.begin - view.kernels.covered(hull);
      uncovered_time += alone;
      packed_time += std::min(alone, packed_time_of(view, bytes));
      in_runs.insert(in_runs.end(), copies.begin() + static_cast<std::ptrdiff_t>(first),
                     copies.begin() + static_cast<std::ptrdiff_t>(next));
    }
    first = next;
  }
  if (static_cast<double>(in_runs.size()) < kSmallCopies * view.steps() || !is_regular(view, in_runs))
    return std::nullopt;
  Finding finding = copy_finding(view, in_runs);
  const double alone = view.account.per_step(uncovered_time);
  const double packed = view.account.per_step(packed_time);
  // The gaps in the runs are a part of what the device idles. One copy may be hidden, too.
  const double exposed = exposed_seconds(view, in_runs);
  const double hidden = most_without_waits(view, exposed, waits_for(view, in_runs).all);
  finding.gain = {(alone - packed) / 2, std::max(alone - packed, hidden)};
  finding.text = fmt::format(
      "Small copies one after the other: {}. With the gaps between them they take {} in which no kernel "
      "runs.",
      count_text(view, finding), format_seconds(alone));
  finding.meaning = "Each copy costs the host and the link some microseconds, whatever its size.";
  return finding;
}

std::optional<Finding> find_widened_copies(const DeviceView& view) {
  std::vector<ViewedCopy> copies;
  double saved = 0;
  for (const ViewedCopy& viewed : view.copies) {
    if (viewed.copy->direction != CopyDirection::h2d || viewed.copy->bytes <= kSmallBytes) continue;
    const double share = needless_share(view, viewed);
    if (share == 0) continue;
    copies.push_back(viewed);
    saved += exposed_seconds(view, {viewed}) * share;
  }
  if (!is_regular(view, copies)) return std::nullopt;
  Finding finding = copy_finding(view, copies);
  finding.gain = {saved / 2, saved};
  finding.text =
      fmt::format("Values that the host widens before they are copied: {}.", count_text(view, finding));
  finding.meaning =
      "A blocking .to(device, dtype) converts on the host, and the wider values cross the link.";
  return finding;
}

std::optional<Finding> find_same_data_again(const DeviceView& view) {
  std::unordered_set<std::uint64_t> sent;
  std::unordered_set<std::uint64_t> sent_again;
  std::unordered_map<std::uint64_t, TraceTime> written;  // by bytes: when the latest copy to the host ended
  std::uint64_t kept = 0;                                // bytes that would have to stay on the device
  const auto copies = copies_that(view, [&](const ViewedCopy& viewed) {
    const TimelineCopy& copy = *viewed.copy;
    if (copy.direction == CopyDirection::d2h) {
      TraceTime& end = written.try_emplace(copy.bytes, copy.time.end).first->second;
      end = std::max(end, copy.time.end);
      return false;
    }
    if (copy.bytes <= kSmallBytes || copy.contents == 0) return false;
    // The contents are those at the call's end. An earlier copy of the size that ended later may have written
    // them.
    const auto before = written.find(copy.bytes);
    if (viewed.made != nullptr && before != written.end() &&
        before->second > view.call(*viewed.made).time.end)
      return false;
    if (sent.insert(copy.contents).second) return false;
    if (sent_again.insert(copy.contents).second) kept += copy.bytes;
    return true;
  });
  if (!is_regular(view, copies)) return std::nullopt;
  Finding finding = copy_finding(view, copies);
  const double exposed = exposed_seconds(view, copies);
  finding.gain = {exposed / 2, exposed + idle_before(view, copies)};
  finding.text = fmt::format(
      "Copies of data that was copied to this GPU before: {}{}. Their data would take {} there. Nothing "
      "hides {} of their {}.",
      count_text(view, finding), rate_text(finding), format_bytes(kept), format_seconds(exposed),
      format_seconds(finding.seconds));
  finding.meaning = fmt::format(
      "Data that stays on the GPU does not cross the link again. Only {} of each copy were compared, at {} "
      "places all over it: data that differs elsewhere looks the same.",
      format_bytes(recording::kSampleBytes), recording::kSamplePieces);
  return finding;
}

std::optional<Finding> find_round_trips(const DeviceView& view) {
  if (view.account.steps == 0) return std::nullopt;
  std::map<std::uint64_t, std::vector<const ViewedCopy*>> left;  // copies to the host by size
  std::vector<ViewedCopy> copies;
  std::vector<TimeSpan> trips;
  for (const ViewedCopy& viewed : view.copies) {
    const TimelineCopy& copy = *viewed.copy;
    if (copy.bytes <= kSmallBytes) continue;
    std::vector<const ViewedCopy*>& same = left[copy.bytes];
    if (copy.direction == CopyDirection::d2h) same.push_back(&viewed);
    if (copy.direction != CopyDirection::h2d || same.empty() || !follows(view, *same.back(), viewed))
      continue;
    copies.push_back(*same.back());
    copies.push_back(viewed);
    trips.push_back({same.back()->copy->time.begin, copy.time.end});
    same.pop_back();
  }
  if (!is_regular(view, copies)) return std::nullopt;
  Finding finding = copy_finding(view, copies);
  const SpanList idle = subtract(span_list(std::move(trips)), view.explained.spans());
  const double without_kernels = view.account.per_step(uncovered(idle, view.kernels));
  finding.gain = {0, without_kernels};
  finding.text = fmt::format(
      "Copies to the host, each followed by one of the same size back: {}. From the beginning of the one to "
      "the end of the other, no kernel runs for {}{}.",
      count_text(view, finding), format_seconds(without_kernels),
      view.waits.spans().empty() ? "" : ", apart from waits for a loader");
  finding.meaning = "If it is the same data, it could stay on the GPU. Only the sizes were compared.";
  if (leave_together(view, copies)) {
    finding.text +=
        fmt::format(" They run{}, and several leave before the first comes back.", rate_text(finding));
    finding.meaning =
        "So does state that makes room for other work. Copies to and from memory that stays pinned run at "
        "the rate of the link, and what has not changed need not leave. Only the sizes were compared.";
    finding.change = "copy into the same pinned memory each time, with non_blocking=True";
    finding.penstock_change =
        "parked = penstock.park([model, optimizer]); parked.resume(); parked.park()   or for modules by "
        "turns: penstock.offload(a, b, skip=\"frozen\")";
  }
  return finding;
}

std::optional<Finding> find_contended_copies(const DeviceView& view) {
  const auto copies = copies_that(
      view, [](const ViewedCopy& viewed) { return viewed.copy->direction == CopyDirection::h2d; });
  if (copies.size() < 2) return std::nullopt;
  const auto free = ready_before_kernels(view.timeline, view.account.device, copies);
  std::vector<ViewedCopy> late;
  std::vector<TimeSpan> waits;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const TimeSpan wait = wait_for_engine(view, free[i], copies, i);
    const TimeSpan time = copies[i].copy->time;
    if (wait.end - wait.begin <= time.end - time.begin) continue;
    late.push_back(copies[i]);
    waits.push_back(wait);
  }
  const double exposed = view.account.per_step(uncovered(span_list(std::move(waits)), view.kernels));
  if (!is_regular(view, late) || exposed < kContended * view.account.step_seconds()) return std::nullopt;
  Finding finding = copy_finding(view, late);
  const double room =
      std::max(0.0, view.account.step_seconds() - view.account.per_step(view.account.h2d.busy));
  finding.gain = {std::min(exposed, room) / 2, exposed};
  finding.text = fmt::format(
      "Copies that wait for copies of other streams, while kernels wait for them: {}. In {} of that no "
      "kernel runs.",
      count_text(view, finding), format_seconds(exposed));
  finding.meaning =
      "A GPU copies in one direction in the order of the calls. A small copy behind a large one waits for "
      "all of it, whatever their streams.";
  return finding;
}

constexpr auto kCopyRules = std::to_array<Rule>({
    {.id = "pageable-copies",
     .needs = Needs(Need::memory_kinds, Need::sizes),
     .find = find_pageable_copies,
     .advice =
         {"DataLoader(..., pin_memory=True), or x copied to a pinned buffer that you keep; x = x.to(device, "
          "non_blocking=True)",
          "for batch in penstock.feed(loader): ...; penstock.to_device(x) for what no loader makes. Without "
          "a change: penstock run -- python train.py takes copies from 1 MiB on"},
     .compiled_advice =
         Advice{
             "cudaMallocHost(&batch, bytes) once; cudaMemcpyAsync(x, batch, bytes, "
             "cudaMemcpyHostToDevice, stream)",
             "penstock::TransferEngine engine(device); stream.wait(engine.copy(x, batch, bytes)). Without a "
             "change: penstock run -- ./program takes copies from 1 MiB on"},
     .row =
         {"copies of more than 64 KiB come from pageable memory. Smaller ones do not make the host wait",
          "the exposed time, less the share that pinned memory would take",
          "the exposed time and all that the GPU idles, at most the time of the copies and of their calls"}},
    {.id = "blocking-copies",
     .needs = Needs(Need::calls, Need::memory_kinds, Need::sizes),
     .find = find_blocking_copies,
     .advice = {"x = x.to(device, non_blocking=True)", "for batch in penstock.feed(loader): ..."},
     .compiled_advice = Advice{"cudaMemcpyAsync in place of cudaMemcpy, and no synchronization behind it",
                               "stream.wait(engine.copy(x, batch, bytes))"},
     .row = {"the host waits for copies of more than 64 KiB from pinned memory, at most 10 µs after their "
             "call, or in the same operator or line",
             "half of what the GPU idles after them, or of the wait if it is shorter",
             "the exposed time and all that the GPU idles, at most the wait"}},
    {.id = "exposed-copies",
     .needs = Needs(Need::calls, Need::memory_kinds, Need::sizes),
     .find = find_exposed_copies,
     .advice = {"", ""},
     .compiled_advice =
         Advice{"cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking); copy the next batch there while "
                "this one is used, and let events order the two. nvcc --default-stream per-thread also does "
                "without the default stream",
                "penstock::Loader loader(dataset, device, options); while (auto batch = loader.next(stream)) "
                "..."},
     .row = {"asynchronous copies of more than 64 KiB from pinned memory are exposed for 5 % of a step. If "
             "they and the kernels are on streams that wait for each other only because of [the default "
             "stream](#the-default-stream), it says so",
             "half of the exposed time, or of the time of kernels that hide nothing yet if that is shorter",
             "twice the lower end, and what the GPU idles before and after"}},
    {.id = "small-copies",
     .needs = Needs(Need::sizes),
     .find = find_small_copies,
     .advice = {"collate the tensors of one type into one, copy it, and split it on the GPU",
                "batch = penstock.to_device(batch)"},
     .compiled_advice = Advice{"put the pieces side by side in one pinned buffer, and copy that",
                               "engine.copy_pieces(pieces, penstock::CopyDirection::h2d)"},
     .changes_kernels = true,
     .row = {"16 copies a step of at most 64 KiB, by the mean, follow each other without a kernel and with "
             "gaps of at most 200 µs",
             "half of the time from the first to the last of them, less one copy: by the profile, or 10 µs "
             "and its bytes at 10 GB/s",
             "twice the lower end. Or, if it is more, as one copy may be hidden: their exposed time and all "
             "that the "
             "GPU idles, at most the calls of the copies"}},
    {.id = "widened-copies",
     .needs = Needs(Need::sizes, Need::types),
     .find = find_widened_copies,
     .advice = {"x = x.to(device, non_blocking=True).to(dtype)", "penstock.Loader(..., to=dtype)"},
     .moves_less = true,
     .changes_kernels = true,
     .row = {"a trace tells that `copy_` widens values, and as many wide bytes, more than 64 KiB, are copied",
             "half of the upper end", "the exposed time that the narrow bytes would not take"}},
    {.id = "same-data-again",
     .needs = Needs(Need::sizes, Need::contents),
     .find = find_same_data_again,
     .advice = {"x = x.to(device) once, before the loop",
                "penstock.Loader(..., residency=\"auto\"); for weights that take turns "
                "penstock.offload(a, b, skip=\"frozen\")"},
     .compiled_advice =
         Advice{
             "copy it once, before the loop",
             "penstock::Loader loader(dataset, device, {.residency = penstock::Residency::parse(\"auto\")})"},
     .moves_less = true,
     .row = {"a GPU is sent bytes in copies of more than 64 KiB that it was sent before, as "
             "[hashes](#contents-of-copies) tell",
             "half of the exposed time of all but the first of them",
             "all of this exposed time, and what the GPU idles before"}},
    {.id = "round-trips",
     .needs = Needs(Need::steps, Need::sizes),
     .find = find_round_trips,
     .advice = {"compute it on the GPU, without .cpu() and .numpy()", ""},
     .compiled_advice = Advice{"compute it on the GPU", ""},
     .moves_less = true,
     .changes_kernels = true,
     .row = {"a copy of more than 64 KiB to the host is followed by one of the same size back: in the same "
             "step, or in the next one if a recording tells that one function calls both, the copy back from "
             "a later line. If in most steps at least four leave before the first comes back, and kernels "
             "run for "
             "less than half of that time, the advice is that for state that is put away",
             "0: it may be other data",
             "the time from the beginning of the one to the end of the other in which no kernel runs, "
             "without waits for a loader"}},
    {.id = "contended-copies",
     .needs = Needs(Need::calls),
     .find = find_contended_copies,
     .advice = {"call the copy that is needed first before the large one, or make that in parts: for part in "
                "batch.split(rows): ...",
                "for batch in penstock.feed(loader): ...   sends a batch's tensors together"},
     .compiled_advice =
         Advice{"call the copy that is needed first before the large one, or make that in parts of some MiB",
                "penstock::Loader loader(dataset, device, options); while (auto batch = loader.next(stream)) "
                "..."},
     .row =
         {"copies to the GPU, each with a kernel next on its stream, wait longer than they take for "
          "copies of other streams: those were called before, and run one after the other with gaps of at "
          "most 5 µs up to its beginning. In 5 % of a step no kernel runs meanwhile",
          "half of the time in which no kernel runs, or of the time in which nothing is copied to the GPU if "
          "that is shorter",
          "the time in which no kernel runs"}},
});

}  // namespace

std::span<const Rule> copy_rules() { return kCopyRules; }

}  // namespace penstock
