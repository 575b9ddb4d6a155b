#pragma once

#include "device/host/small_floats.hpp"

#include <penstock/core/dtype.hpp>

#include <cstdint>
#include <type_traits>

/// The conversions of single elements that kernels make. Results that are narrower are rounded to nearest
/// even.
namespace penstock {

/// Calls `visit` with a value of the type that `dtype` names. bool and float64 are only copied.
template <typename Visit>
void with_type(DType dtype, Visit&& visit) noexcept {
  switch (dtype) {
    case DType::uint8:
      return visit(std::uint8_t{});
    case DType::int8:
      return visit(std::int8_t{});
    case DType::uint16:
      return visit(std::uint16_t{});
    case DType::int16:
      return visit(std::int16_t{});
    case DType::uint32:
      return visit(std::uint32_t{});
    case DType::int32:
      return visit(std::int32_t{});
    case DType::uint64:
      return visit(std::uint64_t{});
    case DType::int64:
      return visit(std::int64_t{});
    case DType::float16:
      return visit(Half{});
    case DType::bfloat16:
      return visit(BFloat16{});
    case DType::float32:
      return visit(float{});
    case DType::boolean:
    case DType::float64:
      return;
  }
}

template <typename T>
concept FloatTarget = std::is_same_v<T, float> || std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

template <typename T>
concept FloatSource = FloatTarget<T> || (std::is_integral_v<T> && sizeof(T) <= 2);

/// True for the pairs of types that can_widen allows: the compiler makes code for these only.
template <typename From, typename To>
constexpr bool converts() {
  if constexpr (FloatTarget<To>) return FloatSource<From>;
  if constexpr (std::is_integral_v<From> && std::is_integral_v<To>) return sizeof(From) < sizeof(To);
  return false;
}

template <typename From, typename To>
void convert_element(const From& from, To& to) noexcept {
  if constexpr (FloatTarget<To>) {
    from_float(to_float(from), to);
  } else {
    to = static_cast<To>(from);  // NOLINT(bugprone-signed-char-misuse): int8 is a number here
  }
}

template <typename From, FloatTarget To>
void scale_element(const From& from, To& to, float scale, float shift) noexcept {
  from_float(to_float(from) * scale + shift, to);
}

}  // namespace penstock
