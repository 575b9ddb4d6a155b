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
  /// Files up to this size are read into memory when they are opened; larger ones are mapped, and their CPU
  /// gather reads the file. 0 maps every file that can be mapped.
  std::uint64_t load_limit = std::uint64_t{64} << 20;
};

/// Samples that lie side by side in memory which the caller owns: `data` holds a whole number of samples of
/// `field`, and stays as it is while `keep_alive`, or where that is null the caller, holds it. Throws
/// InvalidArgument when `data` is no whole number of samples, or not in `allocation`, what it is a slice of.
[[nodiscard]] FieldReaderPtr read_array(Field field, std::span<const std::byte> data,
                                        std::shared_ptr<const void> keep_alive,
                                        std::span<const std::byte> allocation = {});

/// As above, of values that the reader takes over.
template <typename T>
[[nodiscard]] FieldReaderPtr read_array(Field field, std::vector<T> values) {
  auto owner = std::make_shared<const std::vector<T>>(std::move(values));
  return read_array(std::move(field), std::as_bytes(std::span(*owner)), owner);
}

/// One .npy file (format versions 1 to 3) whose first axis counts samples; the field is named after the file.
/// Throws Error, naming the file, the byte offset and what was expected there, for a file that is cut short,
/// or longer than its shape says, or holds big-endian, Fortran-ordered, structured or object data.
[[nodiscard]] FieldReaderPtr read_npy(const std::filesystem::path& path, const FileOptions& options = {});

/// The arrays of a .npz file, a field each, named as they are in it and in its order; stored ones are mapped
/// as .npy files are, deflated ones are unpacked into memory. The checksums of what is read into memory are
/// compared. Throws as read_npy, also if the arrays have different numbers of samples.
[[nodiscard]] std::vector<FieldReaderPtr> read_npz(const std::filesystem::path& path,
                                                   const FileOptions& options = {});

/// The tensors of a .safetensors file, a field each, in the order of their names. Throws as read_npz, also
/// for types that penstock does not move, such as F8_E4M3.
[[nodiscard]] std::vector<FieldReaderPtr> read_safetensors(const std::filesystem::path& path,
                                                           const FileOptions& options = {});

/// One IDX file, plain or in gzip format (then it is unpacked into memory, as are the big-endian values of
/// wide types). Called "images" or "labels" where the file's name says so, otherwise after the file. Throws
/// as read_npy.
[[nodiscard]] FieldReaderPtr read_idx(const std::filesystem::path& path, const FileOptions& options = {});

/// Samples of `field` side by side in a file from `offset` to its end. Throws Error when that is no whole
/// number of samples.
[[nodiscard]] FieldReaderPtr read_raw(const std::filesystem::path& path, Field field,
                                      std::uint64_t offset = 0, const FileOptions& options = {});

/// Writes sample `index` over `destination` and returns the bytes written, which must be all of it. Called
/// from several threads at once. What it throws, and a short write, become an Error that names the sample.
using SampleFunction = std::function<std::size_t(std::uint64_t index, std::span<std::byte> destination)>;

/// Samples that `function` makes on demand.
[[nodiscard]] FieldReaderPtr read_callback(Field field, std::uint64_t sample_count, SampleFunction function);

}  // namespace penstock
