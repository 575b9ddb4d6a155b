#include "doctor/report/gain_comparison.hpp"

#include "cli/shared/terminal.hpp"
#include "doctor/rules/not_examined.hpp"
#include "doctor/rules/rule.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace penstock::cli {

namespace {

using Json = nlohmann::ordered_json;

constexpr double kUnlikeKernels = 1.5;

const Finding* find(const Diagnosis& diagnosis, std::string_view id, std::uint16_t device) {
  for (const Finding& finding : diagnosis.findings) {
    if (finding.id == id && finding.device == device) return &finding;
  }
  return nullptr;
}

bool was_examined(const Diagnosis& diagnosis, std::string_view id) {
  const Rule* const rule = find_rule(id);
  return (rule != nullptr && rule->may_be_unexamined) ||
         find_not_examined(diagnosis.not_examined, id) == nullptr;
}

std::vector<FindingChange> finding_changes(const Diagnosis& before, const Diagnosis& after,
                                           std::uint16_t device) {
  std::vector<FindingChange> changes;
  for (const Finding& finding : before.findings) {
    if (finding.device != device) continue;
    FindingChange change{finding.id, finding.gain, std::nullopt};
    change.gone = change.examined = was_examined(after, finding.id);
    if (const Finding* const left = find(after, finding.id, device)) {
      change.after = left->gain;
      change.examined = true;
      const bool gained = gains(finding, step_of(before, device));
      change.gone = gained && !gains(*left, step_of(after, device));
      change.less = gained && !change.gone && 2 * left->gain.high < finding.gain.high;
    }
    changes.push_back(std::move(change));
  }
  for (const Finding& finding : after.findings) {
    const bool is_known = find(before, finding.id, device) != nullptr;
    if (finding.device != device || is_known || !gains(finding, step_of(after, device))) continue;
    changes.push_back({.id = finding.id,
                       .before = {},
                       .after = finding.gain,
                       .examined = was_examined(before, finding.id)});
  }
  return changes;
}

std::optional<GainRange> range_of_changes(const std::vector<FindingChange>& changes,
                                          const DeviceAccount& account) {
  std::optional<GainRange> range;
  for (const FindingChange& change : changes) {
    if (!change.gone && !change.less) continue;
    if (!range) range.emplace();
    if (change.gone) range->low = std::max(range->low, change.before->low);
    range->high += change.before->high - (change.less ? change.after->high : 0);
  }
  if (!range) return range;
  const double without_kernels = account.step_seconds() - account.per_step(account.working());
  range->high = std::max(range->low, std::min(range->high, without_kernels));
  return range;
}

bool may_change_kernels(const FindingChange& change) {
  const Rule* const rule = find_rule(change.id);
  return (change.gone || !change.before) && rule != nullptr && rule->changes_kernels;
}

/// Kernels of a step before and after, if steps are not the same work.
std::optional<std::pair<double, double>> unlike_kernels(const DeviceAccount& before,
                                                        const DeviceAccount& after,
                                                        const std::vector<FindingChange>& changes) {
  if (before.steps == 0 || after.steps == 0 || !before.has_kernels || !after.has_kernels) return std::nullopt;
  if (std::ranges::any_of(changes, may_change_kernels)) return std::nullopt;
  const std::pair kernels(static_cast<double>(before.kernels) / static_cast<double>(before.steps),
                          static_cast<double>(after.kernels) / static_cast<double>(after.steps));
  const auto [fewer, more] = std::minmax({kernels.first, kernels.second});
  if (more <= kUnlikeKernels * fewer + 1) return std::nullopt;
  return kernels;
}

/// nullopt: not known of both.
std::optional<double> error_of(const std::optional<StepTimes>& before,
                               const std::optional<StepTimes>& after) {
  if (!before || !after || !before->mean_error || !after->mean_error) return std::nullopt;
  return std::hypot(*before->mean_error, *after->mean_error);
}

GainComparison compare(const TraceReport& before, const DeviceAccount& account, const TraceReport& after,
                       const DeviceAccount& changed) {
  GainComparison comparison;
  comparison.device = account.device;
  comparison.findings = finding_changes(before.diagnosis, after.diagnosis, account.device);
  comparison.unlike_kernels = unlike_kernels(account, changed, comparison.findings);
  comparison.by_step = account.steps > 0 && changed.steps > 0 && !comparison.unlike_kernels;
  comparison.before = comparison.by_step ? account.step_seconds() : before.recorded_seconds;
  comparison.after = comparison.by_step ? changed.step_seconds() : after.recorded_seconds;
  if (comparison.by_step) comparison.error = error_of(account.step_times, changed.step_times);
  comparison.predicted = range_of_changes(comparison.findings, account);
  if (!comparison.predicted) return comparison;
  GainRange& range = *comparison.predicted;
  if (!comparison.by_step && account.steps > 0) {
    range.low *= static_cast<double>(account.steps);
    range.high *= static_cast<double>(account.steps);
  }
  const double nothing = kNothingToGain * comparison.before;
  const auto is_in_range = [&](double allowance) {
    const double gained = comparison.gained();
    return gained >= range.low - allowance && gained <= range.high + allowance;
  };
  comparison.in_range = is_in_range(nothing);
  comparison.uncertain = !comparison.in_range && is_in_range(nothing + comparison.error.value_or(0));
  return comparison;
}

std::string range_text(const GainRange& range) {
  return range.low > 0 ? fmt::format("{} to {}", seconds_text(range.low), seconds_text(range.high))
                       : fmt::format("at most {}", seconds_text(range.high));
}

std::string change_of_time_text(double gained) {
  return fmt::format("{} {}", seconds_text(std::abs(gained)), gained < 0 ? "more" : "less");
}

std::string variation_text(const GainComparison& comparison) {
  return fmt::format("steps vary: with about 95 % confidence, a step truly takes from {} to {}",
                     change_of_time_text(comparison.gained() - *comparison.error),
                     change_of_time_text(comparison.gained() + *comparison.error));
}

std::string prediction_text(const GainComparison& comparison) {
  if (!comparison.predicted) return "predicted: nothing, as no finding is gone";
  const std::string_view verdict = comparison.in_range                                ? "as predicted"
                                   : comparison.gained() > comparison.predicted->high ? "more than predicted"
                                                                                      : "less than predicted";
  const bool is_part = std::ranges::any_of(comparison.findings, &FindingChange::less);
  const std::string_view unless =
      ", unless that is because steps vary: let both run more of them, and nothing beside them";
  return fmt::format("predicted for what is gone{}: {}. The gain is {}{}.", is_part ? " or less" : "",
                     range_text(*comparison.predicted), verdict, comparison.uncertain ? unless : "");
}

std::string why_not_by_step(const GainComparison& comparison) {
  const std::string why =
      comparison.unlike_kernels
          ? fmt::format("Their steps are not the same work: of {:.3g} kernels before, and of {:.3g} now.",
                        comparison.unlike_kernels->first, comparison.unlike_kernels->second)
          : "Steps were not found in both programs.";
  return why + " Whole recordings tell a gain only if both programs do the same work.";
}

std::string change_text(const FindingChange& change) {
  if (!change.before) {
    return fmt::format("{}: {}, {}", change.id, change.examined ? "new" : "found, but not examined before",
                       range_text(*change.after));
  }
  return fmt::format("{}: {}", change.id,
                     !change.examined ? "not examined"
                     : change.gone    ? "gone"
                     : change.less    ? fmt::format("less, {} left", range_text(*change.after))
                                      : "still found");
}

Json range_json(const std::optional<GainRange>& range) {
  if (!range) return nullptr;
  return {{"low", range->low}, {"high", range->high}};
}

}  // namespace

