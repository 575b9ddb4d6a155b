#pragma once

#include <penstock/data/readers.hpp>

#include <filesystem>
#include <string_view>
#include <vector>

namespace penstock {

enum class FileFormat { npy, npz, safetensors, unknown };

/// The format that the file's content shows. Throws Error if the file cannot be read.
[[nodiscard]] FileFormat file_format(const std::filesystem::path& path);

/// What a file that begins with `head` is in place of weights or samples, and what to do about it: "a git-lfs
/// pointer. Run ..."; empty if that is not known.
[[nodiscard]] std::string_view other_kind(std::string_view head) noexcept;

/// The fields of one file. Throws as the readers do, and Error for an unknown format. If the file's kind is
/// known, the error says how to convert it.
[[nodiscard]] std::vector<FieldReaderPtr> read_any(const std::filesystem::path& path,
                                                   const FileOptions& options);

}  // namespace penstock
