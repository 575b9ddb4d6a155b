#pragma once

#include "data/direct_file.hpp"
#include "data/residency.hpp"

#include <penstock/data/weights.hpp>

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
/// The choice is made for each window of the file when a byte of it is first read. See BlockRead: the buffer
/// is one of the thread.
class BulkReader {
 public:
  static constexpr std::uint64_t kWindow = std::uint64_t{4} << 20;
  /// preadv, or a stand-in.
  using PositionedRead = ssize_t (*)(int, const iovec*, int, off_t);

  /// `direct_preadv`: reads from a descriptor that was opened with O_DIRECT.
  explicit BulkReader(File file, PositionedRead direct_preadv = ::preadv);

  [[nodiscard]] const File& file() const noexcept { return direct_.file(); }
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
  /// As read. Fewer bytes may also mean that the file system refused: no read is direct from then on.
  std::size_t read_direct(std::uint64_t offset, std::span<std::byte> destination);
  /// The bytes of the blocks, or 0 if the file system refused.
  std::size_t read_blocks(const BlockRead& read);

  DirectFile direct_;
  const Residency residency_;
  const PositionedRead preadv_;
  std::vector<std::atomic<Place>> windows_;
  std::once_flag ask_all_;
  std::atomic<std::uint64_t> cached_{0};
  std::atomic<std::uint64_t> past_cache_{0};
  std::atomic<std::uint64_t> through_cache_{0};
};

}  // namespace penstock
