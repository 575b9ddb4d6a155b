#pragma once

#include <penstock/core/feed_statistics.hpp>
#include <penstock/core/function_ref.hpp>
#include <penstock/data/dataset.hpp>
#include <penstock/data/sampler.hpp>
#include <penstock/device/device.hpp>
#include <penstock/loader/device_batch.hpp>
#include <penstock/loader/feed_plan.hpp>
#include <penstock/loader/loader_options.hpp>
#include <penstock/transfer/destination.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock {

/// Feeds a dataset to a destination, epoch after epoch. It begins at construction and runs prefetch_depth
/// batches ahead. Whatever the destination is, the batches and their order are those of one device with these
/// options. Thread-safe: several threads may ask for batches, and each gets different ones.
///
/// Several devices: each byte crosses one link. Every member of the group pulls its part of a batch over its
/// own link, and copies it on to the others. A member has up to two of its parts ahead, and a receiver has a
/// ring of slots for whole batches. `options.device_budget_bytes` is that of each device. If one member
/// fails, all fail. The ring is full if that of one receiver is.
///
/// A relayed device: parts are in proportion to the links. Batches whose parts are smaller than 1 MiB do not
/// tell whether others use a member's wires. A member without memory for its parts sits out.
///
/// A rank of a group of processes: all make it with the same data and options, and call start_epoch, restore
/// and next equally often. No process gets a batch before all have come to it. Every process brings its part,
/// in proportion to the ceilings of the links if all have a measured LoaderOptions::profile. Parts are equal
/// if one has none, or if the links differ by at most 5 %. No device waits for another process, and none
/// writes to another's memory. If a device cannot map the memory of another, each process brings whole
/// batches over its own link: `feeds_once` is false then, and `describe` says why. A batch sampler must give
/// the same batches in all processes: they compare them before they bring them.
class Loader {
 public:
  /// Allocates everything that the steady state needs: the device ring, pinned memory, streams, events and
  /// threads. Page-locks the dataset's memory if the device reads it over the link, at about 30 ms per GiB.
  /// The resident samples are moved in the background, and next() waits for them. Throws InvalidArgument if
  /// the options do not fit the dataset. Throws OutOfMemory that names both sizes if the budget is too small
  /// for one batch or for the residency.
  ///
  /// Over several links, throws InvalidArgument also for data that may change without a batch sampler, since
  /// the next epoch is read ahead then; with relays, for a residency. A rank meets the other processes, and
  /// blocks the host until all have come: see ProcessBoard. Then throws InvalidArgument if the processes feed
  /// different things or two of them have one GPU, and Error if another process fails or ends.
  Loader(Dataset dataset, Destination destination, LoaderOptions options = {});
  /// Ends calls of next() in other threads with Closed and stops the threads. Then blocks the host until
  /// copies in flight are done; they wait for the work queued on released batches. Held batches stay valid. A
  /// rank that feeds once first waits, for at most a minute, until the other processes have taken the parts
  /// of the batches that were handed out here.
  ~Loader();
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;

  /// The next batch, for a destination with one receiver. Nullopt at the end of an epoch; the call after that
  /// begins the next epoch. Work enqueued on `stream` after this call finds the batch ready. Blocks the host
  /// only until the batch's copy is enqueued, not until it is done. If making a batch failed, throws that
  /// error when the batch is due, and again until start_epoch or restore. Throws Closed after close(). If the
  /// ring stays full, throws OutOfMemory that names the held batches: see LoaderOptions::when_full.
  ///
  /// A rank: also throws Error if another process has ended, has closed its loader or has failed before its
  /// part of the batch was there, and if it lives and has not done its part within the group's timeout.
  [[nodiscard]] std::optional<DeviceBatch> next(const Stream& stream);
  /// As next(stream), but a long wait can be given up. Until the batch is there, calls `while_waiting` about
  /// every 50 ms on this thread. An exception of `while_waiting` is thrown here, and the batch is left for
  /// the next call. `while_waiting` may use the loader, and may close it.
  [[nodiscard]] std::optional<DeviceBatch> next(const Stream& stream, FunctionRef<void()> while_waiting);
  /// The next batch on each receiver, in their order; `streams` has one of each. Each lease ends by itself.
  /// If this throws, the streams outlive the loader, or the batch that a later call gives out. With several
  /// receivers, one thread asks at a time, and `while_waiting` may not ask for a batch.
  [[nodiscard]] std::optional<std::vector<DeviceBatch>> next(std::span<const Stream> streams);
  [[nodiscard]] std::optional<std::vector<DeviceBatch>> next(std::span<const Stream> streams,
                                                             FunctionRef<void()> while_waiting);

