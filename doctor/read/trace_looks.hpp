#pragma once

#include "doctor/timeline/timeline.hpp"

namespace penstock {

/// Looks at the stacks of a trace as a recorder looks at the threads of a program: where each thread that
/// calls CUDA is, every 0.1 ms in which it calls nothing for 1 ms at least. `timeline` is sorted.
void look_at_stacks(Timeline& timeline);

}  // namespace penstock
