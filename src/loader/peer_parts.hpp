#pragma once

#include "loader/batch_parts.hpp"

#include <penstock/core/function_ref.hpp>
#include <penstock/device/device.hpp>
#include <penstock/device/peer_memory.hpp>
#include <penstock/loader/device_batch.hpp>
#include <penstock/loader/feed_plan.hpp>
#include <penstock/memory/process_board.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

/// The parts of batches that the processes of a group offer each other: each has two places for its own parts
/// in memory of its device, and reads those of the others. All waiting is the host's. One thread at a time.
///
/// For each batch in turn: put and offer; wait_for_offers; take all parts; taken. A part then stays in its
/// place until all have taken it.
class PeerParts {
 public:
  /// Tells the others where this process's places are, and maps theirs. All processes make it at once. Throws
  /// OutOfMemory, DeviceError, and as ProcessBoard::exchange.
  PeerParts(Device device, ProcessBoard& board, const FeedPlan& whole, const BatchSplit& split);
  /// As leave.
  ~PeerParts();
  PeerParts(const PeerParts&) = delete;
  PeerParts& operator=(const PeerParts&) = delete;

  /// Why the processes cannot read each other's parts; empty if they can. The same in all of them.
  [[nodiscard]] const std::string& refusal() const noexcept { return refusal_; }

  /// Enqueues the copy of this process's part to its place. The parts of the batch before are taken.
  void put(std::uint64_t turn, const DeviceBatch& part, const Stream& stream) const;
  /// The part in the place of batch `turn` may be taken. The copies to it are done.
  void offer(std::uint64_t turn) noexcept { board_.set(kOffered, turn + 1); }
  /// Blocks the host until all have offered their parts of batch `turn`, also empty ones. False if `stopped`
  /// is true. Throws Error if one of them has ended, left, failed, or gone to another place.
  [[nodiscard]] bool wait_for_offers(std::uint64_t turn, FunctionRef<bool()> stopped) const;
  /// Enqueues the copies of the part of `rank`, `part`, to the fields of a slot for whole batches.
  void take(std::size_t rank, std::uint64_t turn, const BatchSplit::Part& part,
            const std::vector<DeviceField>& fields, const Stream& stream) const;
  /// The parts of batch `turn` have arrived. Throws Error if a process has ended meanwhile: its memory may
  /// not have held what it offered. Otherwise the others learn it.
  void taken(std::uint64_t turn);

  /// The rank that is waited for; -1: none. Any thread may ask.
  [[nodiscard]] int awaited() const noexcept { return awaited_.load(std::memory_order_relaxed); }

  /// The processes go to another place: no parts are on the way in any of them when this returns, and batches
  /// count from 0 again. `place`: a text that is the same in all. No work of this process is under way.
  void start_anew(const std::string& place);
  /// Unmaps the memory of the others if one of them takes part no more: there will be no more parts of it. No
  /// copies of parts are under way.
  void detach_if_over() noexcept;
  /// Waits, for at most `patience`, until the others have taken the parts of the first `count` batches, and
  /// takes part no more. The memory is freed once the others have unmapped it. If that takes longer than two
  /// seconds, it goes with the process. No work of this process is under way.
  void leave(std::uint64_t count, std::chrono::milliseconds patience) noexcept;

 private:
  enum Word : std::size_t { kOffered, kTaken, kGeneration, kDetached };

  /// Where a rank's part of a field begins in a place.
  [[nodiscard]] std::size_t offset_of(std::size_t rank, std::size_t field) const {
    return offsets_[rank][field];
  }
  [[nodiscard]] std::string map_others(const std::vector<std::string>& names);
  /// Throws Error if any of the others has ended, left, failed, or gone to another place.
  void check_others() const;
  void detach() noexcept;

  const Device device_;
  ProcessBoard& board_;
  const FeedPlan& whole_;
  std::vector<std::vector<std::size_t>> offsets_;  ///< by rank and field
  std::vector<std::size_t> place_bytes_;           ///< by rank
  std::byte* own_ = nullptr;
  std::vector<std::optional<PeerMemory>> others_;
  std::string refusal_;
  std::uint64_t generation_ = 0;
  mutable std::atomic<int> awaited_{-1};
  bool left_ = false;
};

}  // namespace penstock
