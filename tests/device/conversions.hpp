#pragma once

#include <penstock/core/dtype.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

/// The conversions of the contract, one element at a time, by the definitions of the formats.
namespace penstock::testing {

inline constexpr DType kTypes[] = {DType::boolean, DType::uint8,   DType::int8,     DType::uint16,
                                   DType::int16,   DType::uint32,  DType::int32,    DType::uint64,
                                   DType::int64,   DType::float16, DType::bfloat16, DType::float32,
                                   DType::float64};

inline bool is_float(DType dtype) {
  return dtype == DType::float16 || dtype == DType::bfloat16 || dtype == DType::float32;
}

/// Value of a float of `exponent_bits` and `mantissa_bits`, by the definition of the format.
inline double decode_float(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double mantissa = static_cast<double>(bits & ((1u << mantissa_bits) - 1)) / (1u << mantissa_bits);
  const double sign = bits >> (exponent_bits + mantissa_bits) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias);
  return sign * std::ldexp(1 + mantissa, exponent - bias);
}

/// Nearest float of the format, ties to even, found by the neighbours' spacing. For NaN, one of the NaNs.
inline std::uint32_t encode_float(double value, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const std::uint32_t sign = std::signbit(value) ? 1u << (exponent_bits + mantissa_bits) : 0;
  const std::uint32_t infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
  const double size = std::abs(value);
  if (std::isnan(size)) return sign | infinity | 1;
  if (std::isinf(size)) return sign | infinity;
  if (size == 0) return sign;
  const int exponent = std::max(std::ilogb(size), 1 - bias);
  const double steps = std::nearbyint(std::ldexp(size, mantissa_bits - exponent));
  // A subnormal has exponent field 0, and its steps are its mantissa; otherwise the leading bit is implied.
  const auto code =
      static_cast<std::uint32_t>(steps) + (static_cast<std::uint32_t>(exponent + bias - 1) << mantissa_bits);
  return sign | std::min(code, infinity);
}

struct Format {
  int exponent;
  int mantissa;
};

inline Format format_of(DType dtype) {
  return dtype == DType::float16 ? Format{5, 10} : dtype == DType::bfloat16 ? Format{8, 7} : Format{8, 23};
}

/// One element as its bits, zero-extended.
inline std::uint64_t load(const std::byte* at, DType dtype) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, at, dtype_bytes(dtype));
  return bits;
}

inline std::int64_t signed_value(std::uint64_t bits, DType dtype) {
  const unsigned unused = 64 - 8 * static_cast<unsigned>(dtype_bytes(dtype));
  const bool is_signed =
      dtype == DType::int8 || dtype == DType::int16 || dtype == DType::int32 || dtype == DType::int64;
  return is_signed ? static_cast<std::int64_t>(bits << unused) >> unused : static_cast<std::int64_t>(bits);
}

/// What the device writes for one element. `scale` and `shift` may be null.
inline std::uint64_t convert(std::uint64_t bits, DType from, DType to, const float* scale,
                             const float* shift) {
  if (from == to && scale == nullptr && shift == nullptr) return bits;
  if (!is_float(to)) {
    const std::uint64_t mask = dtype_bytes(to) == 8 ? ~0ull : (1ull << 8 * dtype_bytes(to)) - 1;
    return static_cast<std::uint64_t>(signed_value(bits, from)) & mask;
  }
  const Format source = format_of(from);
  auto value = static_cast<float>(
      is_float(from) ? decode_float(static_cast<std::uint32_t>(bits), source.exponent, source.mantissa)
                     : static_cast<double>(signed_value(bits, from)));
  if (scale != nullptr) value = static_cast<float>(static_cast<double>(value) * static_cast<double>(*scale));
  if (shift != nullptr) value = static_cast<float>(static_cast<double>(value) + static_cast<double>(*shift));
  const Format result = format_of(to);
  return encode_float(value, result.exponent, result.mantissa);
}

inline bool is_nan(std::uint64_t bits, DType dtype) {
  if (dtype == DType::float64) return std::isnan(std::bit_cast<double>(bits));
  const Format format = format_of(dtype);
  return is_float(dtype) &&
         std::isnan(decode_float(static_cast<std::uint32_t>(bits), format.exponent, format.mantissa));
}

}  // namespace penstock::testing
