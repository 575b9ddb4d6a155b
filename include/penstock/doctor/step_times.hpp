#pragma once

#include <penstock/doctor/timeline.hpp>

#include <cstddef>
#include <optional>
#include <vector>

namespace penstock {

/// How long the steps of a recording take, in seconds: each from its beginning to that of the next one, and
/// the last to its end.
struct StepTimes {
  double tenth = 0;  ///< a tenth of the steps takes no longer
  double median = 0;
  double nine_tenths = 0;  ///< nine tenths of the steps take no longer
  /// The true mean lies this near to the measured one, with 95 % confidence: half of the width of the
  /// interval by the method of batch means. Neighbouring steps depend on each other, so ten batches of
  /// neighbours are compared, by Student's t of 9 degrees of freedom (Law, Simulation Modeling and Analysis,
  /// section 9.5.3). Nothing is known of what slowed the whole recording.
  double mean_error = 0;
};

/// Fewer steps tell nothing of how they vary.
inline constexpr std::size_t kStepsToCompare = 10;

/// nullopt if there are fewer than kStepsToCompare steps. They are in the order of their beginnings.
[[nodiscard]] std::optional<StepTimes> step_times(const std::vector<TimeSpan>& steps);

}  // namespace penstock