  /// Goes to the beginning of `epoch`. Costs nothing if that comes next anyway. Held batches stay valid.
  ///
  /// All processes of a group go to the same place: the call returns when all have called. Throws
  /// InvalidArgument if they go to different places. Throws Error if one does not come, and the exceptions of
  /// the board's `while_waiting`: then all get an Error, also from later calls, and make another loader.
  void start_epoch(std::uint64_t epoch);
  /// Nothing reads the dataset when this returns, until start_epoch. Blocks the host, not for other
  /// processes. next() throws InvalidArgument until then, unless it had given the epoch's end before: if a
  /// batch sampler chooses the samples, nothing is read ahead there. Held batches stay valid. Throws
  /// DeviceError.
  void leave_epoch();
  /// Blocks the host until the devices have read the samples of all batches made so far. If a batch sampler
  /// chooses the batches, then after an epoch's end, and after start_epoch, nothing reads the dataset until
  /// next() asks. Throws DeviceError.
  void synchronize();
  /// The state after the batches that next() gave out. May be restored elsewhere, with any destination and at
  /// any world size. With a batch sampler, `consumed` counts batches, and the state cannot be restored.
  [[nodiscard]] SamplerState state() const;
  /// Goes on where `state` was taken; see Sampler::restore. Throws InvalidArgument if there is a batch
  /// sampler, which keeps its own place. Processes of a group: as start_epoch.
  void restore(const SamplerState& state);

  /// Batches and samples that each receiver gets in a whole epoch; 0 with a batch sampler, which alone knows.
  [[nodiscard]] std::uint64_t batches_per_epoch() const;
  [[nodiscard]] std::uint64_t samples_per_epoch() const;
  /// Batches of the current epoch that next() has yet to give out; 0 with a batch sampler.
  [[nodiscard]] std::uint64_t batches_left() const;

  /// Statistics since construction, without work on the device that has not ended yet. For exact figures,
  /// synchronize the consumer's stream first. Does not block. Of several devices: the waits of the first
  /// receiver's consumer, and the bytes of all links of this process. A transfer then lasts from when the
  /// batch's parts are copied to the first receiver's slot until all are there.
  [[nodiscard]] FeedStatistics stats() const;
  /// Statistics of one epoch; nullopt if it has not begun or is more than 64 epochs ago. Over several links
  /// they do not say what the links carried.
  [[nodiscard]] std::optional<FeedStatistics> epoch_stats(std::uint64_t epoch) const;
  /// Of a member of the destination's group: the account of its parts, with the bytes that its link has
  /// carried. Its consumer is the loader, which passes them on. All 0 for a member that carries nothing. For
  /// one device, as stats().
  [[nodiscard]] FeedStatistics member_stats(std::size_t member) const;
  /// Times of the latest finished batches, oldest first.
  [[nodiscard]] std::vector<BatchTimes> timeline() const;

  /// How each field travels and why. Decided when the loader was made. Over several links, how the parts of
  /// the first receiver, or of this process, travel.
  [[nodiscard]] const FeedPlan& plan() const noexcept;
  /// plan().describe(). For a group, the last line says how many bytes each link has carried. For a rank, the
  /// first line says what part this process brings, and why if it does not feed once.
  [[nodiscard]] std::vector<std::string> describe() const;
  /// False for a rank whose processes cannot read each other's memory: each brings whole batches.
  [[nodiscard]] bool feeds_once() const noexcept;
  [[nodiscard]] const Dataset& dataset() const noexcept;
  [[nodiscard]] const Destination& destination() const noexcept;
  /// The first receiver.
  [[nodiscard]] const Device& device() const noexcept;
  [[nodiscard]] const LoaderOptions& options() const noexcept;

  /// Stops as the destructor does; next() then throws Closed. Statistics remain.
  void close();

 private:
  std::shared_ptr<class BatchLine> line_;
};

}  // namespace penstock
