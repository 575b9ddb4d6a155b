#pragma once

#include "transfer/transfer_state.hpp"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace penstock {

/// A staged transfer on its way: which chunk is next, and what is still out. Thread-safe.
class StagedJob {
 public:
  struct Chunk {
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };

  StagedJob(std::shared_ptr<TransferState> transfer, std::byte* to, const std::byte* from,
            EventPool::Handle hold, std::size_t chunk_bytes, unsigned threads)
      : state(std::move(transfer)),
        destination(to),
        source(from),
        after(std::move(hold)),
        chunk_bytes_(chunk_bytes),
        smallest_(std::clamp<std::size_t>(
            chunk_bytes / 16, std::min<std::size_t>(chunk_bytes, std::size_t{64} << 10), chunk_bytes)),
        threads_(threads) {}

  const std::shared_ptr<TransferState> state;
  std::byte* const destination;
  const std::byte* const source;
  const EventPool::Handle after;

  /// The next chunk to move; none when all are taken or the transfer stops. Whoever takes one says when it
  /// is `enqueued`, and `returned` in any case.
  [[nodiscard]] std::optional<Chunk> take() {
    const std::lock_guard lock(mutex_);
    if (stopping() || next_ == state->bytes) return std::nullopt;
    // Sizes double with each round of the threads at the start, and halve towards the end.
    const std::size_t left = state->bytes - next_;
    const std::size_t ramp = smallest_ << std::min<std::size_t>(taken_ / threads_, 16);
    const std::size_t taper = std::max(left / (std::size_t{2} * threads_), smallest_);
    std::size_t size = std::min({ramp, taper, chunk_bytes_}) / kAlignment * kAlignment;
    size = std::min(std::max(size, kAlignment), left);
    const Chunk chunk{next_, size};
    next_ += size;
    ++taken_;
    ++out_;
    return chunk;
  }

  /// True for the one chunk after which every byte is with the driver.
  [[nodiscard]] bool enqueued(const Chunk& chunk) {
    const std::lock_guard lock(mutex_);
    enqueued_ += chunk.bytes;
    return enqueued_ == state->bytes;
  }

  void returned() {
    const std::lock_guard lock(mutex_);
    --out_;
  }

  /// Takes the right to end the transfer: true for one caller, once no chunk is out and none will be taken.
  [[nodiscard]] bool claim_end() {
    const std::lock_guard lock(mutex_);
    if (ended_ || out_ != 0 || !(stopping() || next_ == state->bytes)) return false;
    ended_ = true;
    return true;
  }

  void fail(std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
  }

  /// True when the transfer will end as cancelled, at the latest when a thread of the ring next looks at it.
  bool cancel() {
    const std::lock_guard lock(mutex_);
    if (failure_ || next_ == state->bytes) return false;
    cancelled_ = true;
    return true;
  }

  /// After claim_end: true where the transfer ends as cancelled.
  [[nodiscard]] bool was_cancelled() {
    const std::lock_guard lock(mutex_);
    return cancelled_;
  }

  [[nodiscard]] std::exception_ptr failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  static constexpr std::size_t kAlignment = 4096;

  [[nodiscard]] bool stopping() const noexcept { return cancelled_ || failure_ != nullptr; }

  const std::size_t chunk_bytes_;
  const std::size_t smallest_;
  const std::size_t threads_;

  std::mutex mutex_;
  std::size_t next_ = 0;      // bytes taken
  std::size_t enqueued_ = 0;  // bytes with the driver
  std::size_t taken_ = 0;     // chunks
  std::size_t out_ = 0;       // chunks taken and not returned
  bool cancelled_ = false;
  bool ended_ = false;
  std::exception_ptr failure_;
};

}  // namespace penstock
