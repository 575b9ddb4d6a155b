#include "doctor/rules/findings.hpp"

#include "doctor/rules/not_examined.hpp"
#include "doctor/rules/rule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <tuple>
#include <utility>

namespace penstock {

namespace {

constexpr double kHigh = 1.0 / 3;     // of a step: half as many steps again
constexpr double kMedium = 1.0 / 11;  // a tenth as many again
constexpr double kStarving = 0.05;    // of a step

/// Seconds of a step below which no feed comes: its kernels, beside its input over the link. Without a
/// profile, only the kernels are known.
double least_step(const DeviceView& view) {
  const double kernels = view.account.per_step(view.account.working());
  double bytes = 0;
  for (const ViewedCopy& viewed : view.copies) {
    if (viewed.copy->direction == CopyDirection::h2d) bytes += static_cast<double>(viewed.copy->bytes);
  }
  const auto input = static_cast<std::size_t>(bytes / view.steps());
  if (view.profile == nullptr || input == 0) return kernels;
  return std::max(kernels, view.profile->predict(input, 1, {MemoryKind::pinned, MemoryKind::device}));
}

/// Bounds the gain by the critical path, and judges it. `fed` is the least step of a feed of the same bytes.
void judge(Finding& finding, const Rule& rule, const DeviceAccount& account, double fed) {
  const double step = account.step_seconds();
  const double kernels = account.per_step(account.working());
  const double most = step - (rule.moves_less ? kernels : fed);
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

/// Says what to do, unless the finding has advice of its own. Compiled programs get theirs in any case.
void advise(Finding& finding, const Rule& rule, bool is_compiled) {
  const bool for_compiled = is_compiled && rule.compiled_advice;
  if (!for_compiled && !finding.change.empty()) return;
  const Advice& advice = for_compiled ? *rule.compiled_advice : rule.advice;
  finding.change = advice.change;
  finding.penstock_change = advice.with_penstock;
}

/// What the rules find on one device, of those that can be asked.
void add_findings(Diagnosis& diagnosis, const DeviceView& view, const std::vector<NotExamined>& left_out) {
  const double fed = least_step(view);
  for (const Rule& rule : all_rules()) {
    if (find_not_examined(left_out, rule.id) != nullptr) continue;
    std::optional<Finding> finding = rule.find(view);
    if (!finding) continue;
    finding->id = rule.id;
    judge(*finding, rule, view.account, fed);
    advise(*finding, rule, view.timeline.is_compiled);
    diagnosis.findings.push_back(std::move(*finding));
  }
}

/// By what they gain, the most first.
void sort_findings(std::vector<Finding>& findings) {
  const auto order = [](const Finding& finding) {
    return std::tuple(-(finding.gain.low + finding.gain.high), finding.device, std::string_view(finding.id));
  };
  std::sort(findings.begin(), findings.end(),
            [&order](const Finding& a, const Finding& b) { return order(a) < order(b); });
}

/// True if the recording tells less of why a device idles.
bool tells_less(const HostActivity& a, const HostActivity& b) {
  return std::pair(a.observed, !a.waits.empty()) < std::pair(b.observed, !b.waits.empty());
}

}  // namespace

std::span<const std::string_view> finding_ids() {
  static const std::vector<std::string_view> ids = [] {
    std::vector<std::string_view> all;
    for (const Rule& rule : all_rules()) all.push_back(rule.id);
    return all;
  }();
  return ids;
}

const DeviceAccount* Diagnosis::account(std::uint16_t device) const {
  const auto found = std::ranges::find(accounts, device, &DeviceAccount::device);
  return found != accounts.end() ? &*found : nullptr;
}

std::string_view severity_name(Severity severity) noexcept {
  constexpr std::array<std::string_view, 3> kNames = {"high", "medium", "note"};
  return kNames[static_cast<std::size_t>(severity)];
}

Diagnosis diagnose_timeline(const Timeline& timeline, const LinkProfile* profile) {
  Diagnosis diagnosis;
  const TimelineView shared(timeline);
  const std::vector<NotExamined> left_out = not_recorded(timeline);
  const std::vector<std::uint16_t> devices = active_devices(timeline);
  std::optional<HostActivity> least_known;
  std::vector<NotExamined> unclear;
  for (const std::uint16_t device : devices) {
    DeviceView view = view_device(shared, device, profile);
    add_findings(diagnosis, view, left_out);
    if (auto others = waits_of_other_threads(view);
        others && find_not_examined(left_out, others->names.front()) == nullptr) {
      if (devices.size() > 1) others->text = fmt::format("GPU {}: {}", device, others->text);
      unclear.push_back(std::move(*others));
    }
    diagnosis.accounts.push_back(std::move(view.account));
    if (!least_known || tells_less(view.host, *least_known)) least_known = std::move(view.host);
  }
  sort_findings(diagnosis.findings);
  if (!least_known) least_known = host_activity(timeline, 0);
  diagnosis.not_examined = not_examined(timeline, *least_known, shared.window);
  std::ranges::move(unclear, std::back_inserter(diagnosis.not_examined));
  return diagnosis;
}

}  // namespace penstock
