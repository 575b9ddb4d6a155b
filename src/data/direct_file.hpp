#pragma once

#include "data/file.hpp"

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

/// A file that may be read past the page cache (O_DIRECT). Such reads have rules for offset, size and
/// address, which the kernel tells. Thread-safe.
class DirectFile {
 public:
  static constexpr std::size_t kLargestBlock = std::size_t{8} << 10;

  explicit DirectFile(File file);
  ~DirectFile();
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  [[nodiscard]] const File& file() const noexcept { return file_; }
  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  /// False if the file system refuses direct reads.
  [[nodiscard]] bool may_be_read() const noexcept { return may_be_read_; }
  /// Call it once a direct read was refused: the page cache is to read from then on.
  void refuse() noexcept { may_be_read_ = false; }
  /// Of offsets and sizes.
  [[nodiscard]] std::size_t block_bytes() const noexcept { return block_; }
  /// True if the disk may write most of the bytes from `offset` on straight to `destination`.
  [[nodiscard]] bool goes_straight(std::uint64_t offset, std::span<std::byte> destination) const noexcept;

 private:
  const File file_;
  int descriptor_ = -1;
  std::size_t block_ = 0;
  std::size_t address_alignment_ = 0;
  std::atomic<bool> may_be_read_{false};
};

/// Bytes of a file, and where they are wanted.
struct FilePiece {
  std::uint64_t offset = 0;
  std::span<std::byte> destination;
};

/// A direct read of the blocks that hold some pieces of a file. The disk writes straight to the destination
/// of a single piece, if its address complies. Only blocks that lie there in part then pass through the
/// buffer. Otherwise all bytes do.
class BlockRead {
 public:
  /// Bytes of a buffer beyond those from the first piece to the last.
  static constexpr std::size_t kSpareBytes = 2 * DirectFile::kLargestBlock;

  BlockRead() = default;
  /// The pieces, at least one, are in the order of their offsets. `buffer` begins at a page. Both outlive the
  /// read.
  BlockRead(const DirectFile& file, std::span<const FilePiece> pieces, std::span<std::byte> buffer);

  [[nodiscard]] std::uint64_t offset() const noexcept { return begin_ - before_; }
  [[nodiscard]] std::span<const iovec> places() const noexcept { return std::span(places_).first(count_); }
  /// Call it once `got` bytes were read. Returns how many are in place, from the first piece's first byte on.
  [[nodiscard]] std::size_t finish(std::size_t got) const noexcept;

 private:
  std::span<const FilePiece> pieces_;
  std::byte* buffer_ = nullptr;
  std::uint64_t begin_ = 0;  ///< of the first piece
  std::size_t before_ = 0;   ///< bytes of its block before it
  std::size_t wanted_ = 0;
  std::size_t head_ = 0;    ///< bytes before the ones that go straight to their place
  std::size_t middle_ = 0;  ///< those; 0 if none do
  std::size_t block_ = 0;
  std::array<iovec, 3> places_{};
  std::size_t count_ = 0;
};

}  // namespace penstock
