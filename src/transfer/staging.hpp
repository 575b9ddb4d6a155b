#pragma once

#include "transfer/staged_job.hpp"
#include "transfer/transfer_state.hpp"

#include <penstock/core/copy_bytes.hpp>
#include <penstock/core/pause.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/transfer/pinned_ring.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace penstock {

struct StagingOptions {
  /// That fill or empty slots. With more than one, the last of them is whoever synchronizes with the
  /// transfer: it is awake, which threads of the ring may not be.
  unsigned threads = 4;
  /// Pinned slots, each as large as the largest chunk.
  unsigned slots = 4;
  ChunkSizes chunks;
  StoreKind stores = StoreKind::streaming;
  /// How long idle threads poll before they sleep: about as long as a full ring takes to drain, so that of
  /// transfers one after another, the next finds them awake. Those that come later find them asleep.
  std::chrono::microseconds spin{1000};
};

/// Moves pageable memory through pinned slots, in one direction.
///
/// A chunk of a transfer has a slot, and all threads fill (H2D) or empty (D2H) it together, a granule at a
/// time, while chunks in other slots are on the wire. Whoever fills the last granule of a slot sends it;
/// whoever finds a slot free has the next chunk come into it.
class StagingRing {
 public:
  /// Copies go over `wire`, which outlives the ring.
  StagingRing(Device device, std::shared_ptr<Pool> pinned, std::shared_ptr<EventPool> events,
              CopyDirection direction, const Stream& wire, StagingOptions options);
  /// Cancels the chunks that are not yet with the driver, and waits for the others.
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  /// Returns at once. `after`: copies wait for it; may be null.
  void submit(const std::shared_ptr<TransferState>& state, void* destination, const void* source,
              EventPool::Handle after);

 private:
  struct Slot;
  /// What a thread does next: has a chunk come into its slot, or moves a granule of one.
  struct Task {
    Slot* slot = nullptr;
    bool fetch = false;
    std::size_t offset = 0;  // of the granule, within the chunk
    std::size_t bytes = 0;
  };

  void start();
  void run();
  /// Works on tasks of `job` as long as there is one at once: not on those of other transfers, whose copies
  /// may be held back by what the calling thread is yet to do.
  void help(const StagedJob& job);
  void end_exhausted_jobs(std::unique_lock<std::mutex>& lock);
  /// The next task; none when the ring stops. Waits with `lock` released.
  [[nodiscard]] std::optional<Task> next_task(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] std::optional<Task> find_task(const StagedJob* only = nullptr);
  /// For the next chunk of the foremost transfer, which has one: those that have none are ended first.
  [[nodiscard]] bool open_slot();
  void perform(const Task& task);
  void move_granule(const Task& task);
  /// Enqueues the chunk's copy, and marks the transfer as submitted where it was the last one.
  void enqueue(Slot& slot);
  void granule_done(Slot& slot, std::size_t bytes);
  /// Gives the slot of a chunk back, and ends the transfer where this was its end.
  void close_slot(Slot& slot, std::unique_lock<std::mutex>& lock);
  void conclude(const std::shared_ptr<StagedJob>& job, std::unique_lock<std::mutex>& lock) noexcept;

  const Device device_;
  const std::shared_ptr<Pool> pinned_;
  const std::shared_ptr<EventPool> events_;
  const CopyDirection direction_;
  const Stream& wire_;
  const StagingOptions options_;

  // Made by the first transfer, then fixed.
  std::size_t slot_bytes_ = 0;
  std::unique_ptr<PinnedRing> ring_;  // waits for the last copies when it goes
  std::vector<std::unique_ptr<Slot>> slots_;

  /// Outlives the ring in the handles of its transfers.
  struct Monitor {
    std::mutex mutex;
    std::condition_variable condition;
    std::atomic<std::uint64_t> version{0};  // bumped under the mutex with each change, polled without it
    unsigned helpers = 0;                   // threads not of the ring that are at work in it
    bool closed = false;

    void changed() {
      version.fetch_add(1, std::memory_order_release);
      condition.notify_all();
    }
  };
  const std::shared_ptr<Monitor> monitor_ = std::make_shared<Monitor>();
  // Guarded by the monitor, as is the state of slots and jobs.
  std::deque<std::shared_ptr<StagedJob>> jobs_;
  std::size_t under_way_ = 0;  // transfers that have not ended
  PollingTime polling_;        // between transfers
  std::uint64_t opened_ = 0;   // slots opened so far; the next one is opened_ % slots
  std::uint64_t handing_ = 0;  // the oldest of them that may have granules left
  std::vector<std::thread> threads_;
};

}  // namespace penstock
