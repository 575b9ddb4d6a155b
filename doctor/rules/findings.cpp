#include "doctor/rules/findings.hpp"

#include "doctor/rules/default_stream.hpp"
#include "doctor/rules/device_view.hpp"
#include "doctor/rules/not_examined.hpp"
#include "doctor/timeline/active_steps.hpp"

#include <penstock/device/device_tuning.hpp>
#include <penstock/transfer/feed_model.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace penstock {

namespace {

constexpr double kHigh = 1.0 / 3;     // of a step: half as many steps again
constexpr double kMedium = 1.0 / 11;  // a tenth as many again
constexpr double kStarving = 0.05;    // of a step
constexpr TraceTime kAtOnce = 10'000;
constexpr std::uint64_t kLargeCopy = 1 << 20;

struct NamedRule {
  std::string_view id;
  Rule rule;
};
constexpr auto kRules = std::to_array<NamedRule>({{"waiting-for-data", find_waiting_for_data},
                                                  {"host-work", find_host_work},
                                                  {"pageable-copies", find_pageable_copies},
                                                  {"blocking-copies", find_blocking_copies},
                                                  {"exposed-copies", find_exposed_copies},
                                                  {"default-stream-waits", find_default_stream_waits},
                                                  {"small-copies", find_small_copies},
                                                  {"widened-copies", find_widened_copies},
                                                  {"same-data-again", find_same_data_again},
                                                  {"round-trips", find_round_trips},
                                                  {"contended-copies", find_contended_copies},
                                                  {"far-memory", find_far_memory},
                                                  {"synchronizations", find_synchronizations},
                                                  {"pinning", find_pinning},
                                                  {"device-allocations", find_device_allocations}});

constexpr auto kIds = [] {
  std::array<std::string_view, kRules.size()> ids;
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = kRules[i].id;
  return ids;
}();

/// The change in C++, and with penstock. Rules that are not here find nothing in compiled programs, have no
/// change, or tell it themselves.
struct CompiledChange {
  std::string_view id;
  std::string_view change;
  std::string_view penstock_change;
};
constexpr auto kCompiledChanges = std::to_array<CompiledChange>(
    {{"pageable-copies",
      "cudaMallocHost(&batch, bytes) once; cudaMemcpyAsync(x, batch, bytes, cudaMemcpyHostToDevice, stream)",
      "penstock::TransferEngine engine(device); stream.wait(engine.copy(x, batch, bytes))"},
     {"blocking-copies", "cudaMemcpyAsync in place of cudaMemcpy, and no synchronization behind it",
      "stream.wait(engine.copy(x, batch, bytes))"},
     {"exposed-copies", "copy the next batch on a stream of its own while this one is used",
      "penstock::Loader loader(dataset, device, options); while (auto batch = loader.next(stream)) ..."},
     {"default-stream-waits",
      "cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking); copy the next batch there, and let events "
      "order the two. nvcc --default-stream per-thread also does without the default stream",
      "penstock::Loader loader(dataset, device, options); while (auto batch = loader.next(stream)) ..."},
     {"small-copies", "put the pieces side by side in one pinned buffer, and copy that",
      "engine.copy_pieces(pieces, penstock::CopyDirection::h2d)"},
     {"widened-copies", "copy the narrow values, and widen them in a kernel",
      "penstock::Loader loader(dataset, device, {.fields = {{.to = penstock::DType::float32}}})"},
     {"same-data-again", "copy it once, before the loop",
      "penstock::Loader loader(dataset, device, {.residency = penstock::Residency::parse(\"auto\")})"},
     {"round-trips", "compute it on the GPU", ""},
     {"contended-copies",
      "call the copy that is needed first before the large one, or make that in parts of some MiB",
      "penstock::Loader loader(dataset, device, options); while (auto batch = loader.next(stream)) ..."},
     {"waiting-for-data", "loader.stats()   says what limits the loader", ""},
     {"synchronizations", "keep values on the GPU, and read them every 100 steps", ""},
     {"pinning", "allocate pinned buffers once, before the loop", "penstock::make_pinned_pool(device)"},
     {"device-allocations", "allocate buffers once, before the loop; or cudaMallocAsync and cudaFreeAsync",
      "penstock::make_device_pool(device)"}});

void speak_of_compiled_code(Finding& finding) {
  for (const CompiledChange& known : kCompiledChanges) {
    if (known.id != finding.id) continue;
    finding.change = known.change;
    finding.penstock_change = known.penstock_change;
  }
}

/// The best rate of large pinned copies to the device, 0 if there are none.
double best_pinned_rate(const std::vector<ViewedCopy>& copies) {
  double best = 0;
  for (const ViewedCopy& viewed : copies) {
    const TimelineCopy& copy = *viewed.copy;
    const double seconds = static_cast<double>(copy.time.end - copy.time.begin) * 1e-9;
    if (copy.direction != CopyDirection::h2d || copy.source != MemoryKind::pinned) continue;
    if (copy.bytes >= kLargeCopy && seconds > 0)
      best = std::max(best, static_cast<double>(copy.bytes) / seconds);
  }
  return best;
}

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
    if (copy.direction == CopyDirection::d2d) continue;
    if (copy.time.begin < window.begin || copy.time.begin >= window.end) continue;
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

/// True if the change leaves fewer bytes to copy.
bool moves_less(std::string_view id) {
  return id == "widened-copies" || id == "same-data-again" || id == "round-trips";
}

/// Seconds of a step below which no feed comes: its kernels, beside its input over the link. The model of a
/// feed without costs other than the link's. Without a profile, only the kernels are known.
double least_step(const DeviceView& view) {
  const double kernels = view.account.per_step(view.account.working());
  double bytes = 0;
  for (const ViewedCopy& viewed : view.copies) {
    if (viewed.copy->direction == CopyDirection::h2d) bytes += static_cast<double>(viewed.copy->bytes);
  }
  const auto input = static_cast<std::size_t>(bytes / view.steps());
  if (view.profile == nullptr || input == 0) return kernels;
  DeviceTuning free;
  free.feeding = {.batch_seconds = 0,
                  .field_seconds = 0,
                  .copy_seconds = 0,
                  .part_seconds = 0,
                  .enqueue_seconds = 0,
                  .step_seconds = 0};
  ModelledFeed feed;
  feed.fields = {{.path = GatherPath::copy_engine,
                  .sample_bytes = input,
                  .delivered_bytes = input,
                  .in_sequence = true}};
  feed.batch = 1;
  feed.step_seconds = kernels;
  return predict_feed(*view.profile, free, feed).seconds;
}

/// Bounds the gain by the critical path, and judges it. `fed` is the least step of a feed of the same bytes.
void judge(Finding& finding, const DeviceAccount& account, double fed) {
  const double step = account.step_seconds();
  const double kernels = account.per_step(account.working());
  const double most = step - (moves_less(finding.id) ? kernels : fed);
  finding.device = account.device;
  finding.gain.high = std::clamp(finding.gain.high, 0.0, std::max(0.0, most));
  finding.gain.low = std::clamp(finding.gain.low, 0.0, finding.gain.high);
  // If the GPU waits for the loader, time saved elsewhere may be spent waiting.
  if (account.share(DevicePart::waiting_for_data) >= kStarving) finding.gain.low = 0;
  const double middle = (finding.gain.low + finding.gain.high) / 2;
  finding.severity = middle >= kHigh * step                ? Severity::high
                     : finding.gain.high >= kMedium * step ? Severity::medium
                                                           : Severity::note;
}

/// True if the recording tells less of why a device idles.
bool tells_less(const HostActivity& a, const HostActivity& b) {
  return std::pair(a.observed, !a.waits.empty()) < std::pair(b.observed, !b.waits.empty());
}

}  // namespace

