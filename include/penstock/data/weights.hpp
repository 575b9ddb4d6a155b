#pragma once

#include <penstock/core/dtype.hpp>
#include <penstock/core/host_workers.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock {

/// A tensor of a WeightFile.
struct WeightTensor {
  std::string name;
  std::string type;            ///< as the file writes it: "F32", "F8_E4M3"
  std::optional<DType> dtype;  ///< of the elements; none: DType lacks their type
  Shape shape;                 ///< {} for a scalar; extents may be 0
  std::size_t offset = 0;      ///< in the block, a multiple of WeightFile::kAlignment
  std::size_t bytes = 0;
};

/// A range of a tensor's first axis, as Python's slices: negative places count from the end, places past an
/// end mean that end, and none means the tensor's own begin or end.
struct WeightRows {
  std::optional<std::int64_t> begin{};
  std::optional<std::int64_t> end{};
};

/// Bytes of a file, by the way in which they were read.
struct WeightReads {
  std::uint64_t cached = 0;    ///< they were in memory: in the page cache, or in a file system of memory
  std::uint64_t direct = 0;    ///< from the disk, past the page cache (O_DIRECT)
  std::uint64_t buffered = 0;  ///< from the disk through the page cache: the file system refuses O_DIRECT
};

/// The tensors of a .safetensors file, laid out in one block of memory which the caller has. A handle: copies
/// share the open file. Thread-safe.
///
/// In the block the tensors lie in the order of the file, each aligned. Bytes between them are zeros. Bytes
/// in the system's page cache are read from there, others past it if the file system can. A file that is cut
/// short meanwhile is an error.
class WeightFile {
 public:
  /// The alignment of each tensor within the block. PyTorch's allocator aligns to as much.
  static constexpr std::size_t kAlignment = 512;

  /// Reads the header. Throws Error if it is not that of a sound file. The error names the file, the tensor,
  /// the offset and the expected content. Tensors of a type that is not known are bytes: their shape is not
  /// compared.
  explicit WeightFile(const std::filesystem::path& path);
  /// The same with the tensors whose names are in `names`, which it has. Of those in `rows` these rows alone.
  /// Throws InvalidArgument for rows of a scalar, or rows that do not fill whole bytes.
  [[nodiscard]] WeightFile select(const std::vector<std::string>& names,
                                  const std::map<std::string, WeightRows>& rows = {}) const;

  [[nodiscard]] const std::string& name() const noexcept;
  /// In the order of the block.
  [[nodiscard]] const std::vector<WeightTensor>& tensors() const noexcept;
  /// The texts that the file holds besides, by name.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept;
  /// The size of the block.
  [[nodiscard]] std::size_t bytes() const noexcept;
  /// The size of the tensors alone, which are read.
  [[nodiscard]] std::size_t tensor_bytes() const noexcept;

  /// Fills `destination` with the block's bytes from `offset` on. Blocks the host while it reads. Throws
  /// Error that names the file, the tensor and the offset, if the file was cut short or the system refuses;
  /// throws InvalidArgument for bytes past the block.
  void read(std::size_t offset, std::span<std::byte> destination) const;
  /// The bytes read so far, of all handles to this open file.
  [[nodiscard]] WeightReads reads() const noexcept;
  /// Fills `destination` with the whole block, by several threads of `workers`. Blocks the host. Throws as
  /// read does, and Closed once `*stop` is true.
  void read_all(HostWorkers& workers, std::span<std::byte> destination,
                const std::atomic<bool>* stop = nullptr) const;

 private:
  struct State;
  explicit WeightFile(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
};

/// Opens .safetensors files that hold one set of tensors together. An index (`model.safetensors.index.json`)
/// stands for its shards, and a folder for its index, or else for all .safetensors files in it. `names`:
/// those to load, in any order; files without any of them are left out. None: all. Throws InvalidArgument if
/// no file is given, or if none holds one of the names, and tells similar ones. Throws Error as WeightFile
/// does, if two files hold a tensor of the same name, and if one to load is of a type that penstock does not
/// move.
[[nodiscard]] std::vector<WeightFile> open_weights(
    const std::vector<std::filesystem::path>& files,
    const std::optional<std::vector<std::string>>& names = std::nullopt,
    const std::map<std::string, WeightRows>& rows = {});

/// The same files, with all their tensors, of whatever type.
[[nodiscard]] std::vector<WeightFile> read_weight_headers(const std::vector<std::filesystem::path>& files);

}  // namespace penstock
