#pragma once

#include "transfer/transfer_state.hpp"

#include <penstock/core/bytes.hpp>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <utility>

namespace penstock {

/// How a transfer is cut into chunks. Each chunk is one copy by the driver.
///
/// A copy of any size costs the link a few µs, so chunks should be large. But the link waits until the first
/// chunk is filled, so that one is small. Chunks then grow only as much as the threads fill faster than the
/// link empties; otherwise the link would wait again. Towards the end they halve, so that little work is left
/// after the last copy, or before it.
struct ChunkSizes {
  std::size_t smallest = 0;
  std::size_t largest = 0;
  double growth = 1.25;
};

/// The host's part of a staged transfer: fills bytes of a slot (H2D), or takes them (D2H). `offset` is that
/// of the bytes in the transfer. Several threads call it at once.
using HostSide = std::function<void(std::size_t offset, std::span<std::byte> staged)>;

/// A staged transfer in progress. Guarded by the mutex of the ring that moves it.
class StagedJob {
 public:
  struct Chunk {
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };

  StagedJob(std::shared_ptr<TransferState> transfer, std::byte* device_end, HostSide host_side,
            EventPool::Handle hold, const ChunkSizes& sizes)
      : state(std::move(transfer)),
        on_device(device_end),
        on_host(std::move(host_side)),
        after(std::move(hold)),
        sizes_(sizes),
        size_(static_cast<double>(std::min(sizes.smallest, sizes.largest))) {}

  const std::shared_ptr<TransferState> state;
  std::byte* const on_device;
  const HostSide on_host;
  const EventPool::Handle after;

  [[nodiscard]] bool has_chunk() const noexcept { return !stopping() && next_ != state->bytes; }

  /// The next chunk, which must exist. The caller says when it is enqueued, and returns it in any case.
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

  /// True for the last chunk: the driver then has every byte.
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
