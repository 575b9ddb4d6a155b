#include "device/host/split.hpp"

#include "device/host/convert.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

namespace penstock {

namespace {

constexpr std::uint64_t kTileRows =
    256;  // rows that stay in the processor's cache while their values are read

std::span<const std::uint32_t> firsts_of(const SplitRequest& request) noexcept {
  return {request.firsts, (request.row_bytes + kSplitSegmentBytes - 1) / kSplitSegmentBytes + 1};
}

/// Where one value lies in the rows of a tile, and where it goes.
struct Column {
  const std::byte* from;
  std::byte* to;
  std::uint64_t row_bytes;
  std::uint64_t stride;
  std::uint64_t rows;
};

template <typename From, typename To, typename Convert>
void for_each_element(const Column& column, Convert&& convert) noexcept {
  for (std::uint64_t i = 0; i < column.rows; ++i) {
    convert(*reinterpret_cast<const From*>(column.from + i * column.row_bytes),
            *reinterpret_cast<To*>(column.to + i * column.stride));
  }
}

template <std::size_t Bytes>
void copy_column(const Column& column) noexcept {
  for (std::uint64_t i = 0; i < column.rows; ++i) {
    std::memcpy(column.to + i * column.stride, column.from + i * column.row_bytes, Bytes);
  }
}

void copy_column(const Column& column, std::size_t bytes) noexcept {
  switch (bytes) {
    case 1:
      return copy_column<1>(column);
    case 2:
      return copy_column<2>(column);
    case 4:
      return copy_column<4>(column);
    default:
      return copy_column<8>(column);
  }
}

template <typename From, typename To>
void convert_column(const RowValue& value, const Column& column) noexcept {
  if constexpr (FloatTarget<To>) {
    if (value.scaled) {
      return for_each_element<From, To>(
          column, [&](const From& from, To& to) { scale_element(from, to, value.scale, value.shift); });
    }
  }
  for_each_element<From, To>(column, [](const From& from, To& to) { convert_element(from, to); });
}

void split_value(const RowValue& value, const Column& column) noexcept {
  if (value.from == value.to && !value.scaled) return copy_column(column, dtype_bytes(value.from));
  with_type(value.from, [&]<typename From>(From) {
    with_type(value.to, [&]<typename To>(To) {
      if constexpr (converts<From, To>()) convert_column<From, To>(value, column);
    });
  });
}

}  // namespace

bool split_stays_inside(const SplitRequest& request,
                        const std::function<bool(const void*, std::uint64_t)>& writable) {
  const auto firsts = firsts_of(request);
  if (!std::is_sorted(firsts.begin(), firsts.end()) || firsts.back() > request.value_count) return false;
  const auto inside = [&](const RowValue& value, std::size_t segment) {
    return value.row_offset / kSplitSegmentBytes == segment &&
           std::uint64_t{value.row_offset} + dtype_bytes(value.from) <= request.row_bytes &&
           writable(static_cast<const std::byte*>(request.destination) + value.destination,
                    (request.count - 1) * value.destination_stride + dtype_bytes(value.to));
  };
  for (std::size_t segment = 0; segment + 1 < firsts.size(); ++segment) {
    for (std::uint32_t i = firsts[segment]; i < firsts[segment + 1]; ++i) {
      if (!inside(request.values[i], segment)) return false;
    }
  }
  return true;
}

void split_on_host(const SplitRequest& request) noexcept {
  const auto firsts = firsts_of(request);
  const auto* const rows = static_cast<const std::byte*>(request.rows);
  auto* const destination = static_cast<std::byte*>(request.destination);
  for (std::uint64_t first = 0; first < request.count; first += kTileRows) {
    const std::uint64_t count = std::min(kTileRows, request.count - first);
    for (std::uint32_t i = firsts.front(); i < firsts.back(); ++i) {
      const RowValue& value = request.values[i];
      split_value(value, {.from = rows + first * request.row_bytes + value.row_offset,
                          .to = destination + value.destination + first * value.destination_stride,
                          .row_bytes = request.row_bytes,
                          .stride = value.destination_stride,
                          .rows = count});
    }
  }
}

}  // namespace penstock
