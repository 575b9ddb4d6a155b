#pragma once

#include "doctor/timeline/timeline.hpp"

#include <penstock/core/function_ref.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace penstock {

/// What one process did while `penstock doctor` ran it.
struct Recording {
  std::int64_t process = 0;
  Timeline timeline;  ///< its steps are found by `find_steps`; its notes say what is missing
};

/// Reads a file that the recorder wrote. If it is damaged or cut short, what is complete is read, and a note
/// says what is not. Throws Error if it is not a recording, or one of another version.
[[nodiscard]] Recording read_recording(const std::filesystem::path& file);

/// Reads all recordings of a folder, in the order of their processes, or the one file that `folder` is.
/// Throws Error if the folder has none,
/// and as `read_recording` does. With `refused`, it reads the others then, and has a sentence there for each
/// that cannot be read, or that was not begun.
[[nodiscard]] std::vector<Recording> read_recordings(const std::filesystem::path& folder,
                                                     std::vector<std::string>* refused = nullptr);

/// Fills a span from an offset on, and returns the bytes read: fewer at the end.
using BytesAt = FunctionRef<std::size_t(std::uint64_t offset, std::span<std::byte> destination)>;

/// Reads the recording from `bytes`. `file` names it in errors.
[[nodiscard]] Recording parse_recording(BytesAt bytes, const std::string& file);

}  // namespace penstock
