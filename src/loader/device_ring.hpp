#pragma once

#include "core/shared/polled_condition.hpp"
#include "transfer/shared/event_pool.hpp"

#include <penstock/core/feed_statistics.hpp>
#include <penstock/core/fork.hpp>
#include <penstock/core/function_ref.hpp>
#include <penstock/data/sampler.hpp>
#include <penstock/device/device.hpp>
#include <penstock/loader/device_batch.hpp>
#include <penstock/loader/feed_plan.hpp>
#include <penstock/loader/loader_options.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/transfer/account.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock {

/// The samples of a batch.
struct BatchSamples {
  SampleRun run;
  std::vector<std::uint64_t> drawn;  ///< the samples that a batch sampler chose, in place of the run's

  /// Writes the indices of the batch's samples, from sample `begin` on, as many as `to` has room for.
  void fill(std::span<std::uint64_t> to, std::size_t begin = 0) const;
};

/// Device memory for one batch, and the batch in it. Its owner may touch it without a lock: the free list,
/// the producer, the queue of published batches, or a lease.
struct DeviceSlot : BatchSamples {
  Buffer memory;
  std::vector<DeviceField> fields;
  /// Recorded after the batch's last copy, by DeviceRing::mark_end. Null before the first batch.
  std::shared_ptr<const Event> ready;

  std::uint64_t epoch = 0;
  std::uint64_t index = 0;

  std::vector<StreamHandle> users;  ///< streams that the current lease is used on
  std::vector<Event> done;          ///< one for each stream of the last lease, recorded when the lease ended
  std::size_t done_count = 0;       ///< none from the next batch's end on, which comes after them

  /// Makes the fields as large as the run's samples in `plan`, that of the ring.
  void size_fields(const FeedPlan& plan);
};

/// An item that the producer passes to the consumer: a batch, an epoch's end (without a slot), or an error.
struct PublishedItem {
  DeviceSlot* slot = nullptr;
  std::exception_ptr error{};
  SamplerState state{};  ///< after this batch
  BatchTimes times{};    ///< as far as the host knows them
  double slot_wait_seconds = 0;
  TimedBatch* timed = nullptr;   ///< the record of its times on the device; may be null
  std::size_t ready = 0;         ///< batches published when it was asked for
  std::uint64_t generation = 0;  ///< of the drawn batches that it was taken from
};

struct RingSize {
  std::size_t slots = 0;
  std::size_t bytes = 0;
};

/// The slots, passed round from the free list to the producer, to the queue of published batches, to a lease,
/// and back. It begins with `prefetch_depth` + 1 slots. If leases leave fewer than prefetch_depth for the
/// producer, it makes more, as memory allows. Leases share the ring and may outlive the loader. Thread-safe.
class DeviceRing {
 public:
  /// Makes the first slots. If memory is short, makes fewer, but at least one. Throws OutOfMemory.
  DeviceRing(Device device, std::shared_ptr<Pool> memory, const FeedPlan& plan, const LoaderOptions& options,
             const SamplerState& position);
  ~DeviceRing();
  DeviceRing(const DeviceRing&) = delete;
  DeviceRing& operator=(const DeviceRing&) = delete;

  /// For the producer: a slot to fill, once fewer than prefetch_depth batches are published. Work of its last
  /// users and its last copy may still be queued: see wait_for_users. Blocks the host. Null if stopped.
  [[nodiscard]] DeviceSlot* acquire();
  /// Makes `stream` wait for the work last queued on the slot's memory.
  void wait_for_users(const DeviceSlot& slot, const Stream& stream) const;
  /// True if the work last queued on the slot's memory is done. Does not block. Throws DeviceError.
  [[nodiscard]] bool is_unused(const DeviceSlot& slot) const;
  /// Marks the end of the slot's batch: what was enqueued on `stream` so far, on which all streams that write
  /// the slot were waited for. They have waited for its users. `timed` may be null. Throws DeviceError;
  /// nothing has changed then.
  void mark_end(DeviceSlot& slot, const Stream& stream, TimedBatch* timed) const;
  void publish(PublishedItem item);
  /// Takes a slot back that was acquired and not published. If it `may_be_written` by copies that `ready`
  /// does not mark, it is never used again.
  void put_back(DeviceSlot& slot, bool may_be_written) noexcept;

