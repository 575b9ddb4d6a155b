#pragma once

#include <filesystem>
#include <vector>

namespace penstock {

/// False also on an error: opening the path as a file then says what is wrong.
[[nodiscard]] bool leads_to_directory(const std::filesystem::path& path);

/// The regular files in a folder, sorted, without hidden ones. Throws Error if the folder cannot be read. A
/// file that the system cannot tell of is left out with a warning.
[[nodiscard]] std::vector<std::filesystem::path> files_of(const std::filesystem::path& directory);

}  // namespace penstock
