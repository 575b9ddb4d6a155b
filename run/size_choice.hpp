#pragma once

#include "run/figures.hpp"

namespace penstock::run {

/// What is done with a copy of a size class.
enum class SizeChoice : std::uint8_t {
  compare,  ///< the driver makes it, for comparison
  take,
  leave,  ///< the driver is as fast
};

/// From this size on, a copy gains on every machine that was measured.
inline constexpr std::size_t kCertainGain = std::size_t{16} << 20;

/// Chooses by the copies of the class so far: the first ones show what the driver gives, the next ones what
/// penstock gives.
[[nodiscard]] SizeChoice choose(const SizeFigures& figures, std::size_t bytes) noexcept;

}  // namespace penstock::run
