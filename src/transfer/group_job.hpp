#pragma once

#include "transfer/packed_plan.hpp"
#include "transfer/shared/event_pool.hpp"
#include "transfer/transfer_state.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/transfer/transfer_engine.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace penstock {

/// What a transfer of a group sends: memory of the host, or what a function writes.
struct GroupImage {
  std::vector<DeviceRun> runs;  ///< where it lies in the destination at `base`; not empty
  const std::byte* base = nullptr;
  std::optional<PackedPlan> sources;
  FillFunction fill;  ///< in place of sources

  [[nodiscard]] std::size_t bytes() const { return runs.back().image.end; }
};

/// A transfer of a group in progress: which chunks are taken, and by whom. What changes is guarded by the
/// mutex of the engine.
class GroupJob {
 public:
  /// Members that share the chunks of the whole image, and members that each shall have all of them.
  struct Lane {
    std::vector<std::size_t> carriers;
    std::vector<std::size_t> receivers;
    std::size_t taken = 0;  ///< bytes
  };

  struct ChunkSizes {
    std::size_t first = 0;
    std::size_t largest = 0;
    /// The least at the end. If the last chunks were smaller, they would end while the host still notices
    /// that there is room for the next, and the link would idle: that cost 0.3 ms of 20 on two H100s.
    [[nodiscard]] std::size_t least_at_end() const { return std::max(first, largest / 4); }
  };

  GroupJob(std::shared_ptr<TransferState> transfer, GroupImage sent, std::vector<Lane> shared,
           std::size_t members, ChunkSizes chunk_sizes)
      : state(std::move(transfer)),
        image(std::move(sent)),
        destinations(members),
        locked(members),
        after(no_events(members)),
        ends(no_events(members)),
        lanes_(std::move(shared)),
        sizes_(chunk_sizes),
        carriers_(members) {
    for (Lane& lane : lanes_) {
      for (const std::size_t member : lane.carriers) {
        carriers_[member] = {.lane = &lane, .next_bytes = sizes_.first};
      }
    }
  }

  // Fixed once it is shared.
  const std::shared_ptr<TransferState> state;
  const GroupImage image;
  std::vector<std::byte*> destinations;  ///< of each member; null if it does not receive
  std::vector<bool> locked;              ///< each member: whether its device reads the sources in place
  std::vector<EventPool::Handle> after;  ///< what each destination waits for; may be null

  /// Marks the end of what each member has carried; null if it has carried nothing. The member's thread
  /// writes its own.
  std::vector<EventPool::Handle> ends;

  /// A fill has thrown: no part that has not begun is filled, and no chunk is sent any more. Any thread.
  std::atomic<bool> fill_failed{false};

  [[nodiscard]] const Lane& lane_of(std::size_t carrier) const { return *carriers_[carrier].lane; }

  [[nodiscard]] bool has_chunk(std::size_t member) const {
    const Carrier& carrier = carriers_[member];
    return !stopping() && carrier.lane != nullptr && !carrier.sits_out && !waits(carrier) &&
           has_chunk(*carrier.lane);
  }

  /// The next chunk for a member, who returns it; none if others have taken the last. Chunks grow while the
  /// link fills, and shrink at the end, so that all links end together. A member that gives way takes a
  /// probe, by which it sees when the others are gone. It then waits while the receiver's own link carries
  /// some chunks.
  [[nodiscard]] std::optional<ImageRange> take_chunk(std::size_t member, bool gives_way) {
    if (!has_chunk(member)) return std::nullopt;
    Carrier& carrier = carriers_[member];
    Lane& lane = *carrier.lane;
    const std::size_t left = image.bytes() - lane.taken;
    const std::size_t fair = std::max(left / (2 * lane.carriers.size()), sizes_.least_at_end());
    const std::size_t most = gives_way ? sizes_.largest / 2 : carrier.next_bytes;
    const std::size_t bytes = std::min(align_up(std::min(fair, most), kAlignment), left);
    if (!gives_way) carrier.next_bytes = std::min(2 * carrier.next_bytes, sizes_.largest);
    ++out_;
    const std::size_t begin = std::exchange(lane.taken, lane.taken + bytes);
    carrier.waits_until = gives_way ? lane.taken + kChunksToAProbe * sizes_.largest : 0;
    return ImageRange{begin, begin + bytes};
  }

  /// The member carries no more. False if nobody is left to carry what it could have.
  [[nodiscard]] bool sit_out(std::size_t member) {
    carriers_[member].sits_out = true;
    return std::ranges::any_of(lane_of(member).carriers,
                               [&](std::size_t other) { return !carriers_[other].sits_out; });
  }

  void fail(std::exception_ptr reason) noexcept {
    if (!failure_) failure_ = std::move(reason);
  }
  /// True if the transfer will end as cancelled.
  bool cancel() noexcept {
    if (stopping() || std::ranges::none_of(lanes_, [&](const Lane& lane) { return has_chunk(lane); })) {
      return false;
    }
    cancelled_ = true;
    return true;
  }
  [[nodiscard]] bool stopping() const noexcept { return cancelled_ || failure_ != nullptr; }
  [[nodiscard]] const std::exception_ptr& failure() const noexcept { return failure_; }

  /// A chunk that was taken is with the drivers, or has failed.
  void return_chunk() noexcept { --out_; }
  /// True if no chunk will be taken any more, and all that were taken are returned.
  [[nodiscard]] bool is_over() const {
    return out_ == 0 &&
           (stopping() || std::ranges::none_of(lanes_, [&](const Lane& lane) { return has_chunk(lane); }));
  }

 private:
  static constexpr std::size_t kAlignment = 4096;
  // A probe is half a chunk: 3 % of the bytes.
  static constexpr std::size_t kChunksToAProbe = 16;

  struct Carrier {
    Lane* lane = nullptr;  ///< null: it does not carry
    std::size_t next_bytes = 0;
    bool sits_out = false;
    std::size_t waits_until = 0;  ///< bytes that the lane has taken by then
  };

  static std::vector<EventPool::Handle> no_events(std::size_t count) {
    std::vector<EventPool::Handle> events;
    events.reserve(count);
    for (std::size_t i = 0; i < count; ++i) events.emplace_back(nullptr, EventPool::Return{});
    return events;
  }

  /// Not if the receiver cannot carry: nobody might be left.
  [[nodiscard]] bool waits(const Carrier& carrier) const {
    return carrier.lane->taken < carrier.waits_until && !carriers_[carrier.lane->receivers.front()].sits_out;
  }
  [[nodiscard]] bool has_chunk(const Lane& lane) const { return lane.taken != image.bytes(); }

  std::vector<Lane> lanes_;
  const ChunkSizes sizes_;
  std::vector<Carrier> carriers_;
  std::size_t out_ = 0;  ///< chunks taken and not returned
  bool cancelled_ = false;
  std::exception_ptr failure_;
};

}  // namespace penstock
