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
  std::size_t bytes;
};

constexpr std::array kRows{
    DTypeRow{DType::boolean, "bool", 1},      DTypeRow{DType::uint8, "uint8", 1},
    DTypeRow{DType::int8, "int8", 1},         DTypeRow{DType::uint16, "uint16", 2},
    DTypeRow{DType::int16, "int16", 2},       DTypeRow{DType::uint32, "uint32", 4},
    DTypeRow{DType::int32, "int32", 4},       DTypeRow{DType::uint64, "uint64", 8},
    DTypeRow{DType::int64, "int64", 8},       DTypeRow{DType::float16, "float16", 2},
    DTypeRow{DType::bfloat16, "bfloat16", 2}, DTypeRow{DType::float32, "float32", 4},
    DTypeRow{DType::float64, "float64", 8},
};

}  // namespace

std::size_t dtype_bytes(DType dtype) noexcept { return kRows[static_cast<std::size_t>(dtype)].bytes; }

std::string_view dtype_name(DType dtype) noexcept { return kRows[static_cast<std::size_t>(dtype)].name; }

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
