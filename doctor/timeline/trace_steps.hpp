#pragma once

#include "doctor/timeline/timeline.hpp"

#include <vector>

namespace penstock {

// What the host's part of a trace tells of steps. A recording sees a loader's next() only by chance.

/// From one batch that a thread which launches kernels draws from a loader to the next one; of batches
/// between which nothing is called, from the first. Empty: there are fewer than five, or it is no trace.
/// `timeline` is sorted.
[[nodiscard]] std::vector<TimeSpan> steps_of_draws(const Timeline& timeline);

/// True if there are more draws in these steps than a step has loaders: they are epochs.
[[nodiscard]] bool are_epochs(const Timeline& timeline, const std::vector<TimeSpan>& steps,
                              const std::vector<TimeSpan>& draws);

/// True if these may be parts of one step, such as the layers of a model or copies of its weights: no kernel,
/// or hardly any copy between host and device, wait or marked range begins in them, and twice as much of the
/// trace lies outside. False for a recording, which begins with the program.
[[nodiscard]] bool may_be_parts(const Timeline& timeline, const std::vector<TimeSpan>& steps);

}  // namespace penstock
