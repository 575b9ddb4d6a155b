#pragma once

#include "transfer/transfer_state.hpp"

#include <penstock/core/bytes.hpp>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <memory>
#include <utility>

namespace penstock {

/// How a transfer is cut into chunks, each of which is one copy of the driver's.
///
/// A copy of any size costs a few µs on the wire, so chunks should be large. But the wire waits until the
/// first chunk is filled, so the first is small. Chunks then grow only as much as the threads together fill
/// faster than the wire empties; otherwise the wire would wait again. Towards the end they halve, so that
/// little is left to do after the last copy, or before it.
struct ChunkSizes {
  std::size_t smallest = 0;
  std::size_t largest = 0;
  double growth = 1.25;
};

/// A staged transfer on its way. Guarded by the mutex of the ring that moves it.
class StagedJob {
 public:
  struct Chunk {
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };

  StagedJob(std::shared_ptr<TransferState> transfer, std::byte* to, const std::byte* from,
            EventPool::Handle hold, const ChunkSizes& sizes)
      : state(std::move(transfer)),
        destination(to),
        source(from),
        after(std::move(hold)),
        sizes_(sizes),
        size_(static_cast<double>(std::min(sizes.smallest, sizes.largest))) {}

  const std::shared_ptr<TransferState> state;
  std::byte* const destination;
  const std::byte* const source;
  const EventPool::Handle after;

  [[nodiscard]] bool has_chunk() const noexcept { return !stopping() && next_ != state->bytes; }

  /// The next chunk; there is one. Whoever takes it says when it is enqueued, and returns it in any case.
  [[nodiscard]] Chunk take_chunk() {
    const std::size_t left = state->bytes - next_;
    const std::size_t taper = std::max(left / 2, sizes_.smallest);
    const std::size_t size =
        align_up(std::min({static_cast<std::size_t>(size_), taper, sizes_.largest}), kAlignment);
    const Chunk chunk{next_, std::min({size, sizes_.largest, left})};
    next_ += chunk.bytes;
    size_ = std::min(size_ * sizes_.growth, static_cast<double>(sizes_.largest));
    ++out_;
    return chunk;
  }

  /// True for the chunk after which every byte is with the driver.
  [[nodiscard]] bool enqueued(std::size_t bytes) noexcept {
    enqueued_ += bytes;
    return enqueued_ == state->bytes;
  }

  void returned() noexcept { --out_; }

  void fail(std::exception_ptr failure) noexcept {
    if (!failure_) failure_ = std::move(failure);
  }

  /// True if the transfer will end as cancelled.
  bool cancel() noexcept {
    if (!has_chunk()) return false;
    cancelled_ = true;
    return true;
  }

  [[nodiscard]] bool stopping() const noexcept { return cancelled_ || failure_ != nullptr; }
  [[nodiscard]] const std::exception_ptr& failure() const noexcept { return failure_; }

  /// Takes the right to end the transfer. True once, if no chunk is out and none will be taken.
  [[nodiscard]] bool claim_end() noexcept {
    if (ended_ || out_ != 0 || has_chunk()) return false;
    ended_ = true;
    return true;
  }

 private:
  static constexpr std::size_t kAlignment = 4096;

  const ChunkSizes sizes_;
  double size_;               // of the next chunk, while they grow
  std::size_t next_ = 0;      // bytes taken
  std::size_t enqueued_ = 0;  // bytes with the driver
  std::size_t out_ = 0;       // chunks taken and not returned
  bool cancelled_ = false;
  bool ended_ = false;
  std::exception_ptr failure_;
};

}  // namespace penstock
