#pragma once

#include <penstock/core/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace penstock {

/// The header of a .npy file.
struct NpyHeader {
  DType dtype = DType::uint8;
  Shape shape;  ///< of the whole array
  std::uint64_t data_offset = 0;
};

/// Bytes at the beginning of a file that parse_npy_header needs; all bytes of a shorter file.
inline constexpr std::size_t kNpyHeadBytes = std::size_t{64} << 10;

/// Reads the header of a file, or of an archive's member, that has `file_bytes` bytes and begins with `head`.
/// Checks that penstock reads this kind of array, and that the array fills the file exactly. Throws Error
/// that names `file`, the offset and the expected content.
[[nodiscard]] NpyHeader parse_npy_header(std::span<const std::byte> head, std::uint64_t file_bytes,
                                         const std::string& file);

}  // namespace penstock
