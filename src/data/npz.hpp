#pragma once

#include "data/npy_header.hpp"
#include "data/zip.hpp"

#include <string>
#include <vector>

namespace penstock {

struct NpyArray {
  NpyHeader header;
  HostPages pages;  ///< the array without its header
};

/// True if `head`, the beginning of a file, is that of a .zip archive whose first member is a .npy file.
[[nodiscard]] bool is_npz(std::span<const std::byte> head) noexcept;

/// Reads a .npy member of an archive and compares its checksum. Throws Error that names `file` for what is no
/// .npy file that penstock reads, and for damaged data.
[[nodiscard]] NpyArray read_npy_member(ReadAt read, const ZipMember& member, const std::string& file);

}  // namespace penstock
