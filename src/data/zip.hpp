#pragma once

#include "data/file.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace penstock {

/// One file in a .zip archive.
struct ZipMember {
  std::string name;
  std::uint64_t offset = 0;  ///< of its data in the archive
  std::uint64_t packed_bytes = 0;
  std::uint64_t bytes = 0;  ///< unpacked
  std::uint32_t checksum = 0;
  bool deflated = false;  ///< otherwise its bytes are stored as they are
};

/// Reads the directory of an archive of `file_bytes` bytes (zip64 or not), in its order. Checks that every
/// member lies before the directory, does not overlap another, has a name of its own, and is stored or
/// deflated. A deflated member must not be larger than its packed bytes can hold. Throws Error that names
/// `file`, the offset and the expected content.
[[nodiscard]] std::vector<ZipMember> read_zip_directory(ReadAt read, std::uint64_t file_bytes,
                                                        const std::string& file);

}  // namespace penstock
