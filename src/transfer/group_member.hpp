#pragma once

#include "transfer/group_job.hpp"

#include <penstock/core/copy_bytes.hpp>
#include <penstock/core/host_workers.hpp>
#include <penstock/device/device.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/transfer/pinned_ring.hpp>

#include <cstddef>
#include <deque>
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
};

/// What one device needs to carry chunks. One thread at a time carries.
///
///   host --- link (a stream) ---> destination, or a relay buffer --- push (another) ---> the other receivers
///
/// The push of a chunk waits for the link's copy of that chunk alone, so that both go on at once. A slot of
/// pinned memory is free once the link's copy is done, a relay buffer once the push is. The host waits for
/// the former. It thereby has at most as many chunks of a transfer on the link as there are slots.
class GroupMember {
 public:
  GroupMember(Device device, GroupMemberOptions options);

  /// Makes what `job` needs and blocks the host until the link has room for a chunk. Returns the slot that
  /// the chunk takes. Throws OutOfMemory, DeviceError.
  [[nodiscard]] PinnedRing::Slot& wait_for_room(const GroupJob& job, std::size_t self);
  /// Enqueues a chunk of `job`, and marks its end. If it throws, nothing is on its way.
  void carry(GroupJob& job, std::size_t self, ImageRange range, PinnedRing::Slot& slot);
  /// Blocks the host until the device has done what was carried so far, or has failed.
  void drain() noexcept;

  [[nodiscard]] EventPool& events() const noexcept { return *events_; }
  [[nodiscard]] unsigned threads() const noexcept { return threads_; }

 private:
  struct RelayBuffer {
    Buffer memory;
    Event pushed;
  };

  void fill(const GroupJob& job, ImageRange range, std::byte* slot) const;
  void enqueue(GroupJob& job, std::size_t self, ImageRange range, PinnedRing::Slot& slot);

  const Device device_;
  const GroupMemberOptions options_;
  const std::shared_ptr<HostWorkers> workers_;
  const unsigned threads_;
  const std::shared_ptr<EventPool> events_;
  Pool pinned_;
  Pool memory_;
  const Stream link_;
  const Stream push_;
  Event arrived_;
  std::optional<PinnedRing> staged_;    // made when first needed
  std::optional<PinnedRing> in_place_;  // slots without memory: only the number of chunks is bounded
  std::deque<RelayBuffer> relays_;
  std::size_t relay_turn_ = 0;
};

}  // namespace penstock
