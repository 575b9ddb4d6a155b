#pragma once

#include <penstock/core/copy_bytes.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

/// Copies the rows `indices` of an array of rows side by side to `destination`, on the calling thread. The
/// indices are within the array, and the destination does not overlap it.
void gather_rows(const std::byte* rows, std::size_t row_bytes, std::span<const std::uint64_t> indices,
                 std::byte* destination, StoreKind stores) noexcept;

/// How many of `rows` rows one of `threads` threads gathers before it takes others: enough pieces for each
/// thread that one that comes late costs little, and none so small that taking it does. At least 1.
[[nodiscard]] std::size_t rows_of_piece(std::size_t rows, std::size_t row_bytes,
                                        std::size_t threads) noexcept;

/// Calls `copy(first_index, rows, offset)` for each run of successive indices. The run's rows begin at byte
/// `offset` of the destination.
template <typename Copy>
void for_each_run(std::span<const std::uint64_t> indices, std::size_t row_bytes, Copy&& copy) {
  for (std::size_t i = 0; i < indices.size();) {
    std::size_t end = i + 1;
    while (end < indices.size() && indices[end] == indices[end - 1] + 1) ++end;
    copy(indices[i], end - i, i * row_bytes);
    i = end;
  }
}

}  // namespace penstock
