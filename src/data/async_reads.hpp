#pragma once

#include "data/direct_file.hpp"

#include <penstock/core/fork.hpp>
#include <penstock/core/function_ref.hpp>

#include <linux/aio_abi.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

/// Reads past the page cache that a disk does together, for one thread: Linux's asynchronous I/O, which
/// sandboxes allow that forbid io_uring. Small pieces that are neighbours in a file are one read.
class AsyncReads {
 public:
  /// io_getevents, or a stand-in.
  using GetEvents = long (*)(aio_context_t context, long least, long most, io_event* events);
  static void stand_in(GetEvents get_events) noexcept;  ///< for all threads; null: the system's

  /// That of the calling thread, which wants nothing yet. A forked child gets one of its own.
  static AsyncReads& of_thread();
  AsyncReads();
  ~AsyncReads();
  AsyncReads(const AsyncReads&) = delete;
  AsyncReads& operator=(const AsyncReads&) = delete;

  /// False if the system gives no such reads.
  [[nodiscard]] bool are_possible() const noexcept { return context_ != 0; }
  /// Adds a piece of `file` to the next read(), for a sample that the caller numbers.
  void want(DirectFile& file, FilePiece piece, std::size_t sample);
  /// Reads the wanted pieces. Blocks the host, which does `meanwhile` first. Returns the samples of which
  /// some bytes did not come, each once or more, until the next call. Throws what `meanwhile` throws.
  std::span<const std::size_t> read(FunctionRef<void()> meanwhile);

 private:
  static constexpr std::size_t kMost = 128;  ///< under way

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
  struct Slot {
    iocb request{};
    BlockRead read;
    Part part;
  };

  void make_parts();
  void begin_some() noexcept;
  void wait() noexcept;
  void end(std::size_t slot, std::int64_t got) noexcept;

  const std::uint64_t generation_ = fork_generation();
  aio_context_t context_ = 0;
  const HostPages buffers_;  ///< one for each slot
  std::array<Slot, kMost> slots_;
  std::vector<std::size_t> free_;
  std::vector<Wanted> wanted_;
  std::vector<FilePiece> pieces_;  ///< of the wanted
  std::vector<Part> parts_;
  std::vector<std::size_t> failed_;
  std::size_t next_ = 0;   ///< part to begin
  std::size_t bytes_ = 0;  ///< under way
};

}  // namespace penstock
