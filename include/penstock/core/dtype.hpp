#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

/// Element types that cross the link. The names are NumPy's, plus bfloat16.
enum class DType : std::uint8_t {
  boolean,
  uint8,
  int8,
  uint16,
  int16,
  uint32,
  int32,
  uint64,
  int64,
  float16,
  bfloat16,
  float32,
  float64,
};

enum class DTypeKind : std::uint8_t { boolean, unsigned_integer, signed_integer, floating };

[[nodiscard]] DTypeKind dtype_kind(DType dtype) noexcept;

/// True for float16, bfloat16 and float32. Models compute in these types, and values can be scaled to them.
[[nodiscard]] bool is_model_float(DType dtype) noexcept;

/// Bytes of one element.
[[nodiscard]] std::size_t dtype_bytes(DType dtype) noexcept;

/// "uint8", "bfloat16", ...; `boolean` is "bool".
[[nodiscard]] std::string_view dtype_name(DType dtype) noexcept;

/// Inverse of dtype_name. Throws InvalidArgument that lists the known names.
[[nodiscard]] DType parse_dtype(std::string_view name);

/// Extent of each axis, outermost first; empty for a scalar.
using Shape = std::vector<std::size_t>;

/// Elements of `shape`; 1 for a scalar. Throws InvalidArgument if the product does not fit size_t.
[[nodiscard]] std::size_t element_count(const Shape& shape);

/// "3x224x224"; "scalar" for an empty shape.
[[nodiscard]] std::string format_shape(const Shape& shape);

}  // namespace penstock
