#pragma once

#include "transfer/transfer_state.hpp"

#include <penstock/core/copy_bytes.hpp>
#include <penstock/memory/pool.hpp>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace penstock {

struct StagingOptions {
  unsigned threads = 4;
  std::size_t chunk_bytes = std::size_t{4} << 20;
  unsigned slots_per_thread = 3;
  StoreKind stores = StoreKind::streaming;
  /// Streams to spread copies over: they overlap the gap that the copy engine leaves between copies of one.
  unsigned wires = 2;
};

class StagedJob;

/// Moves pageable memory through pinned slots, in one direction.
///
/// Each thread owns a few slots and takes the next chunk of the oldest transfer that has one left; so the
/// host copies of several chunks run side by side while earlier ones are on the wire, and no chunk waits for
/// another thread. Chunks are small at both ends of a transfer: the wire starts after a small first fill
/// instead of a large one, and no thread is left alone with a large last one.
class StagingRing {
 public:
  StagingRing(Device device, std::shared_ptr<Pool> pinned, std::shared_ptr<EventPool> events,
              CopyDirection direction, StagingOptions options);
  /// Cancels what is not yet with the driver, waits for the rest.
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  /// Returns at once. `after`: copies wait for it; may be null.
  void submit(const std::shared_ptr<TransferState>& state, void* destination, const void* source,
              EventPool::Handle after);

 private:
  struct Slot;
  class Worker;

  void start();
  void run(std::size_t index);
  [[nodiscard]] std::shared_ptr<StagedJob> next_job(const std::shared_ptr<StagedJob>& finished);
  /// Records the event after which every copy of `job` is done.
  void mark_submitted(StagedJob& job, bool host_finishes);
  /// Ends `job` where this is its end. A transfer that stopped early ends only when its copies have drained.
  void conclude(StagedJob& job) noexcept;

  const Device device_;
  const std::shared_ptr<Pool> pinned_;
  const std::shared_ptr<EventPool> events_;
  const CopyDirection direction_;
  const StagingOptions options_;

  // Made by the first transfer, then fixed.
  std::size_t slot_bytes_ = 0;
  Buffer slots_;
  std::vector<Stream> wires_;
  std::vector<std::unique_ptr<Worker>> workers_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<StagedJob>> jobs_;
  std::atomic<std::uint64_t> version_{0};  // bumped under mutex_ with each change, polled without it
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace penstock
