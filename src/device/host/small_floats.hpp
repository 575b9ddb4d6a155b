#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

namespace penstock {

/// float16 and bfloat16 as their bits, with conversions written so that compilers turn loops of them into
/// vector code: every case is computed and the right one selected.
struct Half {
  std::uint16_t bits;
};

struct BFloat16 {
  std::uint16_t bits;
};

inline float to_float(Half value) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t body = static_cast<std::uint32_t>(value.bits & 0x7fffu) << 13;
  const std::uint32_t finite = std::bit_cast<std::uint32_t>(std::bit_cast<float>(body) * 0x1p112f);
  const std::uint32_t special = body | 0x7f800000u;
  return std::bit_cast<float>(sign | (body >= 0x0f800000u ? special : finite));
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

inline void from_float(float value, Half& result) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t size = bits & 0x7fffffffu;
  // Adding 0.5 puts the last bit that float16's subnormals have where the adder rounds.
  const std::uint32_t small = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5f) - 0x3f000000u;
  const std::uint32_t normal = (size - (112u << 23) + 0xfffu + ((size >> 13) & 1u)) >> 13;
  std::uint32_t half = size < 0x38800000u ? small : normal;
  half = size >= 0x477ff000u ? 0x7c00u : half;
  half = size > 0x7f800000u ? 0x7e00u : half;
  result.bits = static_cast<std::uint16_t>(sign | half);
}

inline void from_float(float value, BFloat16& result) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40u;
  result.bits = static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

}  // namespace penstock
