#pragma once

#include <penstock/data/readers.hpp>

#include <filesystem>
#include <vector>

namespace penstock {

enum class FileFormat { npy, npz, safetensors, idx, unknown };

/// What the file's content says that it is. Throws Error where it cannot be read.
[[nodiscard]] FileFormat file_format(const std::filesystem::path& path);

/// The fields of one file. Throws Error for an unknown format, which says how to convert the file if its kind
/// is known, and as the readers do.
[[nodiscard]] std::vector<FieldReaderPtr> read_any(const std::filesystem::path& path,
                                                   const FileOptions& options);

}  // namespace penstock
