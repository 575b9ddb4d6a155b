#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

namespace penstock {

/// float16 and bfloat16 as their bits. The conversions compute every case and select by masks, not by ?:.
/// With ?:, compilers keep the floating-point operations in branches and do not vectorize the loops.
struct Half {
  std::uint16_t bits;
};

struct BFloat16 {
  std::uint16_t bits;
};

/// All bits set if `condition`, otherwise none.
inline std::uint32_t mask_of(bool condition) noexcept { return ~(std::uint32_t{condition} - 1); }

inline float to_float(Half value) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t body = static_cast<std::uint32_t>(value.bits & 0x7fffu) << 13;
  const std::uint32_t finite = std::bit_cast<std::uint32_t>(std::bit_cast<float>(body) * 0x1p112f);
  return std::bit_cast<float>(sign | finite | (0x7f800000u & mask_of(body >= 0x0f800000u)));
}

inline float to_float(BFloat16 value) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

inline float to_float(float value) noexcept { return value; }

/// Integers of at most 16 bits, which float32 holds exactly.
template <typename T>
  requires(sizeof(T) <= 2 && std::is_integral_v<T>)
float to_float(T value) noexcept {
  return static_cast<float>(value);
}

inline void from_float(float value, float& result) noexcept { result = value; }

// Adds a power of two that is 2^13 times the value's own. The adder then rounds to the last place that
// float16 has there, and leaves the significand, in units of that place, in the sum's low bits.
inline void from_float(float value, Half& result) noexcept {
  constexpr std::uint32_t kLeastExponent = 113u << 23;  // 2^-14: below it float16's places stay the same
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t size = bits & 0x7fffffffu;
  const std::uint32_t own = size & 0x7f800000u;
  const std::uint32_t tiny = mask_of(own < kLeastExponent);
  const std::uint32_t exponent = (own & ~tiny) | (kLeastExponent & tiny);
  const std::uint32_t anchor = exponent + (13u << 23);
  const float sum = std::bit_cast<float>(size) + std::bit_cast<float>(anchor);
  const std::uint32_t significand = std::bit_cast<std::uint32_t>(sum) - anchor;
  const std::uint32_t finite = significand + ((exponent - kLeastExponent) >> 13);
  const std::uint32_t huge = mask_of(size >= 0x477ff000u);
  const std::uint32_t nan = mask_of(size > 0x7f800000u);
  result.bits = static_cast<std::uint16_t>(sign | (finite & ~huge) | (0x7c00u & huge) | (0x0200u & nan));
}

inline void from_float(float value, BFloat16& result) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40u;
  result.bits = static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

}  // namespace penstock
