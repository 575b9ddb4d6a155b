#pragma once

#include "core/shared/chunk_filler.hpp"
#include "transfer/group_job.hpp"
#include "transfer/shared/relay_pace.hpp"

#include <penstock/core/copy_bytes.hpp>
#include <penstock/core/function_ref.hpp>
#include <penstock/core/host_workers.hpp>
#include <penstock/device/device.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/transfer/pinned_ring.hpp>

#include <atomic>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace penstock {

struct GroupMemberOptions {
  unsigned threads = 1;  ///< at most as many as the device's team has
  unsigned slots = 4;
  std::size_t chunk_bytes = 0;  ///< of the largest chunk
  StoreKind stores = StoreKind::streaming;
  /// Measured rates, in bytes/s: of its link while all are used, and from it to each member. 0, or empty: not
  /// known.
  double link = 0;
  std::vector<double> peers = {};
};

/// What one device needs to carry chunks. One thread at a time carries.
///
///   host --- link (a stream) ---> destination, or a relay buffer --- push (another) ---> the other receivers
///
/// The push of a chunk waits for the link's copy of that chunk alone, so that both go on at once. A slot of
/// pinned memory is free once the link's copy is done, a relay buffer once the push is. The host waits for
/// both. It thereby has at most as many chunks of a transfer on the link as there are slots. While it fills
/// one, it begins with the next one if there is room.
///
/// The device times what it relays, and what it pulls while others relay to it. The host reads the times
/// later, and never waits for them.
class GroupMember {
 public:
  GroupMember(Device device, GroupMemberOptions options);

  /// What a chunk takes while it is on its way.
  struct Room;

  /// Makes what `job` needs and blocks the host until the link has room for a chunk. Throws OutOfMemory,
  /// DeviceError.
  [[nodiscard]] Room wait_for_room(const GroupJob& job, std::size_t self);
  /// Room for one more chunk of `job`, which is not locked and for which there was room before. None if the
  /// link has none now. Does not block. Throws DeviceError.
  [[nodiscard]] std::optional<Room> find_room(const GroupJob& job, std::size_t self);
  /// True if others use the wires over which this member would relay. Call it after wait_for_room. `own`:
  /// link_pace() of the receiver.
  [[nodiscard]] bool should_give_way(const GroupJob& job, std::size_t self, double own) const;
  /// ChunkRates::pace of the link, by what it brought to this member while others relayed to it. Any thread.
  [[nodiscard]] double link_pace() const noexcept { return link_pace_; }
  /// Host workers begin to fill the room of a chunk. Does not block. The job and the room outlive the chunk.
  void begin(GroupJob& job, std::size_t self, ImageRange range, const Room& room);
  /// Fills the chunk that was begun first, enqueues it unless a fill of the job has failed, and marks its
  /// end. `begin_next`: may begin another one; called once, before the host threads run out of work, unless
  /// there is only one or nothing to fill. If it throws, nothing is on its way. Throws DeviceError, or what
  /// the job's fill throws.
  void finish(GroupJob& job, std::size_t self, ImageRange range, const Room& room,
              FunctionRef<void()> begin_next);
  /// Blocks the host until the device has done what was carried so far, or has failed.
  void drain() noexcept;

  [[nodiscard]] EventPool& events() const noexcept { return *events_; }
  [[nodiscard]] unsigned threads() const noexcept { return threads_; }

 private:
  struct RelayedChunk {
    std::size_t receiver = 0;
    std::size_t bytes = 0;
    std::size_t pulls = 0;  ///< copies
    std::size_t pushes = 0;
  };
  struct RelayBuffer {
    RelayBuffer(const Device& device, Buffer buffer);

    Buffer memory;
    Event pull_begins;
    std::shared_ptr<Event> pulled;
    Event push_begins;
    Event pushed;
    std::optional<RelayedChunk> chunk;  ///< until its times are read
  };

  /// A chunk that lands in its destination, while others relay to the same one.
  struct OwnChunk {
    Event begins;
    std::shared_ptr<Event> pulled;
    std::size_t bytes = 0;  ///< 0: nothing to be read
    std::size_t copies = 0;
  };

  /// The next slot, relay buffer and times in turn, all of which are free.
  [[nodiscard]] Room take_room(const GroupJob& job, std::size_t self);
  [[nodiscard]] RelayBuffer& next_relay() noexcept { return relays_[relay_turn_ % relays_.size()]; }
  /// Reads the times of the chunks whose push is done. Does not block.
  void read_times();
  void read_own_times(OwnChunk& chunk);
  void enqueue(GroupJob& job, std::size_t self, ImageRange range, const Room& room);
  /// Marks the end of what the link has been given out of a slot, by `timed` if that is not null. Each event
  /// costs the link some microseconds, so one serves all who ask. Throws as PinnedRing::Slot::sent.
  void mark_pulled(PinnedRing::Slot& slot, const std::shared_ptr<Event>& timed);

  const Device device_;
  const GroupMemberOptions options_;
  const std::shared_ptr<HostWorkers> workers_;
  const unsigned threads_;
  const std::shared_ptr<EventPool> events_;
  Pool pinned_;
  Pool memory_;
  const Stream link_;
  const Stream push_;
  std::optional<PinnedRing> staged_;    // made when first needed
  std::optional<PinnedRing> in_place_;  // slots without memory: only the number of chunks is bounded
  std::deque<RelayBuffer> relays_;
  std::size_t relay_turn_ = 0;
  std::map<std::size_t, RelayPace> paces_;  // by receiver
  std::vector<OwnChunk> own_;
  std::size_t own_turn_ = 0;
  ChunkRates own_rates_;
  std::atomic<double> link_pace_ = 1;
  ChunkFiller filler_;
};

struct GroupMember::Room {
  PinnedRing::Slot* slot = nullptr;
  RelayBuffer* relay = nullptr;  ///< null: the chunk lands in its destination
  OwnChunk* own = nullptr;       ///< null: others do not relay to this member
};

}  // namespace penstock
