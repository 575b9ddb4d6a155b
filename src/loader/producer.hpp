#pragma once

#include "loader/copy_pacer.hpp"
#include "loader/device_ring.hpp"
#include "loader/feeders.hpp"

#include <penstock/memory/pool.hpp>
#include <penstock/transfer/account.hpp>
#include <penstock/transfer/pinned_ring.hpp>

#include <cstddef>
#include <memory>
#include <vector>

namespace penstock {

/// Batches that are enqueued and have not arrived, at most.
[[nodiscard]] std::size_t most_under_way(std::size_t prefetch_depth);

/// Fills slots: a loop over the plan's feeders, staging slots and copy streams in turn. One thread at a time.
class Producer {
 public:
  /// Takes pinned memory, streams and events, and staging buffers of `device_memory`. Throws OutOfMemory.
  Producer(FeedContext context, const DeviceRing& ring, Pool& device_memory, std::size_t prefetch_depth);
  /// Waits for copies in flight.
  ~Producer();
  Producer(const Producer&) = delete;
  Producer& operator=(const Producer&) = delete;

  /// Enqueues the batch of `slot.run` into `slot`; `slot.ready` marks its end. Blocks the host while it
  /// gathers, while earlier copies read all staging slots, and as CopyPacer says. Throws the exceptions of
  /// reading. `slot.ready` then marks the enqueued work, or that work is done. If neither is possible, sets
  /// `may_be_written`.
  void fill(DeviceSlot& slot, PublishedItem& item, const Account& account, bool& may_be_written);

  /// Blocks the host until no enqueued work reads the dataset or writes a slot.
  void synchronize() const;

 private:
  const FeedContext context_;
  const DeviceRing& ring_;
  const std::vector<std::unique_ptr<Feeder>> feeders_;
  CopyPacer pacer_;
  std::vector<CopyStream> copy_streams_;
  Pool pinned_;
  PinnedRing staging_;
  std::vector<StagingSlot> staging_slots_;          ///< the slots of staging_, in their order
  std::vector<std::shared_ptr<const Event>> ends_;  ///< of the latest batches, each in the place of its turn
  std::size_t turn_ = 0;
};

}  // namespace penstock
