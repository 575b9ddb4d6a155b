#pragma once

#include "data/file.hpp"
#include "data/residency.hpp"

#include <penstock/data/weights.hpp>

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace penstock {

/// Reads a file of which each byte is read about once, such as a model's weights. Bytes in the page cache
/// come from there. Others come from the disk past it (O_DIRECT): that is faster, costs no copy by the
/// kernel, and leaves the cache as it is. If the file system refuses that, the page cache reads them,
/// too. Thread-safe.
///
/// The choice is made for each window of the file when a byte of it is first read. A direct read has rules
/// for its offset, size and address, which the kernel tells. If the address complies, the disk writes
/// straight to the destination, and only blocks that lie there in part pass through a buffer of the thread.
/// If it does not, all bytes do.
class BulkReader {
 public:
  static constexpr std::uint64_t kWindow = std::uint64_t{4} << 20;
  /// preadv, or a stand-in.
  using PositionedRead = ssize_t (*)(int, const iovec*, int, off_t);

  /// `direct_preadv`: reads from a descriptor that was opened with O_DIRECT.
  explicit BulkReader(File file, PositionedRead direct_preadv = ::preadv);
  ~BulkReader();
  BulkReader(const BulkReader&) = delete;
  BulkReader& operator=(const BulkReader&) = delete;

  [[nodiscard]] const File& file() const noexcept { return file_; }
  /// Fills `destination` from `offset` on. Returns the bytes read: fewer only at the end of the file. Blocks
  /// the host. Throws Error if the system refuses.
  std::size_t read(std::uint64_t offset, std::span<std::byte> destination);
  /// The bytes that were read so far.
  [[nodiscard]] WeightReads reads() const noexcept;

 private:
  enum class Place : std::uint8_t { unknown, memory, disk };

  [[nodiscard]] bool is_in_memory(std::uint64_t window) noexcept;
  /// The system reads ahead of reads through the page cache: later, bytes from the disk would look as if they
  /// had been in memory.
  void ask_for_all_windows() noexcept;
  /// As read. Fewer bytes may also mean that the file system refused: may_be_direct_ is false then.
  std::size_t read_direct(std::uint64_t offset, std::span<std::byte> destination);
  // Parts of it, by one call each.
  std::size_t read_in_place(std::uint64_t offset, std::span<std::byte> destination);
  std::size_t read_through_buffer(std::uint64_t offset, std::span<std::byte> destination);
  /// The bytes read, or 0 if the file system refused.
  std::size_t read_blocks(std::uint64_t offset, std::span<const iovec> places);

  const File file_;
  const Residency residency_;
  const PositionedRead preadv_;
  int direct_ = -1;
  std::size_t offset_alignment_ = 0;
  std::size_t address_alignment_ = 0;
  std::atomic<bool> may_be_direct_{false};
  std::vector<std::atomic<Place>> windows_;
  std::once_flag ask_all_;
  std::atomic<std::uint64_t> cached_{0};
  std::atomic<std::uint64_t> past_cache_{0};
  std::atomic<std::uint64_t> through_cache_{0};
};

}  // namespace penstock
