#pragma once

#include <cstdint>

namespace penstock {

/// Counts the forks between the first process and this one since this code was loaded. An object that owns
/// threads or driver state remembers the value of its construction. If the value differs later, the object is
/// in a forked child, without its threads, and must not call the driver. Costs one relaxed load. Thread-safe.
[[nodiscard]] std::uint64_t fork_generation() noexcept;

/// How often this process has forked. Each count changes just before a fork and just after it: whoever finds
/// the counts that he had earlier knows that no other process has inherited what came to be in between.
struct ForkCounts {
  std::uint64_t workers = 0;  ///< by threads that had said so: see forks_are_workers
  std::uint64_t others = 0;

  friend bool operator==(const ForkCounts&, const ForkCounts&) = default;
};
/// Thread-safe.
[[nodiscard]] ForkCounts fork_counts() noexcept;
/// Says whether the calling thread forks worker processes from now on, whose end is known. Returns what it
/// had said before; at first, that it does not.
bool forks_are_workers(bool workers) noexcept;

}  // namespace penstock
