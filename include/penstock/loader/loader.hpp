#pragma once

#include <penstock/core/feed_statistics.hpp>
#include <penstock/core/function_ref.hpp>
#include <penstock/data/dataset.hpp>
#include <penstock/data/sampler.hpp>
#include <penstock/device/device.hpp>
#include <penstock/loader/device_batch.hpp>
#include <penstock/loader/feed_plan.hpp>
#include <penstock/loader/loader_options.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

/// Feeds a dataset to a device, epoch after epoch. It begins at construction and runs prefetch_depth batches
/// ahead. Thread-safe: several threads may ask for batches, and each gets different ones.
class Loader {
 public:
  /// Allocates everything that the steady state needs: the device ring, pinned memory, streams, events and
  /// threads. Page-locks the dataset's memory if the device reads it over the link, at about 30 ms per GiB.
  /// The resident samples are moved in the background, and next() waits for them. Throws InvalidArgument if
  /// the options do not fit the dataset. Throws OutOfMemory that names both sizes if the budget is too small
  /// for one batch or for the residency.
  Loader(Dataset dataset, Device device, LoaderOptions options = {});
  /// Ends calls of next() in other threads with Closed and stops the threads. Then blocks the host until
  /// copies in flight are done; they wait for the work queued on released batches. Held batches stay valid.
  ~Loader();
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;

  /// The next batch. Nullopt at the end of an epoch; the call after that begins the next epoch. Work enqueued
  /// on `stream` after this call finds the batch ready. Blocks the host only until the batch's copy is
  /// enqueued, not until it is done. If making a batch failed, throws that error when the batch is due, and
  /// again until start_epoch or restore. Throws Closed after close(). If the ring stays full, throws
  /// OutOfMemory that names the held batches: see LoaderOptions::when_full.
  [[nodiscard]] std::optional<DeviceBatch> next(const Stream& stream);
  /// As next(stream), but a long wait can be given up. Until the batch is there, calls `while_waiting` about
  /// every 50 ms on this thread. An exception of `while_waiting` is thrown here, and the batch is left for
  /// the next call. `while_waiting` may use the loader, and may close it.
  [[nodiscard]] std::optional<DeviceBatch> next(const Stream& stream, FunctionRef<void()> while_waiting);

  /// Goes to the beginning of `epoch`. Costs nothing if that comes next anyway. Held batches stay valid.
  void start_epoch(std::uint64_t epoch);
  /// Blocks the host until the device has read the samples of all batches made so far. If a batch sampler
  /// chooses the batches, then after an epoch's end, and after start_epoch, nothing reads the dataset until
  /// next() asks. Throws DeviceError.
  void synchronize();
  /// The state after the batches that next() gave out. May be restored elsewhere, at any world size. With a
  /// batch sampler, `consumed` counts batches, and the state cannot be restored.
  [[nodiscard]] SamplerState state() const;
  /// Goes on where `state` was taken; see Sampler::restore. Throws InvalidArgument if there is a batch
  /// sampler, which keeps its own place.
  void restore(const SamplerState& state);

  /// Batches and samples that this rank gets in a whole epoch; 0 with a batch sampler, which alone knows.
  [[nodiscard]] std::uint64_t batches_per_epoch() const noexcept;
  [[nodiscard]] std::uint64_t samples_per_epoch() const noexcept;
  /// Batches of the current epoch that next() has yet to give out to this rank; 0 with a batch sampler.
  [[nodiscard]] std::uint64_t batches_left() const;

  /// Statistics since construction, without work on the device that has not ended yet. For exact figures,
  /// synchronize the consumer's stream first. Does not block.
  [[nodiscard]] FeedStatistics stats() const;
  /// Statistics of one epoch; nullopt if it has not begun or is more than 64 epochs ago.
  [[nodiscard]] std::optional<FeedStatistics> epoch_stats(std::uint64_t epoch) const;
  /// Times of the latest finished batches, oldest first.
  [[nodiscard]] std::vector<BatchTimes> timeline() const;

  /// How each field travels and why. Decided when the loader was made.
  [[nodiscard]] const FeedPlan& plan() const noexcept;
  /// plan().describe().
  [[nodiscard]] std::vector<std::string> describe() const;
  [[nodiscard]] const Dataset& dataset() const noexcept;
  [[nodiscard]] const Device& device() const noexcept;
  [[nodiscard]] const LoaderOptions& options() const noexcept;

  /// Stops as the destructor does; next() then throws Closed. Statistics remain.
  void close();

 private:
  std::shared_ptr<class LoaderState> state_;
};

}  // namespace penstock
