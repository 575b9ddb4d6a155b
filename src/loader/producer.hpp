#pragma once

#include "loader/batch_source.hpp"
#include "loader/copy_pacer.hpp"
#include "loader/device_ring.hpp"
#include "loader/feeders.hpp"

#include <penstock/memory/pool.hpp>
#include <penstock/transfer/account.hpp>
#include <penstock/transfer/pinned_ring.hpp>

#include <cstddef>
#include <deque>
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

  /// Enqueues the batch of `slot.run`, that of `turn`, into `slot`; `slot.ready` marks its end. Blocks the
  /// host while it gathers, while earlier copies read all staging slots, and as CopyPacer says. If samples
  /// come from a disk, it is asked for later batches, too, as far as there are staging slots. Throws the
  /// exceptions of reading; drop_begun() comes next then. `slot.ready` marks the enqueued work, or that work
  /// is done. If neither is possible, sets `may_be_written`.
  void fill(const Turn& turn, DeviceSlot& slot, PublishedItem& item, bool& may_be_written);
  /// The batches that were begun do not come. Blocks the host until no read is under way.
  void drop_begun() noexcept;

  /// Blocks the host until no enqueued work reads the dataset or writes a slot.
  void synchronize() const;

 private:
  /// A batch whose place is chosen, and whose samples the feeders know.
  struct Begun {
    PinnedRing::Slot* pinned = nullptr;  ///< null: it needs no staging slot
    StagingSlot staging;
    std::span<const std::uint64_t> indices;
  };
  void begin(const BatchSamples& samples);

  const FeedContext context_;
  const DeviceRing& ring_;
  const std::vector<std::unique_ptr<Feeder>> feeders_;
  CopyPacer pacer_;
  std::vector<CopyStream> copy_streams_;
  Pool pinned_;
  PinnedRing staging_;
  std::vector<StagingSlot> staging_slots_;          ///< the slots of staging_, in their order
  std::vector<std::shared_ptr<const Event>> ends_;  ///< of the latest batches, each in the place of its turn
  std::deque<Begun> begun_;
  std::size_t turn_ = 0;          ///< of the copy streams
  std::size_t staging_turn_ = 0;  ///< of the staging slots
};

}  // namespace penstock
