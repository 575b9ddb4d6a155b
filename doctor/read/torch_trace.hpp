#pragma once

#include "doctor/read/json_reader.hpp"
#include "doctor/timeline/timeline.hpp"

#include <filesystem>
#include <string>

namespace penstock {

/// Reads a trace that PyTorch's profiler exported: JSON, plain or gzip. It is read in pieces; only the
/// records of a Timeline are kept. Throws Error with the place for a file that is damaged or is not such a
/// trace, and if it holds no work of a GPU.
[[nodiscard]] Timeline read_torch_trace(const std::filesystem::path& file);

/// The same for text that is unpacked already. `file` names it in errors.
[[nodiscard]] Timeline parse_torch_trace(TextSource source, const std::string& file);

}  // namespace penstock
