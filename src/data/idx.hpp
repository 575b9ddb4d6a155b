#pragma once

#include "data/file.hpp"
#include "data/gzip.hpp"

#include <penstock/core/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace penstock {

/// What the header of an IDX file says: two zero bytes, a type, the number of axes, and each one's extent in
/// four bytes, big-endian like the values behind them.
struct IdxHeader {
  DType dtype = DType::uint8;
  Shape shape;  ///< of the whole array
  std::uint64_t data_offset = 0;
  std::uint64_t data_bytes = 0;
};

/// Bytes of the longest IDX header.
inline constexpr std::size_t kIdxHeadBytes = 4 + 255 * 4;

/// Reads the header of a file that begins with `head`: kIdxHeadBytes, or all of a shorter file. Throws Error
/// that names `file`, the offset and what was expected.
[[nodiscard]] IdxHeader parse_idx_header(std::span<const std::byte> head, const std::string& file);

/// Turns the big-endian values of `data`, each of `value_bytes`, into the processor's order.
void swap_to_native(std::span<std::byte> data, std::size_t value_bytes) noexcept;

struct IdxData {
  IdxHeader header;
  HostPages pages;
};

/// Unpacks the IDX file in gzip format of `packed_bytes` bytes that `source` gives. Memory is asked for only
/// when so few packed bytes can hold what the header says.
[[nodiscard]] IdxData unpack_idx(ByteSource source, std::uint64_t packed_bytes, const std::string& file);

/// "images" for "train-images-idx3-ubyte.gz".
[[nodiscard]] std::string idx_field_name(const std::string& file_name);

}  // namespace penstock
