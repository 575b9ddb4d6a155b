#pragma once

#include <cstdint>

namespace penstock {

/// Counts the forks between the first process and this one, as seen by code that was loaded before them. An
/// object that owns threads or driver state remembers the value from its construction: another value later
/// means that it now lives in a forked child, where its threads do not exist and the driver must not be
/// called. Costs one relaxed load. Thread-safe.
[[nodiscard]] std::uint64_t fork_generation() noexcept;

}  // namespace penstock
