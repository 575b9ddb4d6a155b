#include "doctor/read/torch_trace.hpp"
#include "doctor/rules/findings.hpp"

#include <penstock/core/error.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <span>

// Reading either throws Error, or gives a timeline whose account adds up, and to which all rules can be
// applied.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::span<const std::uint8_t> left(data, size);
  auto source = [&](std::span<char> destination) {
    const std::size_t count = std::min({left.size(), destination.size(), std::size_t{7}});
    if (count > 0) std::memcpy(destination.data(), left.data(), count);
    left = left.subspan(count);
    return count;
  };
  try {
    const penstock::Timeline timeline = penstock::parse_torch_trace(source, "fuzz.json");
    for (const auto& account : penstock::diagnose_timeline(timeline).accounts) {
      const auto sum = std::accumulate(account.parts.begin(), account.parts.end(), penstock::TraceTime{0});
      if (sum != account.total()) std::abort();
    }
  } catch (const penstock::Error&) {
  }
  return 0;
}
