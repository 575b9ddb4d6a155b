#pragma once

#include <penstock/data/readers.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

namespace penstock {

template <typename Sample>
class KeptSamples;
class AsyncReads;
class MappedFiles;

/// Reads samples that lie in mapped files of which pages are missing in memory. If a thread touches a missing
/// page, it waits for that page alone. So a disk is asked for many samples at once, also for those of the
/// next batches while it still reads those of a batch before. Thread-safe, if each lane has one thread at a
/// time.
///
/// Past the page cache, missing samples are read straight to their places if the disk allows it (O_DIRECT),
/// and the first of them are kept in memory. It is for files that are larger than memory. Through the page
/// cache, the system is asked for all samples before the first is touched.
class BlockReader {
 public:
  /// If `past_cache`, samples are kept within `kept_bytes` of memory. If the system gives no asynchronous
  /// reads, the page cache serves all. `lanes`: threads that read at the same time. Throws OutOfMemory.
  BlockReader(std::shared_ptr<const FieldReader> reader, bool past_cache, std::size_t kept_bytes,
              std::size_t lanes = 1);
  /// Waits for the reads under way.
  ~BlockReader();
  BlockReader(const BlockReader&) = delete;
  BlockReader& operator=(const BlockReader&) = delete;

  /// Bytes that the samples take: fewer than theirs if they overlap, as windows of a series do.
  [[nodiscard]] static std::uint64_t bytes_of(const FieldReader& reader) noexcept;
  /// True if one of some pages, spread over all samples, is missing. Never true below 64 MiB, and for samples
  /// that lie in no file.
  [[nodiscard]] static bool is_of(const FieldReader& reader);

  [[nodiscard]] std::size_t lanes() const noexcept { return lanes_.size(); }
  /// Asks the disk for samples, whose place is `destination`. Both outlive end(). Reads past the page cache
  /// begin as soon as those of the lane's earlier calls leave room. Does not wait for the disk.
  void begin(std::size_t lane, std::span<const std::uint64_t> indices, std::span<std::byte> destination);
  /// Has the samples of the lane's oldest begin() in their place. Blocks the host. Throws Error that names
  /// file and sample if a file was cut short or cannot be read.
  void end(std::size_t lane, StoreKind stores);
  /// Forgets what was begun and not ended. Blocks the host until no read is under way.
  void drop() noexcept;
  /// False once no page was missing when it looked again: the system is not asked for pages any more.
  [[nodiscard]] bool asks() const noexcept { return misses_pages_; }
  /// Samples that were read past the page cache so far.
  [[nodiscard]] std::uint64_t direct_reads() const noexcept { return direct_reads_; }

 private:
  /// The samples of a begin().
  struct Begun {
    std::span<const std::uint64_t> indices;
    std::span<std::byte> destination;
    std::vector<std::size_t> direct{};  ///< those that are read past the page cache
    std::vector<std::size_t> others{};
  };
  struct Lane {
    std::unique_ptr<AsyncReads> reads;  ///< null: through the page cache
    std::deque<Begun> begun;
  };
  [[nodiscard]] std::span<std::byte> place_of(const Begun& begun, std::size_t i) const noexcept;
  void read(const Begun& begun, std::size_t i, StoreKind stores) const;
  /// Asks the system for samples, as long as some pages are missing. Does not wait for the disk.
  void ask(std::span<const std::uint64_t> indices) const noexcept;

  const std::shared_ptr<const FieldReader> reader_;
  const std::size_t sample_bytes_;
  const std::unique_ptr<MappedFiles> files_;
  std::unique_ptr<KeptSamples<std::vector<std::byte>>> kept_;  ///< null: through the page cache
  std::deque<Lane> lanes_;
  std::atomic<std::uint64_t> direct_reads_{0};
  mutable std::atomic<std::uint64_t> asked_{0};
  mutable std::atomic<bool> misses_pages_{true};
};

}  // namespace penstock
