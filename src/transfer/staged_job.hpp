#pragma once

#include "transfer/device_runs.hpp"
#include "transfer/transfer_state.hpp"

#include <penstock/core/bytes.hpp>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace penstock {

/// How a transfer is cut into chunks. Each chunk is one copy by the driver.
///
/// A copy of any size costs the link a few µs, so chunks should be large. But the link waits until the first
/// chunk is filled, so that one is small. Chunks then grow only as much as the threads fill faster than the
/// link empties; otherwise the link would wait again. Towards the end they halve, so that little work is left
/// after the last copy, or before it. Transfers that follow each other closely are one such sequence: the
/// link need not wait between them.
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

  /// `runs`: ascending, and not empty. Bytes between them stay in the slots.
  StagedJob(std::shared_ptr<TransferState> transfer, std::vector<DeviceRun> runs, HostSide host_side,
            EventPool::Handle hold, const ChunkSizes& sizes)
      : state(std::move(transfer)),
        on_device(std::move(runs)),
        on_host(std::move(host_side)),
        after(std::move(hold)),
        bytes_(on_device.back().image.end),
        sizes_(sizes) {}

  const std::shared_ptr<TransferState> state;
  const std::vector<DeviceRun> on_device;
  const HostSide on_host;
  const EventPool::Handle after;

  [[nodiscard]] bool has_chunk() const noexcept { return !stopping() && next_ != bytes_; }

  /// The next chunk, of about `size` bytes, which must exist. `is_followed`: another transfer comes after
  /// this one, so that the last chunks need not be small. The caller says when it is enqueued, and returns it
  /// in any case.
  [[nodiscard]] Chunk take_chunk(std::size_t size, bool is_followed) {
    const std::size_t left = bytes_ - next_;
    const std::size_t taper = is_followed ? left : std::max(left / 2, sizes_.smallest);
    size = align_up(std::min({size, taper, sizes_.largest}), kAlignment);
    const Chunk chunk{next_, std::min({size, sizes_.largest, left})};
    next_ += chunk.bytes;
    ++out_;
    return chunk;
  }

  /// True for the last chunk: the driver then has every byte.
  [[nodiscard]] bool enqueued(std::size_t bytes) noexcept {
    enqueued_ += bytes;
    return is_enqueued();
  }
  [[nodiscard]] bool is_enqueued() const noexcept { return enqueued_ == bytes_; }

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

  const std::size_t bytes_;  // of the image
  const ChunkSizes sizes_;
  std::size_t next_ = 0;      // bytes taken
  std::size_t enqueued_ = 0;  // bytes with the driver
  std::size_t out_ = 0;       // chunks taken and not returned
  bool cancelled_ = false;
  bool ended_ = false;
  std::exception_ptr failure_;
};

}  // namespace penstock
