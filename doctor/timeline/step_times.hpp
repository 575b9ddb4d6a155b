#pragma once

#include "doctor/timeline/timeline.hpp"

#include <cstddef>
#include <optional>
#include <vector>

namespace penstock {

/// How long the steps of a recording take, in seconds: each from its beginning to that of the next one, and
/// the last to its end.
struct StepTimes {
  double tenth = 0;  ///< a tenth of the steps takes less
  double median = 0;
  double nine_tenths = 0;  ///< a tenth of the steps takes more
  /// The true mean lies this near to the measured one, with about 95 % confidence: half of the width of the
  /// interval by the method of batch means. Neighbouring steps depend on each other, so ten batches of
  /// neighbours are compared, by Student's t of 9 degrees of freedom (Law, Simulation Modeling and Analysis,
  /// section 9.5.3). If each step depends on many before it, the confidence is less. Nothing is known of what
  /// slowed the whole recording. nullopt: there are fewer than kStepsForError steps.
  std::optional<double> mean_error;
};

/// Fewer steps tell nothing of how they vary.
inline constexpr std::size_t kStepsToCompare = 10;
inline constexpr std::size_t kStepsForError = 40;

/// nullopt if there are fewer than kStepsToCompare steps. They are in the order of their beginnings.
[[nodiscard]] std::optional<StepTimes> step_times(const std::vector<TimeSpan>& steps);

}  // namespace penstock
