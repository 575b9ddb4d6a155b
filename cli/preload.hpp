#pragma once

#include <filesystem>

namespace penstock::cli {

/// Throws Error, which says why, if the system's loader would not preload a library of ours into `program`,
/// or into the interpreter of its first line.
void require_preloadable(const std::filesystem::path& program);

}  // namespace penstock::cli
