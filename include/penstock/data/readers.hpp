#pragma once

#include <penstock/data/dataset.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace penstock {

using FieldReaderPtr = std::shared_ptr<const FieldReader>;

struct FileOptions {
  /// Files up to this size are read into memory when they are opened. Larger ones are mapped, and host
  /// gathers read the file. 0: every file that can be mapped is.
  std::uint64_t load_limit = std::uint64_t{64} << 20;
};

/// Samples that lie side by side in memory which the caller owns. `keep_alive`, or the caller if that is
/// null, keeps `data` alive and unchanged. `data` is a slice of `allocation`, if that is given. Throws
/// InvalidArgument if `data` is not a whole number of samples of `field`, or does not lie in `allocation`.
[[nodiscard]] FieldReaderPtr read_array(Field field, std::span<const std::byte> data,
                                        std::shared_ptr<const void> keep_alive,
                                        std::span<const std::byte> allocation = {});

/// The same for values that the reader takes over.
template <typename T>
[[nodiscard]] FieldReaderPtr read_array(Field field, std::vector<T> values) {
  auto owner = std::make_shared<const std::vector<T>>(std::move(values));
  return read_array(std::move(field), std::as_bytes(std::span(*owner)), owner);
}

/// One .npy file (format versions 1 to 3) whose first axis counts samples. The field is named after the file.
/// Throws Error if the file is cut short, is longer than its shape says, or holds big-endian,
/// Fortran-ordered, structured or object data. The error names file, offset and expected content.
[[nodiscard]] FieldReaderPtr read_npy(const std::filesystem::path& path, const FileOptions& options = {});

/// The arrays of a .npz file, a field each, with the file's names and order. Stored arrays are mapped as .npy
/// files are; deflated ones are unpacked into memory. Checksums of arrays that are read into memory are
/// compared. Throws as read_npy, also if the arrays have different numbers of samples.
[[nodiscard]] std::vector<FieldReaderPtr> read_npz(const std::filesystem::path& path,
                                                   const FileOptions& options = {});

/// The tensors of a .safetensors file, a field each, in the order of their names. Throws as read_npz, also
/// for types that penstock does not move, such as F8_E4M3.
[[nodiscard]] std::vector<FieldReaderPtr> read_safetensors(const std::filesystem::path& path,
                                                           const FileOptions& options = {});

/// Samples of `field` side by side in a file from `offset` to its end. Throws Error if the last one is cut
/// short.
[[nodiscard]] FieldReaderPtr read_raw(const std::filesystem::path& path, Field field,
                                      std::uint64_t offset = 0, const FileOptions& options = {});

/// Windows of a file: sample i begins at byte i * `stride`, and the last one is the last that fits. They may
/// overlap. Throws Error if none fits.
[[nodiscard]] FieldReaderPtr read_windows(const std::filesystem::path& path, Field field,
                                          std::uint64_t stride, const FileOptions& options = {});

/// Writes sample `index` over all of `destination` and returns the number of bytes written. Called from
/// several threads at once. An exception or a short write becomes an Error that names the sample.
using SampleFunction = std::function<std::size_t(std::uint64_t index, std::span<std::byte> destination)>;

/// Samples that `function` makes when they are asked for.
[[nodiscard]] FieldReaderPtr read_callback(Field field, std::uint64_t sample_count, SampleFunction function);

}  // namespace penstock