bool GainComparison::varies() const noexcept { return error && *error > kNothingToGain * before; }

std::vector<GainComparison> compare_gains(const TraceReport& before, const TraceReport& after) {
  std::vector<GainComparison> comparisons;
  for (const DeviceAccount& account : before.diagnosis.accounts) {
    for (const DeviceAccount& changed : after.diagnosis.accounts) {
      if (changed.device == account.device) comparisons.push_back(compare(before, account, after, changed));
    }
  }
  return comparisons;
}

std::vector<std::string> gain_comparison_lines(const GainComparison& comparison) {
  const double gained = comparison.gained();
  std::vector<std::string> lines{
      fmt::format("GPU {}: {} {} in place of {}: {}, {}", comparison.device,
                  comparison.by_step ? "a step takes" : "the whole recording takes",
                  seconds_text(comparison.after), seconds_text(comparison.before),
                  change_of_time_text(gained), share_text(std::abs(gained), comparison.before))};
  if (!comparison.by_step) lines.push_back(why_not_by_step(comparison));
  for (const FindingChange& change : comparison.findings) lines.push_back(change_text(change));
  if (comparison.varies() || comparison.uncertain) lines.push_back(variation_text(comparison));
  lines.push_back(prediction_text(comparison));
  return lines;
}

std::string gain_comparison_text(const GainComparison& comparison, std::size_t columns) {
  std::string text;
  for (const std::string& line : gain_comparison_lines(comparison))
    text += paragraph(line, columns, text.empty() ? 0 : 2, 2);
  return text;
}

Json gain_comparison_json(const GainComparison& comparison) {
  Json findings = Json::array();
  for (const FindingChange& change : comparison.findings) {
    findings.push_back({{"id", change.id},
                        {"gone", change.gone},
                        {"less", change.less},
                        {"new", !change.before && change.examined},
                        {"examined", change.examined},
                        {"gain_seconds_per_step", range_json(change.before)},
                        {"changed_gain_seconds_per_step", range_json(change.after)}});
  }
  return {{"device", comparison.device},
          {"of", comparison.by_step ? "step" : "recording"},
          {"seconds", comparison.before},
          {"changed_seconds", comparison.after},
          {"gained_seconds", comparison.gained()},
          {"error_seconds", comparison.error ? Json(*comparison.error) : Json(nullptr)},
          {"predicted_seconds", range_json(comparison.predicted)},
          {"in_range", comparison.predicted ? Json(comparison.in_range) : Json(nullptr)},
          {"uncertain", comparison.uncertain},
          {"findings", std::move(findings)}};
}

}  // namespace penstock::cli
