#pragma once

#include <cstdint>

namespace penstock {

/// Counts the forks between the first process and this one since this code was loaded. An object that owns
/// threads or driver state remembers the value of its construction. If the value differs later, the object is
/// in a forked child, without its threads, and must not call the driver. Costs one relaxed load. Thread-safe.
[[nodiscard]] std::uint64_t fork_generation() noexcept;

/// Changes with each fork of this process, just before it and just after: whoever finds the value that it had
/// earlier knows that no other process has inherited what came to be in between. Thread-safe.
[[nodiscard]] std::uint64_t fork_count() noexcept;
/// Whether fork_count counts what the calling thread forks from now on. It does at first. For children that
/// are known to use nothing of what they inherit.
void count_forks(bool counted) noexcept;

}  // namespace penstock
