#pragma once

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <span>

namespace penstock {

/// Makes `file` hold `content`, or leaves it as it was: the bytes are written beside it and to the disk, and
/// the new file takes its name at once. So a crash leaves one of the two whole. The folder must exist; a link
/// stays, and the file that it leads to is replaced, or made. An earlier file's permissions are kept, and its
/// owner if the system allows it. Until it is whole, the new file has no name, and goes with the process; if
/// the file system cannot do that, it is `penstock-NUMBER.tmp` meanwhile.
///
/// Blocks the host until the bytes are on the disk. Throws FileError that names the file and what the system
/// refused: what is there and is not a regular file, a full disk, a folder that may not be written. Throws
/// Closed soon after `*stop` became true. Thread-safe: of several calls for one file the last one stays.
void replace_file(const std::filesystem::path& file, std::span<const std::byte> content,
                  const std::atomic<bool>* stop = nullptr);

}  // namespace penstock
