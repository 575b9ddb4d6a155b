#pragma once

#include "doctor/timeline/call_sites.hpp"
#include "doctor/timeline/timeline.hpp"

#include <cstdint>
#include <vector>

namespace penstock {

/// A time in which a recorder saw a thread in a loader's next().
struct SeenWait {
  TimeSpan time;
  std::uint32_t frame = kNoName;
  std::uint16_t thread = 0;
  std::uint8_t loader = 0;  ///< index into recording::kLoaders
};

/// The waits of which these are parts, in the order of threads, and of time within each. Between two times
/// the thread waited as well, unless it called CUDA. It also did from its last call on, and until its next
/// one, unless it was seen elsewhere in between: that tells only a recording with looks. `timeline` is
/// sorted. A pure function.
[[nodiscard]] std::vector<SeenWait> join_waits(std::vector<SeenWait> seen, const Timeline& timeline);

}  // namespace penstock
