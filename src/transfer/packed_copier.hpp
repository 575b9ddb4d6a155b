#pragma once

#include "transfer/packed_plan.hpp"
#include "transfer/transfer_state.hpp"

#include <penstock/core/copy_bytes.hpp>
#include <penstock/core/host_workers.hpp>
#include <penstock/memory/pool.hpp>

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

namespace penstock {

struct PackingOptions {
  unsigned threads = 1;  ///< threads that pack or unpack together
  /// Bytes that one thread packs at a time: some microseconds of work, so that threads share it evenly.
  std::size_t granule_bytes = std::size_t{32} << 10;
  DeviceTuning::Packing tuning;
};

/// Moves many small pieces as few large ones. Host workers pack and unpack host ends chunk by chunk, so that
/// the first chunk crosses the link while the next are packed. If small device ends lie apart, one kernel
/// gathers or scatters them. Thread-safe.
class PackedCopier {
 public:
  /// Copies to the host are enqueued on `unpack_stream`, which outlives the copier.
  PackedCopier(Device device, std::shared_ptr<HostWorkers> workers, std::shared_ptr<Pool> pinned,
               std::shared_ptr<Pool> scratch, std::shared_ptr<EventPool> events, const Stream& unpack_stream,
               PackingOptions options);
  /// Lets packed transfers that the driver has run to their end.
  ~PackedCopier();
  PackedCopier(const PackedCopier&) = delete;
  PackedCopier& operator=(const PackedCopier&) = delete;

  /// Blocks the host until every source is read and all copies are enqueued. Failures go to `state`. Rounds
  /// are on `streams` in turn, and the device begins one once that before is done: CopyTurns says why.
  /// `after`: the copies wait for it; may be null. If it is, the streams have a few rounds at a time, so that
  /// large transfers need little pinned memory.
  void to_device(const std::shared_ptr<TransferState>& state, const PackedPlan& plan,
                 const std::array<Stream, 2>& streams, EventPool::Handle after);
  /// Returns at once; `after` (may be null) holds the copies back. The first thread that synchronizes with
  /// the transfer writes the host's ends, or else a thread of the copier.
  void to_host(const std::shared_ptr<TransferState>& state, PackedPlan plan, EventPool::Handle after);
  /// One kernel, enqueued on `stream`.
  void on_device(const std::shared_ptr<TransferState>& state, const PackedPlan& plan, const Stream& stream);

 private:
  class Unpacking;

  [[nodiscard]] unsigned threads_for(const PackedPlan& plan) const noexcept;
  /// Calls `body` for each granule of `range`, with several threads if that pays.
  void for_each_granule(const PackedPlan& plan, ImageRange range, FunctionRef<void(ImageRange)> body);
  void pack_round(const PackedPlan& plan, ImageRange round, const Stream& stream, TransferState& state);
  /// Enqueues a kernel over the pieces in `round`. It copies between their device ends and the image in
  /// `scratch`, or from source to destination if `scratch` is null. The table's memory is released after it.
  void run_kernel(const PackedPlan& plan, ImageRange round, CopyDirection direction, std::byte* scratch,
                  const Stream& stream);
  void run_unpacker();

  const Device device_;
  const std::shared_ptr<HostWorkers> workers_;
  const std::shared_ptr<Pool> pinned_;
  const std::shared_ptr<Pool> scratch_;
  const std::shared_ptr<EventPool> events_;
  const PackingOptions options_;

  const Stream& unpack_stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Unpacking>> queue_;
  bool stop_ = false;
  std::thread unpacker_;
};

}  // namespace penstock
