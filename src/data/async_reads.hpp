#pragma once

#include "data/direct_file.hpp"

#include <penstock/core/function_ref.hpp>

#include <linux/aio_abi.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace penstock {

/// Direct reads that a disk does together, for one thread: Linux's asynchronous I/O, which sandboxes allow
/// that forbid io_uring. All reads end before it is destroyed.
class AsyncReads {
 public:
  static constexpr std::size_t kMost = 128;  ///< under way
  /// io_getevents, or a stand-in.
  using GetEvents = long (*)(aio_context_t context, long least, long most, io_event* events);

  AsyncReads();
  ~AsyncReads();
  AsyncReads(const AsyncReads&) = delete;
  AsyncReads& operator=(const AsyncReads&) = delete;

  /// False if the system gives no such reads. All others are refused then.
  [[nodiscard]] bool are_possible() const noexcept { return context_ != 0; }
  /// Adds a read, whose places outlive it, under a number below kMost that no read under way has.
  void add(std::size_t number, const DirectFile& file, const BlockRead& read) noexcept;
  /// Begins the added reads.
  void begin() noexcept;
  /// Waits for at least one read, if one was begun. Calls `done` for each that has ended, with the bytes
  /// read: 0 if it failed. `done` adds no read.
  void wait(FunctionRef<void(std::size_t number, std::size_t got)> done) noexcept;
  [[nodiscard]] std::size_t under_way() const noexcept { return under_way_; }

  /// For all threads, in tests. Null: the system's.
  static void stand_in(GetEvents get_events) noexcept;

 private:
  aio_context_t context_ = 0;
  std::array<iocb, kMost> requests_{};
  std::array<iocb*, kMost> added_{};
  std::size_t added_count_ = 0;
  std::size_t begun_ = 0;  ///< of the added
  std::size_t under_way_ = 0;
};

}  // namespace penstock
