#include "device/gather_rules.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <string_view>

namespace penstock {

namespace {

struct Integer {
  unsigned bits = 0;  ///< 0: no integer
  bool is_signed = false;
};

Integer integer_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::uint8:
      return {8, false};
    case DType::int8:
      return {8, true};
    case DType::uint16:
      return {16, false};
    case DType::int16:
      return {16, true};
    case DType::uint32:
      return {32, false};
    case DType::int32:
      return {32, true};
    case DType::uint64:
      return {64, false};
    case DType::int64:
      return {64, true};
    default:
      return {};
  }
}

bool is_working_float(DType dtype) noexcept {
  return dtype == DType::float16 || dtype == DType::bfloat16 || dtype == DType::float32;
}

void check(bool holds, std::string_view message) {
  if (!holds) throw InvalidArgument(fmt::format("this gather cannot be done: {}", message));
}

bool aligned(const void* data, std::size_t bytes) noexcept {
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

bool fits(std::uint64_t a, std::uint64_t b, std::uint64_t c) noexcept {
  std::uint64_t product = 0;
  return !__builtin_mul_overflow(a, b, &product) && !__builtin_mul_overflow(product, c, &product) &&
         product <= std::uint64_t{1} << 62;
}

}  // namespace

bool can_widen(DType from, DType to) noexcept {
  if (from == to) return true;
  const Integer source = integer_of(from);
  if (is_working_float(to)) return is_working_float(from) || (source.bits != 0 && source.bits <= 16);
  const Integer result = integer_of(to);
  if (source.bits == 0 || result.bits == 0) return false;
  return source.bits < result.bits && (result.is_signed || !source.is_signed);
}

void check_gather(const GatherRequest& request) {
  const std::size_t from_bytes = dtype_bytes(request.from);
  const std::size_t to_bytes = dtype_bytes(request.to);
  const bool scaled = request.scale != nullptr || request.shift != nullptr;
  if (!can_widen(request.from, request.to)) {
    throw InvalidArgument(fmt::format("a gather cannot turn {} into {}: not all values would survive",
                                      dtype_name(request.from), dtype_name(request.to)));
  }
  check(!scaled || is_working_float(request.to),
        "scale and shift need a result of float16, bfloat16 or float32");
  check(request.channels != 0 && request.channel_elements != 0,
        "there must be at least one channel of one element");
  check(fits(request.count, request.row_elements, to_bytes) &&
            fits(request.source_rows, request.row_elements, from_bytes),
        "its sizes exceed any memory");
  const std::uint64_t stride = request.row_stride_bytes;
  check(stride == 0 || stride >= request.row_elements * from_bytes, "the stride is shorter than a row");
  check(fits(request.source_rows, stride, 1), "its sizes exceed any memory");
  check(request.head_rows <= request.source_rows, "the head has more rows than there are in all");
  if (request.count == 0 || request.row_elements == 0) return;
  check(request.destination != nullptr, "the destination is null");
  check(request.source != nullptr || request.head_rows == request.source_rows, "the source is null");
  check(request.head != nullptr || request.head_rows == 0, "the head is null");
  const bool converts = request.from != request.to || scaled;
  check(!converts || (aligned(request.source, from_bytes) && stride % from_bytes == 0),
        "the source or its stride is not aligned to its type");
  check(!converts || request.head_rows == 0 || aligned(request.head, from_bytes),
        "the head is not aligned to its type");
  check(!converts || aligned(request.destination, to_bytes), "the destination is not aligned to its type");
  check(aligned(request.indices, sizeof(std::uint64_t)) && aligned(request.scale, sizeof(float)) &&
            aligned(request.shift, sizeof(float)),
        "the indices, scale or shift are not aligned to their type");
}

}  // namespace penstock
