#pragma once

#include "doctor/read/recording_format.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace penstock::recorder {

inline constexpr std::size_t kPieceBytes = recording::kSampleBytes / recording::kSamplePieces;
inline constexpr std::size_t kSampleWords = recording::kSampleBytes / sizeof(std::uint32_t);

/// Pieces from all over the bytes that a copy sends, one after the other.
using Sample = std::uint32_t[kSampleWords];

/// Where in `bytes` bytes a piece of their sample begins: the first at the first of them, the last so that it
/// ends with them. All begin at multiples of 8, as far as `bytes` is one, so that no value is cut.
[[nodiscard]] constexpr std::uint64_t piece_begin(std::uint64_t bytes, std::size_t piece) noexcept {
  const std::uint64_t unit = std::min<std::uint64_t>(bytes & (~bytes + 1), sizeof(double));
  return (bytes - kPieceBytes) / unit * piece / (recording::kSamplePieces - 1) * unit;
}

/// What the sample of a copy of `bytes` bytes tells of its values (doctor/methods.md). Never `unknown`.
/// Data that is no float32, or that no narrower type is sure to hold, is `as_sent`.
[[nodiscard]] CopiedValues judge_values(const Sample& sample, std::uint64_t bytes) noexcept;

}  // namespace penstock::recorder
