#include "device/split_rules.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <string_view>

namespace penstock {

namespace {

constexpr std::uint64_t kRowUnit = 16;
constexpr std::uint64_t kLongestRow = std::uint64_t{1} << 32;  // offsets in it have 32 bits
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 62;

void must_hold(bool holds, std::string_view message) {
  if (!holds) throw InvalidArgument(fmt::format("these rows cannot be split: {}", message));
}

bool is_aligned(const void* data, std::size_t bytes) noexcept {
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

void check_rows(std::uint64_t row_bytes) {
  must_hold(row_bytes % kRowUnit == 0, "their size is not a multiple of 16 bytes; pad them");
  must_hold(row_bytes <= kLongestRow, "they are longer than 4 GiB");
}

void check_value(const RowValue& value, std::size_t number, std::uint64_t row_bytes) {
  const std::size_t from_bytes = dtype_bytes(value.from);
  const std::size_t to_bytes = dtype_bytes(value.to);
  const auto require = [&](bool holds, std::string_view message) {
    if (!holds) throw InvalidArgument(fmt::format("value {} of a row {}", number, message));
  };
  if (!can_widen(value.from, value.to)) {
    throw InvalidArgument(
        fmt::format("value {} of a row cannot go from {} to {}: not all values would survive", number,
                    dtype_name(value.from), dtype_name(value.to)));
  }
  require(!value.scaled || is_model_float(value.to),
          "is scaled, which needs a result of float16, bfloat16 or float32");
  require(value.row_offset % from_bytes == 0, "is not aligned to its type");
  require(value.row_offset + from_bytes <= row_bytes, "runs past the end of the row");
  require(value.destination % to_bytes == 0 && value.destination_stride % to_bytes == 0,
          "goes to a column that is not aligned to its type");
}

}  // namespace

void check_split(const SplitRequest& request) {
  check_rows(request.row_bytes);
  must_hold(request.row_bytes == 0 || request.count <= kMostBytes / request.row_bytes,
            "their sizes exceed any memory");
  if (request.count == 0 || request.value_count == 0) return;
  must_hold(request.row_bytes != 0, "they have values but no bytes");
  must_hold(request.rows != nullptr, "they are null");
  must_hold(request.destination != nullptr, "the destination is null");
  must_hold(request.values != nullptr && request.firsts != nullptr, "a table is null");
  must_hold(is_aligned(request.rows, kRowUnit) && is_aligned(request.destination, kRowUnit),
            "the rows or the destination are not aligned to 16 bytes");
  must_hold(
      is_aligned(request.values, alignof(RowValue)) && is_aligned(request.firsts, alignof(std::uint32_t)),
      "a table is not aligned to its type");
}

std::vector<std::uint32_t> segment_firsts(std::span<const RowValue> values, std::uint64_t row_bytes) {
  check_rows(row_bytes);
  must_hold(values.size() <= std::numeric_limits<std::uint32_t>::max(), "they have 2^32 values or more");
  std::vector<std::uint32_t> firsts((row_bytes + kSplitSegmentBytes - 1) / kSplitSegmentBytes + 1);
  std::size_t segment = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    check_value(values[i], i, row_bytes);
    must_hold(i == 0 || values[i - 1].row_offset <= values[i].row_offset,
              "their values do not ascend by their offsets; sort them");
    while (segment <= values[i].row_offset / kSplitSegmentBytes) {
      firsts[segment++] = static_cast<std::uint32_t>(i);
    }
  }
  while (segment < firsts.size()) firsts[segment++] = static_cast<std::uint32_t>(values.size());
  return firsts;
}

}  // namespace penstock
