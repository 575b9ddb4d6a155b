#pragma once

#include "device/shared/peer_memory.hpp"
#include "loader/batch_parts.hpp"

#include <penstock/core/function_ref.hpp>
#include <penstock/device/device.hpp>
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
///
/// If the processes cannot read each other's memory, or read wrong bytes, there are no places: see refusal.
/// For each batch in turn: offer; wait_for_offers. It says that all have come to the batch, with the same
/// samples.
class PeerParts {
 public:
  using Clock = std::chrono::steady_clock;

  /// Tells the others where this process's places are, maps theirs, and tries whether bytes arrive right from
  /// there. All processes make it at once. Throws OutOfMemory, DeviceError, and as ProcessBoard::exchange.
  PeerParts(Device device, ProcessBoard& board, const FeedPlan& whole, const BatchSplit& split);
  /// As leave.
  ~PeerParts();
  PeerParts(const PeerParts&) = delete;
  PeerParts& operator=(const PeerParts&) = delete;

  /// Why the processes cannot read each other's parts; empty if they can. It is empty in all of them or in
  /// none. If it is not, put, take and taken may not be called.
  [[nodiscard]] const std::string& refusal() const noexcept { return refusal_; }

  /// Enqueues the copy of this process's part to its place. The parts of the batch before are taken.
  void put(std::uint64_t turn, const DeviceBatch& part, const Stream& stream) const;
  /// The part in the place of batch `turn` may be taken. The copies to it are done. `draw`: a number that
  /// says which samples the whole batch has.
  void offer(std::uint64_t turn, std::uint64_t draw) noexcept;
  /// Blocks the host until all have offered their parts of batch `turn`, also empty ones. False if `stopped`
  /// is true. Throws Error if one of them has ended, left, failed, or gone to another place; also if one has
  /// another draw than this process.
  [[nodiscard]] bool wait_for_offers(std::uint64_t turn, FunctionRef<bool()> stopped) const;
  /// Enqueues the copies of the part of `rank`, `part`, to the fields of a slot for whole batches.
  void take(std::size_t rank, std::uint64_t turn, const BatchSplit::Part& part,
            const std::vector<DeviceField>& fields, const Stream& stream) const;
  /// The parts of batch `turn` have arrived. Throws Error if a process has ended meanwhile: its memory may
  /// not have held what it offered. Otherwise the others learn it.
  void taken(std::uint64_t turn);

  /// A process that is waited for in wait_for_offers.
  struct Awaited {
    std::size_t rank = 0;
    Clock::time_point since;  ///< when the wait began
  };
  /// Any thread may ask.
  [[nodiscard]] std::optional<Awaited> awaited() const noexcept;

  /// The processes go to another place: no parts are on the way in any of them when this returns, and batches
  /// count from 0 again. `place`: a text that is the same in all. No work of this process is under way.
  /// Throws InvalidArgument if the places differ. Throws as ProcessBoard::exchange if the processes do not
  /// come together: as after give_up.
  void start_anew(const std::string& place);
  /// This process cannot go on with the others, nor they with it: see end_if_over.
  void give_up() noexcept { is_over_ = true; }
  /// Unmaps the memory of the others if one of them takes part no more: there will be no more parts of it.
  /// The same after give_up; then the others also learn that this process takes part no more. No copies of
  /// parts are under way.
  void end_if_over() noexcept;
  /// Waits, for at most `patience`, until the others have taken the parts of the first `count` batches, and
  /// takes part no more. Once one of them has ended, the others cannot go on either: does not wait for them.
  /// Frees the memory once the others have unmapped it, or lets it go with the process. No work of this
  /// process is under way.
  void leave(std::uint64_t count, std::chrono::milliseconds patience) noexcept;

 private:
  /// kDraw has a word for each place.
  enum Word : std::size_t { kOffered, kTaken, kGeneration, kDetached, kDraw };

  [[nodiscard]] bool one_is(bool (ProcessBoard::*gone)(std::size_t) const noexcept) const noexcept;
  /// Where a rank's part of a field begins in a place.
  [[nodiscard]] std::size_t offset_of(std::size_t rank, std::size_t field) const {
    return offsets_[rank][field];
  }
  /// Bytes at the begin of a rank's places with which the others try whether theirs arrive right.
  [[nodiscard]] std::size_t trial_size(std::size_t rank) const;
  /// Writes them to the own places, and returns their seed. They may be overwritten once all have tried.
  [[nodiscard]] std::uint64_t write_trial() const;
  /// Empty if the memory of all others is mapped, and its bytes arrive right; otherwise why not.
  [[nodiscard]] std::string map_others(const std::vector<std::string>& names);
  /// Throws Error if one of the others has ended, left, failed, or gone to another place, and has not offered
  /// its part of batch `turn`.
  void check_others(std::uint64_t turn) const;
  /// Throws Error if another process has offered other samples than this one.
  void check_draw(std::size_t rank, std::uint64_t turn) const;
  void detach() noexcept;
  /// Waits until all others have ended or `is_done(rank)` is true for them, at most until `end`. Returns
  /// whether that is so.
  template <typename IsDone>
  bool wait_for_others(Clock::time_point end, IsDone&& is_done) const noexcept;
  /// Frees the places once the others have unmapped them. If that takes longer than two seconds, they go with
  /// the process.
  void free_places() noexcept;

  const Device device_;
  ProcessBoard& board_;
  const FeedPlan& whole_;
  std::vector<std::vector<std::size_t>> offsets_;  ///< by rank and field
  std::vector<std::size_t> place_bytes_;           ///< by rank
  std::byte* own_ = nullptr;                       ///< null: there are no places
  std::vector<std::optional<PeerMemory>> others_;
  std::string refusal_;
  std::uint64_t generation_ = 0;
  mutable std::atomic<int> awaited_{-1};                      ///< a rank; -1: none
  mutable std::atomic<Clock::time_point> awaited_since_{{}};  ///< set before it
  bool is_over_ = false;
  bool left_ = false;
};

}  // namespace penstock
