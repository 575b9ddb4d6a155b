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

/// The header of an IDX file: two zero bytes, a type, the number of axes, and each axis's extent in four
/// bytes. Extents and values are big-endian.
struct IdxHeader {
  DType dtype = DType::uint8;
  Shape shape;  ///< of the whole array
  std::uint64_t data_offset = 0;
  std::uint64_t data_bytes = 0;
};

/// Bytes of the longest IDX header.
inline constexpr std::size_t kIdxHeadBytes = 4 + 255 * 4;

/// Reads the header of a file that begins with `head`: kIdxHeadBytes, or all of a shorter file. Throws Error
/// that names `file`, the offset and the expected content.
[[nodiscard]] IdxHeader parse_idx_header(std::span<const std::byte> head, const std::string& file);

/// Turns the big-endian values of `data`, each of `value_bytes`, into the processor's order.
void swap_to_native(std::span<std::byte> data, std::size_t value_bytes) noexcept;

struct IdxData {
  IdxHeader header;
  HostPages pages;
};

/// Unpacks an IDX file of `packed_bytes` bytes in gzip format, read from `source`. Allocates memory only if
/// so few packed bytes can hold the array that the header states.
[[nodiscard]] IdxData unpack_idx(ByteSource source, std::uint64_t packed_bytes, const std::string& file);

/// "images" for "train-images-idx3-ubyte.gz".
[[nodiscard]] std::string idx_field_name(const std::string& file_name);

}  // namespace penstock
