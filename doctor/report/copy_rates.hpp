#pragma once

#include "doctor/timeline/timeline.hpp"

#include <penstock/device/memory_kind.hpp>

#include <cstdint>
#include <optional>
#include <vector>

namespace penstock {

/// Copies between host and device of about the same size and rate.
struct CopyRate {
  CopyDirection direction = CopyDirection::h2d;
  std::optional<MemoryKind> host;  ///< kind of the host's memory; nullopt: the recording does not tell it
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;  ///< of all of them
  double seconds = 0;       ///< their times added up
};

/// The copies of a timeline that take any time, within its marked steps: in one entry if size and rate are
/// the same to a quarter of an octave. At most 2000 entries, those that take the most time. The order is that
/// of directions, kinds, sizes and rates.
[[nodiscard]] std::vector<CopyRate> copy_rates(const Timeline& timeline);

}  // namespace penstock
