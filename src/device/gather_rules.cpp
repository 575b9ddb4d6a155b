#include "device/gather_rules.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <string_view>

namespace penstock {

namespace {

bool is_integer(DTypeKind kind) noexcept {
  return kind == DTypeKind::unsigned_integer || kind == DTypeKind::signed_integer;
}

void check(bool holds, std::string_view message) {
  if (!holds) throw InvalidArgument(fmt::format("this gather is not possible: {}", message));
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
  const DTypeKind source = dtype_kind(from);
  const DTypeKind result = dtype_kind(to);
  if (is_model_float(to)) return is_model_float(from) || (is_integer(source) && dtype_bytes(from) <= 2);
  if (!is_integer(source) || !is_integer(result)) return false;
  return dtype_bytes(from) < dtype_bytes(to) &&
         (result == DTypeKind::signed_integer || source == DTypeKind::unsigned_integer);
}

void check_gather(const GatherRequest& request) {
  const std::size_t from_bytes = dtype_bytes(request.from);
  const std::size_t to_bytes = dtype_bytes(request.to);
  const bool scaled = request.scale != nullptr || request.shift != nullptr;
  if (!can_widen(request.from, request.to)) {
    throw InvalidArgument(fmt::format("a gather cannot turn {} into {}: not all values would survive",
                                      dtype_name(request.from), dtype_name(request.to)));
  }
  check(!scaled || is_model_float(request.to),
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
