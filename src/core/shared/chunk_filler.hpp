#pragma once

#include "core/shared/pause.hpp"

#include <penstock/core/function_ref.hpp>
#include <penstock/core/host_workers.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>

namespace penstock {

/// Fills chunks of memory, one after another, by host workers and by the one thread that owns the filler.
///
/// The owner opens the next chunk before the parts of the first run out. So nobody waits for those who fill
/// the last parts of a chunk, nor for the owner while it sends one.
class ChunkFiller final : HostWorkers::Source {
 public:
  /// Fills a part, which begins `from` bytes after the chunk's first. Several threads call it at once.
  using FillPart = std::function<void(std::size_t from, std::size_t bytes)>;

  /// `threads`: that fill at a time, the owner among them.
  ChunkFiller(std::shared_ptr<HostWorkers> workers, unsigned threads);
  ~ChunkFiller() override;
  ChunkFiller(const ChunkFiller&) = delete;
  ChunkFiller& operator=(const ChunkFiller&) = delete;

  /// Workers begin with a chunk once those before it have no parts left. Does not block. By the owner, as
  /// below.
  void open(std::size_t bytes, FillPart fill);
  /// Blocks the host until the first open chunk is full. Before its parts run out, `open_next` is called once
  /// and may open another chunk; not if there is only one thread. Rethrows the first exception of the chunk's
  /// function. Its other parts are then left out, and nobody is in it any more.
  void finish_first(FunctionRef<void()> open_next);

 private:
  struct Chunk {
    FillPart fill;
    std::size_t bytes = 0;
    std::size_t part = 0;
    std::size_t handed_out = 0;  ///< bytes
    std::size_t left = 0;        ///< bytes that are not filled yet
    std::exception_ptr failure = nullptr;
  };

  // Called by workers.
  bool work() noexcept override;
  [[nodiscard]] std::chrono::nanoseconds polling() const noexcept override;

  /// Fills a part; false if all are handed out. Releases `lock` meanwhile.
  bool fill_part(std::unique_lock<std::mutex>& lock) noexcept;
  /// True if each thread would soon have to look for another chunk.
  [[nodiscard]] bool runs_out(const Chunk& chunk) const noexcept;
  void wait_until_full(std::unique_lock<std::mutex>& lock, const Chunk& chunk);

  const std::shared_ptr<HostWorkers> workers_;
  const unsigned threads_;
  PollingTime polling_;  ///< between chunks

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Chunk> chunks_;            ///< open, oldest first; guarded by the mutex
  std::atomic<std::size_t> open_{0};    ///< as many; read without the mutex
  std::atomic<std::uint64_t> full_{0};  ///< chunks so far; written under the mutex, polled without it
};

}  // namespace penstock
