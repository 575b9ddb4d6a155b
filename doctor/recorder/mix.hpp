#pragma once

#include <cstdint>

namespace penstock::recorder {

/// Adds a value to a hash.
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t hash, std::uint64_t value) noexcept {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

}  // namespace penstock::recorder
