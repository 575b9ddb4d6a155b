#pragma once

#include <filesystem>
#include <vector>

namespace penstock {

/// The .safetensors files that `paths` mean. An index (.json) means the shards that it names, in the order of
/// their names. A folder means its index `model.safetensors.index.json`, or the only other one, or else all
/// .safetensors files in it. Throws Error that names an index that is not sound, or a folder without such
/// files; FileError.
[[nodiscard]] std::vector<std::filesystem::path> weight_paths(
    const std::vector<std::filesystem::path>& paths);

}  // namespace penstock
