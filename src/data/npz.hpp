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

/// True if a file that begins with `head` is a .zip archive whose first member is a .npy file.
[[nodiscard]] bool is_npz(std::span<const std::byte> head) noexcept;

/// Reads a .npy member of an archive and compares its checksum. Throws Error that names `file` if penstock
/// does not read such a .npy file, or if data are damaged.
[[nodiscard]] NpyArray read_npy_member(ReadAt read, const ZipMember& member, const std::string& file);

}  // namespace penstock
