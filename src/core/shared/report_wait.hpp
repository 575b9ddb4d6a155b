#pragma once

#include <chrono>

namespace penstock {

/// Tells the recorder of `penstock doctor`, if it records this process, that the calling thread has waited so
/// long, until now, for a batch of a loader. Such a wait makes no call of CUDA, so nothing else shows it.
/// Threads of the library wait for nobody's data, and tell nothing. Hold no lock: the recorder looks at the
/// stack. Thread-safe.
void report_wait(std::chrono::nanoseconds waited) noexcept;

}  // namespace penstock
