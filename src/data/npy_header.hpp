#pragma once

#include <penstock/core/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace penstock {

/// What the header of a .npy file says.
struct NpyHeader {
  DType dtype = DType::uint8;
  Shape shape;  ///< of the whole array
  std::uint64_t data_offset = 0;
};

/// Bytes of a file that parse_npy_header wants to see, or all of a shorter file.
inline constexpr std::size_t kNpyHeadBytes = std::size_t{64} << 10;

/// Reads the header of a file, or of a member of an archive, of `file_bytes` bytes that begins with `head`,
/// and checks that the array is what penstock reads and fills the file exactly. Throws Error that names
/// `file`, the offset and what was expected.
[[nodiscard]] NpyHeader parse_npy_header(std::span<const std::byte> head, std::uint64_t file_bytes,
                                         const std::string& file);

}  // namespace penstock
