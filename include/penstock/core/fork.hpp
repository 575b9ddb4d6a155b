#pragma once

#include <cstdint>

namespace penstock {

/// Counts the forks between the first process and this one since this code was loaded. An object that owns
/// threads or driver state remembers the value of its construction. If the value differs later, the object is
/// in a forked child, without its threads, and must not call the driver. Costs one relaxed load. Thread-safe.
[[nodiscard]] std::uint64_t fork_generation() noexcept;

}  // namespace penstock
