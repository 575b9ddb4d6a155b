#pragma once

#include "doctor/report/trace_report.hpp"
#include "doctor/rules/findings.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::cli {

/// A finding of a program, and whether a changed program still has it; or one that only the changed program
/// has, and that is worth a change. Gains are seconds of a step.
struct FindingChange {
  std::string id;
  std::optional<GainRange> before;  ///< nullopt: it was not found
  std::optional<GainRange> after;   ///< nullopt: it is not found
  bool gone = false;                ///< not found, or no longer worth a change
  bool less = false;                ///< found still, but the most that it gains is less than half of before
  bool examined = true;             ///< false: the program that does not have it could not be examined for it
};

/// What a change to a program gained on one GPU, beside what the findings that it removed had predicted.
struct GainComparison {
  std::uint16_t device = 0;
  /// True: times are of a step. False: steps were not found in both, or are not the same work, and times are
  /// of the whole recordings.
  bool by_step = false;
  /// Kernels of a step if that is why; what is gone does not explain that their numbers differ.
  std::optional<std::pair<double, double>> unlike_kernels;
  double before = 0;  ///< seconds
  double after = 0;   ///< seconds
  std::vector<FindingChange> findings;
  std::optional<GainRange> predicted;  ///< seconds; nullopt: no finding is gone, or less
  /// True if the gain lies in the predicted range, or no farther from it than what the doctor calls nothing.
  bool in_range = false;
  /// Seconds by which the true gain may be larger or smaller, with about 95 % confidence, as steps vary: see
  /// StepTimes. nullopt: not known.
  std::optional<double> error;
  /// True if the gain is not in the predicted range, but so near to it that it may be, by `error`.
  bool uncertain = false;

  [[nodiscard]] double gained() const noexcept { return before - after; }
  /// True if `error` is more than what the doctor calls nothing.
  [[nodiscard]] bool varies() const noexcept;
};

/// Compares each GPU that both reports have. A pure function. The range of several findings that are gone is
/// from the largest of their low ends to the sum of their high ends, at most the time in which no kernel
/// runs: two of them may be the same time. Of findings that are less, what their high ends lost adds to the
/// sum.
[[nodiscard]] std::vector<GainComparison> compare_gains(const TraceReport& before, const TraceReport& after);

/// Lines for people; the first says what was gained.
[[nodiscard]] std::vector<std::string> gain_comparison_lines(const GainComparison& comparison);
/// The same, indented and wrapped.
[[nodiscard]] std::string gain_comparison_text(const GainComparison& comparison, std::size_t columns);
[[nodiscard]] nlohmann::ordered_json gain_comparison_json(const GainComparison& comparison);

}  // namespace penstock::cli
