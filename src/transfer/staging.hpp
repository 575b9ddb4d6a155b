#pragma once

#include "core/shared/pause.hpp"
#include "transfer/copy_lane.hpp"
#include "transfer/staged_job.hpp"
#include "transfer/transfer_state.hpp"

#include <penstock/core/copy_bytes.hpp>
#include <penstock/core/host_workers.hpp>
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
  /// Threads that move the bytes of a transfer. One is the thread that synchronizes with it. The other is the
  /// ring's if two are asked for; if more are, they are workers, and the ring's thread waits for the device.
  unsigned threads = 4;
  /// Pinned slots, each as large as the largest chunk.
  unsigned slots = 4;
  ChunkSizes chunks;
  StoreKind stores = StoreKind::streaming;
  /// How long idle threads poll before they sleep: about as long as a full ring takes to drain, so that the
  /// next of several transfers one after another finds them awake.
  std::chrono::microseconds spin{1000};
};

/// Moves bytes between pageable memory, or a callback, and the device through pinned slots, in one direction.
///
/// Each chunk of a transfer has a slot. Host workers fill (H2D) or empty (D2H) it together, a granule at a
/// time, while chunks in other slots cross the link. The thread that fills the last granule of a slot sends
/// it. Workers never wait. The ring's one thread does: for the next slot, while workers use the one before.
/// It moves granules if there is nothing to wait for. So do threads that synchronize with a transfer; they
/// wait if there is nothing to move.
class StagingRing final : HostWorkers::Source {
 public:
  /// Copies are enqueued on `wire`, which outlives the ring: in turn to the device, on one of its streams to
  /// the host.
  StagingRing(Device device, std::shared_ptr<HostWorkers> workers, std::shared_ptr<Pool> pinned,
              std::shared_ptr<EventPool> events, CopyDirection direction, CopyLane& wire,
              StagingOptions options);
  /// Cancels chunks that the driver does not have yet, and waits for the others.
  ~StagingRing() override;
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  /// Returns at once. `on_host` is called until the transfer's host part ends, and destroyed on any thread.
  /// `after`: copies wait for it; may be null.
  void submit(const std::shared_ptr<TransferState>& state, std::vector<DeviceRun> on_device, HostSide on_host,
              EventPool::Handle after);
  /// The host's part copies memory: from `on_host` (H2D), or to it (D2H).
  void submit(const std::shared_ptr<TransferState>& state, std::byte* on_device, std::byte* on_host,
              EventPool::Handle after);
  [[nodiscard]] StoreKind stores() const noexcept { return options_.stores; }

 private:
  struct Slot;
  struct Task {
    enum class Kind : std::uint8_t {
      fetch,  ///< D2H: enqueue the chunk's copy into its slot
      wait,   ///< until the device is done with the slot, so that granules can be moved
      move,   ///< a granule
    };
    Kind kind = Kind::move;
    Slot* slot = nullptr;
    std::size_t offset = 0;  ///< of the granule, within the chunk
    std::size_t bytes = 0;
  };
  /// When a thread waits for the device.
  enum class Waits : std::uint8_t { never, if_nothing_to_move, first };

  // Called by workers.
  bool work() noexcept override;
  [[nodiscard]] std::chrono::nanoseconds polling() const noexcept override;

  void start();
  void work_begins();
  void work_ends();
  void run();
  struct Monitor;
  /// Performs tasks of `job` until other threads have the last of them. Blocks the host until then. Leaves
  /// tasks of other transfers alone. Does not touch the ring once it is closed; it is destroyed when the last
  /// transfer has ended.
  void help(const StagedJob& job, Monitor& monitor);
  [[nodiscard]] bool has_work_left(const StagedJob& job) const;
  [[nodiscard]] Slot& slot_at(std::uint64_t number) const { return *slots_[number % slots_.size()]; }
  void end_exhausted_jobs();
  [[nodiscard]] std::optional<Task> find_task(Waits waits, const StagedJob* only = nullptr);
  [[nodiscard]] bool may_open_slot(const StagedJob* only) const;
  /// How large the next chunk may be: it grows from chunk to chunk, until all transfers have ended.
  [[nodiscard]] std::size_t next_chunk_size();
  /// Opens the next slot for the next chunk of the first transfer; false if it is still open.
  [[nodiscard]] bool open_slot();
  /// Granules of `slot` can be moved from now on.
  void make_ready(Slot& slot);
  void perform(const Task& task);
  void wait_for(Slot& slot);
  void move_granule(const Task& task);
  /// Enqueues the chunk's copy, and marks the transfer as submitted if it was the last one.
  void enqueue(Slot& slot);
  void enqueue_on(const Stream& stream, Slot& slot);
  void task_done(const Task& task);
  /// Gives the slot of a chunk back, and ends the transfer if this was its last.
  void close_slot(Slot& slot);
  /// Ends a transfer without chunks left. If it has stopped, leaves that to the ring's thread.
  void conclude(const std::shared_ptr<StagedJob>& job);
  /// Ends a failed or cancelled transfer, once the streams have drained; false if there is none. Releases
  /// `lock` meanwhile.
  bool end_stopped_job(std::unique_lock<std::mutex>& lock);

  const Device device_;
  const std::shared_ptr<HostWorkers> workers_;
  const std::shared_ptr<Pool> pinned_;
  const std::shared_ptr<EventPool> events_;
  const CopyDirection direction_;
  CopyLane& wire_;
  const StagingOptions options_;
  const std::chrono::nanoseconds helper_polling_;

  // Made by the first transfer, then fixed.
  std::size_t slot_bytes_ = 0;
  std::unique_ptr<PinnedRing> ring_;  // waits for the last copies when it goes
  std::vector<std::unique_ptr<Slot>> slots_;

  /// The handles of transfers keep it, so it outlives the ring.
  struct Monitor {
    std::mutex mutex;
    std::condition_variable condition;
    std::atomic<std::uint64_t> version{0};  // bumped under the mutex with each change, polled without it
    bool closed = false;

    /// Polls for `polled` before it sleeps, with `lock` released.
    void wait_for_change(std::unique_lock<std::mutex>& lock, std::uint64_t seen,
                         std::chrono::nanoseconds polled);
    void changed() {
      version.fetch_add(1, std::memory_order_release);
      condition.notify_all();
    }
  };
  const std::shared_ptr<Monitor> monitor_ = std::make_shared<Monitor>();
  // Guarded by the monitor, as is the state of slots and jobs.
  std::deque<std::shared_ptr<StagedJob>> jobs_;
  std::vector<std::shared_ptr<StagedJob>> stopped_;  // for the ring's thread to end
  std::atomic<std::size_t> under_way_{0};            // transfers that have not ended; read without the mutex
  PollingTime polling_;                              // between transfers
  std::size_t in_sequence_ = 0;                      // transfers after whose chunks there is no pause yet
  double chunk_size_ = 0;                            // of the latest chunk; 0 after a pause
  std::uint64_t opened_ = 0;                         // slots opened so far; the next one is opened_ % slots
  std::uint64_t handing_ = 0;                        // the oldest of them that may have granules left
  std::thread thread_;
};

}  // namespace penstock
