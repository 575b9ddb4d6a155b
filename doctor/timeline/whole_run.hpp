#pragma once

#include "doctor/timeline/timeline.hpp"

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

namespace penstock {

/// Sums over records of one kind.
struct RunSum {
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;  ///< 0: there are none, or they are not known
  double seconds = 0;

  RunSum& operator+=(const RunSum& other) noexcept {
    count += other.count;
    bytes += other.bytes;
    seconds += other.seconds;
    return *this;
  }
};

/// Calls of one kind, or waits for a loader, from one stack. Threads of Python are looked at now and then, so
/// their waits are those that were seen.
struct RunLine {
  std::optional<std::uint32_t> name;  ///< index into the timeline's names; nullopt: no place is recorded
  std::string_view call;              ///< call_kind_name(), or the loader's name
  RunSum sum;
};

/// Copies of a device between two kinds of memory.
struct RunCopies {
  std::uint16_t device = 0;
  CopyDirection direction = CopyDirection::h2d;
  std::optional<MemoryKind> source;  ///< nullopt: the recording does not tell it
  std::optional<MemoryKind> destination;
  friend auto operator<=>(const RunCopies&, const RunCopies&) = default;
};

/// Other work of a device.
struct RunWork {
  std::uint16_t device = 0;
  bool is_set = false;  ///< memory sets, and not kernels
  friend auto operator<=>(const RunWork&, const RunWork&) = default;
};

/// Totals of a whole run of which the timeline has only the last part.
struct WholeRun {
  double seconds = 0;           ///< from the beginning of the first record to the end of the last
  double timeline_seconds = 0;  ///< those of them that the timeline covers
  std::vector<RunLine> lines;   ///< in no order; stacks of one place are not joined
  std::map<RunCopies, RunSum> copies;
  std::map<RunWork, RunSum> work;
  RunSum other_calls;  ///< those for which the recording's table had no room
  RunSum other_waits;
  RunSum other_copies;
  RunSum other_work;
};

}  // namespace penstock