  /// For the consumer: takes the next published batch or end, leases its slot, and makes `stream` wait for
  /// it. An error stays and is thrown each time. If `stream` cannot wait, the batch stays. Blocks the host.
  /// Calls `while_waiting`, unless it is null, every 50 ms without a lock. Throws Closed, DeviceError, and
  /// exceptions of `while_waiting`. Throws OutOfMemory if the ring is full for longer than LoaderOptions
  /// allow, or for good.
  [[nodiscard]] PublishedItem take(const Stream& stream, const FunctionRef<void()>* while_waiting);
  /// Ends a lease. Throws DeviceError if the work on its slot cannot be marked.
  void give_back(DeviceSlot& slot);

  /// True if the producer should not wait for the device before it publishes a batch: the ring is stopped, or
  /// a consumer has waited for 100 ms. What it queued may come before the work that the producer waits for.
  [[nodiscard]] bool is_in_a_hurry() const;
  /// True if a consumer waits for a batch.
  [[nodiscard]] bool is_awaited() const;

  /// Makes acquire return null until reset.
  void stop() noexcept;
  /// Starts anew at `position`; the producer must not be at work. Returns the published entries; their slots
  /// are free.
  std::vector<PublishedItem> reset(const SamplerState& position);
  /// Ends take() in all threads with Closed, for good; the producer must not be at work. Threads may still be
  /// in take() when this returns.
  void close() noexcept;

  [[nodiscard]] RingSize size() const;
  /// The state after the batches that take() has given out.
  [[nodiscard]] SamplerState position() const;
  /// True if take() would give the first batch of `epoch`, not an error of the producer.
  [[nodiscard]] bool is_at_start_of(std::uint64_t epoch) const;
  [[nodiscard]] bool is_closed() const;
  [[nodiscard]] const Device& device() const noexcept { return device_; }
  /// True in a child of fork, which may not touch the ring.
  [[nodiscard]] bool is_forked() const noexcept { return generation_ != fork_generation(); }

 private:
  using Clock = std::chrono::steady_clock;
  class Waiting;

  /// Returns once take() can answer: there is a batch, an end or an error, or the ring stays full. How long
  /// it has waited: zero if take() could answer at once.
  [[nodiscard]] Clock::duration wait_for_item(std::unique_lock<std::mutex>& lock,
                                              const FunctionRef<void()>* while_waiting);
  [[nodiscard]] std::unique_ptr<DeviceSlot> make_slot();
  void grow(std::unique_lock<std::mutex>& lock);
  /// When a consumer that has waited since `asked` gives up on the full ring; nullopt if it is not full.
  [[nodiscard]] std::optional<Clock::time_point> gives_up_at(Clock::time_point asked) const;
  [[noreturn]] void refuse_full() const;

  Device device_;
  std::shared_ptr<Pool> memory_;
  const std::shared_ptr<EventPool> ends_;  ///< of batches
  const std::size_t slot_bytes_;
  const std::size_t depth_;
  const std::chrono::milliseconds patience_;  ///< how long take() waits while the ring is full
  std::vector<DeviceField> fields_;           ///< as in each slot, `data` an offset
  std::vector<std::size_t> offsets_;

  mutable std::mutex mutex_;
  PolledCondition producer_;
  PolledCondition consumer_;
  std::vector<std::unique_ptr<DeviceSlot>> slots_;
  std::vector<DeviceSlot*> free_;  ///< the first has been free for longest
  std::vector<PublishedItem> published_;
  std::size_t ready_ = 0;  ///< batches among them
  SamplerState position_;
  std::vector<DeviceSlot*> leased_;
  std::string exhausted_;                        ///< why the ring cannot grow any more; empty: it may
  std::optional<Clock::time_point> full_since_;  ///< the producer waits for a slot, and the ring cannot grow
  std::size_t waiting_ = 0;                      ///< consumers that wait for a batch
  Clock::time_point waiting_since_;              ///< when the last of them began, or a batch came
  bool stopped_ = false;
  bool closed_ = false;
  const std::uint64_t generation_ = fork_generation();
};

}  // namespace penstock
