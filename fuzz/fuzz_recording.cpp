#include "doctor/read/recording.hpp"
#include "doctor/rules/findings.hpp"

#include <penstock/core/error.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <span>

// Reading either throws Error, or gives a timeline whose account adds up, whose steps do not overlap, and to
// which all rules can be applied.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto read = [&](std::uint64_t offset, std::span<std::byte> destination) {
    const std::size_t count =
        std::min<std::uint64_t>(size - std::min<std::uint64_t>(size, offset), destination.size());
    if (count > 0) std::memcpy(destination.data(), data + offset, count);
    return count;
  };
  try {
    const penstock::Timeline timeline = penstock::parse_recording(read, "fuzz.penstock").timeline;
    for (std::size_t i = 1; i < timeline.steps.size(); ++i) {
      if (timeline.steps[i].begin < timeline.steps[i - 1].end) std::abort();
    }
    for (const auto& account : penstock::diagnose_timeline(timeline).accounts) {
      const auto sum = std::accumulate(account.parts.begin(), account.parts.end(), penstock::TraceTime{0});
      if (sum != account.total()) std::abort();
    }
  } catch (const penstock::Error&) {
  }
  return 0;
}
