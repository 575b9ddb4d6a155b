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

/// Feeds a dataset to a device, epoch after epoch: it begins at construction and runs prefetch_depth batches
/// ahead. Thread-safe: several threads may ask for batches, and each gets different ones.
class Loader {
 public:
  /// Allocates everything that the steady state needs: the device ring, pinned memory, streams, events and
  /// threads. Locks the dataset's memory where it is read over the link, about 30 ms per GiB. What is
  /// resident is moved in the background, and next() waits for it. Throws InvalidArgument for options that do
  /// not fit the dataset, and OutOfMemory that names both sizes where the budget is too small for one batch
  /// or for the residency asked for.
  Loader(Dataset dataset, Device device, LoaderOptions options = {});
  /// Ends calls of next() in other threads with Closed, stops the stages, and waits for copies that are
  /// under way: these wait for what was queued on batches that were let go. Batches still held stay valid.
  ~Loader();
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;

  /// The next batch; nullopt at the end of an epoch, after which the next call begins the next epoch. Work
  /// enqueued on `stream` from now on finds the batch there. Blocks the host only until the batch's copy is
  /// enqueued, not until it is done. Throws what went wrong in any stage, at the batch where it did, and then
  /// again until start_epoch or restore; Closed after close(); and OutOfMemory, naming the batches that are
  /// held, if the ring stays full: see LoaderOptions::when_full.
  [[nodiscard]] std::optional<DeviceBatch> next(const Stream& stream);
  /// As next(stream). If the batch is not there yet, calls `while_waiting` about every 50 ms on this thread
  /// until it is, so that a long wait can be given up: what `while_waiting` throws is thrown here, and the
  /// batch is left for the next call. `while_waiting` may use the loader, and may close it.
  [[nodiscard]] std::optional<DeviceBatch> next(const Stream& stream, FunctionRef<void()> while_waiting);

  /// Goes to the beginning of `epoch`; costs nothing where that comes next anyway. Batches that are held stay
  /// valid.
  void start_epoch(std::uint64_t epoch);
  /// After the batches that next() has given out, for restore() in this process or another, at this or
  /// another world size.
  [[nodiscard]] SamplerState state() const;
  /// Goes on where `state` was taken; see Sampler::restore.
  void restore(const SamplerState& state);

  /// Batches and samples that this rank gets in a whole epoch.
  [[nodiscard]] std::uint64_t batches_per_epoch() const noexcept;
  [[nodiscard]] std::uint64_t samples_per_epoch() const noexcept;
  /// Batches that this rank still gets in the current epoch after those given out.
  [[nodiscard]] std::uint64_t batches_left() const;

  /// Since construction. Work on the device that has not ended yet is not in it: synchronize the consumer's
  /// stream first for exact figures. Does not block.
  [[nodiscard]] FeedStatistics stats() const;
  /// Of one epoch; nullopt for one that did not begin, or is more than 64 epochs ago.
  [[nodiscard]] std::optional<FeedStatistics> epoch_stats(std::uint64_t epoch) const;
  /// The latest batches that are over, oldest first.
  [[nodiscard]] std::vector<BatchTimes> timeline() const;

  /// How each field travels and why, as it was decided when the loader was made.
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
