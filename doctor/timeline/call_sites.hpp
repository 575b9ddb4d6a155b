#pragma once

#include "doctor/timeline/timeline.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace penstock {

inline constexpr std::uint32_t kNoName = UINT32_MAX;
inline constexpr std::size_t kNoCall = SIZE_MAX;

/// What was on a thread's stack when it made a call.
struct CallSite {
  std::uint32_t frame = kNoName;  ///< the innermost frame: an index into the timeline's names
  std::uint32_t op = kNoName;     ///< the outermost operator within that frame
  TimeSpan op_time;               ///< of that operator
  bool in_wait = false;           ///< in `next()` of a DataLoader
};

/// A call, and where it was made.
struct KnownCall {
  std::size_t call = kNoCall;  ///< index into the timeline's calls
  CallSite site;
};
/// All calls but launches, in the timeline's order.
[[nodiscard]] std::vector<KnownCall> find_call_sites(const Timeline& timeline);

}  // namespace penstock