std::span<const std::string_view> finding_ids() noexcept { return kIds; }

std::string_view severity_name(Severity severity) noexcept {
  switch (severity) {
    case Severity::high:
      return "high";
    case Severity::medium:
      return "medium";
    case Severity::note:
      return "note";
  }
  return "note";
}

Diagnosis diagnose_timeline(const Timeline& timeline, const DiagnosisOptions& options) {
  Diagnosis diagnosis;
  const TimeSpan window = account_window(timeline);
  const std::vector<KnownCall> calls = find_call_sites(timeline);
  const std::vector<ViewedCopy> copies = view_copies(timeline, window, calls);
  const std::set<const KnownCall*> of_inputs = waits_for_inputs(copies);
  const std::vector<NotExamined> left_out = not_recorded(timeline);
  const std::vector<std::uint16_t> devices = active_devices(timeline);
  std::optional<HostActivity> least_known;
  std::vector<NotExamined> unclear;
  for (const std::uint16_t device : devices) {
    const HostActivity host = host_activity(timeline, device);
    const SpanIndex waits(host.waits);
    const SpanIndex explained(merge(host.waits, host.starts));
    const std::vector<QuietTime> own_work = quiet_times(timeline, host, window);
    const std::vector<bool> host_steps = active_steps_of_threads(timeline, host.launches, window);
    DeviceActivity activity = device_activity(timeline, device, window);
    const DeviceAccount account = device_account(timeline, device, window, activity, host);
    const SpanIndex kernels(std::move(activity.kernels));
    const SpanIndex busy(std::move(activity.busy));
    DeviceView view{timeline,
                    host,
                    account,
                    kernels,
                    busy,
                    waits,
                    explained,
                    own_work,
                    calls,
                    of_inputs,
                    host_steps,
                    active_steps_of_device(timeline, device, window),
                    copies_of(copies, device),
                    options.h2d_ceiling,
                    options.profile};
    mark_held_copies(view);
    const double fed = least_step(view);
    if (view.h2d_ceiling <= 0) view.h2d_ceiling = best_pinned_rate(view.copies);
    diagnosis.h2d_ceiling = std::max(diagnosis.h2d_ceiling, view.h2d_ceiling);
    for (const auto& [id, rule] : kRules) {
      if (is_among(left_out, id)) continue;
      std::optional<Finding> finding = rule(view);
      if (!finding) continue;
      finding->id = id;
      judge(*finding, account, fed);
      if (timeline.is_compiled) speak_of_compiled_code(*finding);
      diagnosis.findings.push_back(std::move(*finding));
    }
    if (auto others = waits_of_other_threads(view); others && !is_among(left_out, "synchronizations")) {
      if (devices.size() > 1) others->text = fmt::format("GPU {}: {}", device, others->text);
      unclear.push_back(std::move(*others));
    }
    diagnosis.accounts.push_back(account);
    if (!least_known || tells_less(host, *least_known)) least_known = host;
  }
  const auto order = [](const Finding& finding) {
    return std::tuple(-(finding.gain.low + finding.gain.high), finding.device, std::string_view(finding.id));
  };
  std::sort(diagnosis.findings.begin(), diagnosis.findings.end(),
            [&order](const Finding& a, const Finding& b) { return order(a) < order(b); });
  if (!least_known) least_known = host_activity(timeline, 0);
  diagnosis.not_examined = not_examined(timeline, *least_known, window);
  std::ranges::move(unclear, std::back_inserter(diagnosis.not_examined));
  return diagnosis;
}

}  // namespace penstock
