#include <penstock/core/dtype.hpp>
#include <penstock/core/error.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

namespace penstock {

namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  DTypeKind kind;
  std::size_t bytes;
};

constexpr std::array kRows{
    DTypeRow{DType::boolean, "bool", DTypeKind::boolean, 1},
    DTypeRow{DType::uint8, "uint8", DTypeKind::unsigned_integer, 1},
    DTypeRow{DType::int8, "int8", DTypeKind::signed_integer, 1},
    DTypeRow{DType::uint16, "uint16", DTypeKind::unsigned_integer, 2},
    DTypeRow{DType::int16, "int16", DTypeKind::signed_integer, 2},
    DTypeRow{DType::uint32, "uint32", DTypeKind::unsigned_integer, 4},
    DTypeRow{DType::int32, "int32", DTypeKind::signed_integer, 4},
    DTypeRow{DType::uint64, "uint64", DTypeKind::unsigned_integer, 8},
    DTypeRow{DType::int64, "int64", DTypeKind::signed_integer, 8},
    DTypeRow{DType::float16, "float16", DTypeKind::floating, 2},
    DTypeRow{DType::bfloat16, "bfloat16", DTypeKind::floating, 2},
    DTypeRow{DType::float32, "float32", DTypeKind::floating, 4},
    DTypeRow{DType::float64, "float64", DTypeKind::floating, 8},
};

const DTypeRow& row_of(DType dtype) noexcept { return kRows[static_cast<std::size_t>(dtype)]; }

}  // namespace

DTypeKind dtype_kind(DType dtype) noexcept { return row_of(dtype).kind; }

bool is_model_float(DType dtype) noexcept {
  return dtype_kind(dtype) == DTypeKind::floating && dtype != DType::float64;
}

std::size_t dtype_bytes(DType dtype) noexcept { return row_of(dtype).bytes; }

std::string_view dtype_name(DType dtype) noexcept { return row_of(dtype).name; }

DType parse_dtype(std::string_view name) {
  std::string known;
  for (const DTypeRow& row : kRows) {
    if (row.name == name) return row.dtype;
    known += known.empty() ? "" : ", ";
    known += row.name;
  }
  throw InvalidArgument(fmt::format("unknown element type '{}'; known are {}", name, known));
}

std::size_t element_count(const Shape& shape) {
  std::size_t count = 1;
  for (const std::size_t extent : shape) {
    if (__builtin_mul_overflow(count, extent, &count)) {
      throw InvalidArgument(
          fmt::format("shape {} has more elements than can be counted", format_shape(shape)));
    }
  }
  return count;
}

std::string format_shape(const Shape& shape) {
  return shape.empty() ? "scalar" : fmt::format("{}", fmt::join(shape, "x"));
}

}  // namespace penstock
