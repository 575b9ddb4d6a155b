#pragma once

#include "data/direct_file.hpp"

#include <penstock/core/fork.hpp>
#include <penstock/core/function_ref.hpp>

#include <linux/aio_abi.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace penstock {

/// Reads past the page cache that a disk does together: Linux's asynchronous I/O, which sandboxes allow that
/// forbid io_uring. Small pieces that are neighbours in a file are one read.
///
/// Reads come in batches. Those of a batch begin as soon as the ones of earlier batches leave room, so that
/// the disk is as busy at the end of a batch as within it. One thread at a time, and not necessarily the
/// same. In a forked child, it can only be destroyed.
class AsyncReads {
 public:
  static constexpr std::size_t kMost = 128;  ///< under way

  /// The system's calls, or stand-ins.
  struct Calls {
    long (*setup)(std::size_t most, aio_context_t* context);
    long (*submit)(aio_context_t context, long count, iocb** requests);
    long (*get_events)(aio_context_t context, long least, long most, io_event* events);
  };
  static const Calls kSystem;
  static void stand_in(const Calls& calls) noexcept;  ///< for all; lives as long as it is used

  AsyncReads();
  /// Waits for the reads under way.
  ~AsyncReads();
  AsyncReads(const AsyncReads&) = delete;
  AsyncReads& operator=(const AsyncReads&) = delete;

  /// False if the system gives no such reads.
  [[nodiscard]] bool are_possible() const noexcept { return context_ != 0; }
  /// Adds a piece of `file` to the next batch, for a sample that the caller numbers.
  void want(DirectFile& file, FilePiece piece, std::size_t sample);
  /// Begins a batch: the pieces that were wanted since the last call. Does not wait for the disk.
  void begin();
  /// Ends the oldest batch. Blocks the host, which does `meanwhile` first. Returns the samples of which some
  /// bytes did not come, each once or more, until the next call. Throws what `meanwhile` throws; the batch is
  /// then still the oldest.
  std::span<const std::size_t> end(FunctionRef<void()> meanwhile);
  /// Waits for the reads under way, and forgets all batches.
  void drop() noexcept;

 private:
  struct Wanted {
    DirectFile* file = nullptr;
    FilePiece piece;
    std::size_t sample = 0;
  };
  /// Wanted pieces, by their order, that one read brings.
  struct Part {
    std::size_t first = 0;
    std::size_t count = 0;
    std::size_t bytes = 0;
  };
  struct Batch {
    std::vector<Wanted> wanted;
    std::vector<FilePiece> pieces;  ///< of the wanted
    std::vector<Part> parts;
    std::vector<std::size_t> failed;
    std::size_t next = 0;  ///< part to begin
    std::size_t left = 0;  ///< parts that have not ended
  };
  struct Slot {
    iocb request{};
    BlockRead read;
    Batch* batch = nullptr;
    Part part;
  };

  static void make_parts(Batch& batch);
  void begin_part(Batch& batch, std::size_t slot);
  void begin_some() noexcept;
  void wait() noexcept;
  void end_part(std::size_t slot, std::int64_t got) noexcept;

  const std::uint64_t generation_ = fork_generation();
  aio_context_t context_ = 0;
  const HostPages buffers_;  ///< one for each slot
  std::array<Slot, kMost> slots_;
  std::vector<std::size_t> free_;
  std::vector<Wanted> wanted_;  ///< for the next batch
  std::deque<Batch> batches_;   ///< begun, the oldest first
  std::vector<std::size_t> failed_;
  std::size_t bytes_ = 0;  ///< under way
};

}  // namespace penstock
