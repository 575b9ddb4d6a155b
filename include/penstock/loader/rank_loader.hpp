#pragma once

#include <penstock/core/feed_statistics.hpp>
#include <penstock/core/function_ref.hpp>
#include <penstock/data/dataset.hpp>
#include <penstock/data/sampler.hpp>
#include <penstock/device/device.hpp>
#include <penstock/loader/device_batch.hpp>
#include <penstock/loader/loader_options.hpp>
#include <penstock/memory/process_board.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

/// Feeds a dataset to the devices of several processes of a host, one device each: every process gets the
/// same batches, in the order of a Loader with these options. Each byte crosses one link: every process
/// brings its part of a batch over its own link, and copies the parts of the others from their devices'
/// memory.
///
/// The parts are in proportion to the ceilings of the links, if all processes have a measured
/// LoaderOptions::profile. They are equal if one has none, or if the links differ by at most 5 %.
///
/// The processes do the same: they make it with the same data and options, and call start_epoch, restore and
/// next equally often. No device waits for another process, and none writes to another's memory. If a process
/// ends, the others get an Error in place of the batches that need its part.
///
/// If a device cannot map the memory of another, each process brings whole batches over its own link:
/// `feeds_once` is false then, and `describe` says why. All else is the same: no process gets a batch before
/// all have come to it.
///
/// Thread-safe: several threads may ask for batches, and each gets different ones.
class RankLoader {
 public:
  /// Meets the other processes, and blocks the host until all have come: see ProcessBoard. Allocates as
  /// Loader does, and two parts of a batch besides. Throws InvalidArgument if the options do not fit, if
  /// the processes feed different things or two of them have one GPU, and for data that may change without a
  /// batch sampler. Throws Error if another process fails or ends; OutOfMemory, DeviceError.
  ///
  /// A batch sampler must give the same batches in all processes. They compare them before they bring them,
  /// and next() throws Error if they differ. It also compares the ends of epochs, so that all must have drawn
  /// one before any gets it.
  RankLoader(Dataset dataset, Device device, ProcessBoardOptions group, LoaderOptions options = {});
  /// As the constructor, for those who have another way to bring whole batches: nullopt if feeds_once() would
  /// be false, in all processes, and `why`. Takes memory for parts, and none for batches, before that is
  /// known.
  [[nodiscard]] static std::optional<RankLoader> if_it_feeds_once(Dataset dataset, Device device,
                                                                  ProcessBoardOptions group,
                                                                  LoaderOptions options, std::string& why);
  /// As Loader. Waits for the others as close does.
  ~RankLoader();
  RankLoader(RankLoader&&) noexcept;
  RankLoader& operator=(RankLoader&&) noexcept;

  /// As Loader::next. Throws Error if another process has ended, has closed its loader or has failed before
  /// its part of the batch was there; also if it lives and has not sent it within the group's timeout. If
  /// each brings whole batches: before it came to the batch.
  [[nodiscard]] std::optional<DeviceBatch> next(const Stream& stream);
  [[nodiscard]] std::optional<DeviceBatch> next(const Stream& stream, FunctionRef<void()> while_waiting);

  /// As Loader. All processes go to the same place: the call returns when all have called. Throws
  /// InvalidArgument if they go to different places. Throws Error if one does not come, and the exceptions of
  /// `while_waiting`: then all get an Error, also from later calls, and make another loader.
  void start_epoch(std::uint64_t epoch);
  void restore(const SamplerState& state);
  /// Nothing reads the dataset when this returns, until start_epoch. Blocks the host, not for other
  /// processes. next() throws InvalidArgument until then, unless it had given the epoch's end before: if a
  /// batch sampler chooses the samples, nothing is read ahead there. Held batches stay valid. Throws
  /// DeviceError.
  void leave_epoch();
  /// As Loader. A state may be restored in a Loader, and a Loader's here.
  [[nodiscard]] SamplerState state() const;
  [[nodiscard]] std::uint64_t batches_per_epoch() const noexcept;
  [[nodiscard]] std::uint64_t samples_per_epoch() const noexcept;
  [[nodiscard]] std::uint64_t batches_left() const;

  /// True if each byte crosses one link. False: each process brings whole batches.
  [[nodiscard]] bool feeds_once() const noexcept;
  /// As Loader::stats. The link's bytes are those of this process.
  [[nodiscard]] FeedStatistics stats() const;
  [[nodiscard]] std::vector<BatchTimes> timeline() const;
  /// How the group feeds, and why if it does not feed once. Then one line for each field: how this process's
  /// parts of it travel, and why.
  [[nodiscard]] std::vector<std::string> describe() const;
  [[nodiscard]] const Dataset& dataset() const noexcept;
  [[nodiscard]] const Device& device() const noexcept;
  [[nodiscard]] const LoaderOptions& options() const noexcept;

  /// As Loader. If feeds_once(), first waits, for at most a minute, until the other processes have taken the
  /// parts of the batches that were handed out here.
  void close();

 private:
  explicit RankLoader(std::shared_ptr<class RankLoaderState> state) noexcept;

  std::shared_ptr<class RankLoaderState> state_;
};

}  // namespace penstock
