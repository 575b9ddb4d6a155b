#pragma once

#include "loader/device_ring.hpp"
#include "loader/drawn_batches.hpp"
#include "loader/locked_sources.hpp"
#include "loader/producer.hpp"
#include "loader/production_thread.hpp"
#include "loader/resident.hpp"

#include <penstock/core/function_ref.hpp>
#include <penstock/core/host_workers.hpp>
#include <penstock/loader/loader.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/memory/registration.hpp>
#include <penstock/transfer/account.hpp>

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace penstock {

/// What the loader of one of several processes does besides, so that all of them get the same batches. Empty
/// functions are not called.
struct RankDuties {
  /// On the loader's thread: the batch of `slot`, or an epoch's end, which has no samples, comes next.
  /// Returns once it comes next in all processes. False if `stopped` is true. Its exception is that of the
  /// batch.
  std::function<bool(const DeviceSlot& slot, FunctionRef<bool()> stopped)> agree;
  /// All processes go to `place`. No batch is made meanwhile. After an exception none is made until the next
  /// call.
  std::function<void(const SamplerState& place)> meet;
  /// This process makes no batches until it goes to another place.
  std::function<void(const std::exception_ptr& error)> fail;
};

/// The loader's stages, in the order in which a batch goes through them:
///
///   sampler -> acquire a slot -> gather and copy (Producer) -> publish    on the producer's thread
///   take -> the consumer's stream waits -> lease                          in next()
///   lease ends -> done events -> the slot is free                         in DeviceBatch
///
/// If a batch sampler takes the sampler's place, its batches are drawn in next(). With RankDuties, a batch is
/// gathered once all processes have come to it.
///
/// set_up lists the steps before the first batch. Loader closes it, and shares it with running calls of
/// next().
class LoaderState {
 public:
  LoaderState(Dataset dataset, Device device, LoaderOptions options, RankDuties duties = {});
  LoaderState(const LoaderState&) = delete;
  LoaderState& operator=(const LoaderState&) = delete;

  /// `while_waiting`: see Loader::next; may be null.
  [[nodiscard]] std::optional<DeviceBatch> next(const Stream& stream,
                                                const FunctionRef<void()>* while_waiting);
  void start_epoch(std::uint64_t epoch);
  void synchronize();
  void restore(const SamplerState& state);
  /// Makes no batches until start_epoch or restore: next() throws `error` until then. Blocks as synchronize.
  void leave_epoch(const std::exception_ptr& error);
  [[nodiscard]] SamplerState state() const;
  [[nodiscard]] std::uint64_t batches_left() const;
  void close();

  [[nodiscard]] FeedStatistics stats() const;
  [[nodiscard]] std::optional<FeedStatistics> epoch_stats(std::uint64_t epoch) const;
  [[nodiscard]] std::vector<BatchTimes> timeline() const;

  [[nodiscard]] const Sampler& first_sampler() const noexcept { return first_sampler_; }
  [[nodiscard]] const FeedPlan& plan() const noexcept { return plan_; }
  [[nodiscard]] const Dataset& dataset() const noexcept { return dataset_; }
  [[nodiscard]] const Device& device() const noexcept { return device_; }
  [[nodiscard]] const LoaderOptions& options() const noexcept { return options_; }
  /// True in a child of fork, which may not touch this object.
  [[nodiscard]] bool is_forked() const noexcept { return generation_ != fork_generation(); }

 private:
  void set_up();
  void make_plan(FeedFacts& facts);
  void plan_without_gaps(FeedFacts& facts);
  void copy_apart_from(const std::vector<std::size_t>& columns, FeedFacts& facts);
  void reserve_memory(FeedFacts& facts);
  void run();
  void produce(DeviceSlot& slot, double slot_wait_seconds, std::uint64_t& index);
  void take_samples(DeviceSlot& slot, PublishedItem& item);
  [[nodiscard]] bool agree(DeviceSlot& slot);
  void publish_failure(PublishedItem failed);
  void end_waits();
  template <typename Change>
  void go_to(Change&& change);
  void refuse_fork() const;
  [[nodiscard]] FeedStatistics complete(FeedStatistics statistics) const;

  const std::uint64_t generation_ = fork_generation();
  LoaderOptions options_;
  const RankDuties duties_;
  Device device_;
  const LinkProfile profile_;
  const std::shared_ptr<HostWorkers> workers_;
  Dataset dataset_;
  const Sampler first_sampler_;
  Sampler sampler_;  ///< only for the producer; with a batch sampler, only its epoch counts
  const std::unique_ptr<DrawnBatches> drawn_;  ///< of the batch sampler; may be null
  FeedPlan plan_;
  std::optional<Dataset> travelling_;  ///< the dataset with its rows, if the plan has any
  std::size_t delivered_sample_bytes_ = 0;
  LockedSources sources_;
  std::shared_ptr<Pool> memory_;
  std::unique_ptr<Resident> resident_;
  std::shared_ptr<DeviceRing> ring_;
  std::unique_ptr<Account> account_;
  std::unique_ptr<Producer> producer_;
  bool is_resident_ = false;

  std::mutex control_mutex_;  ///< held by start_epoch, restore and close
  ProductionThread thread_{"penstock-loader", [this] { run(); }, [this] { end_waits(); }};
  bool closed_ = false;
};

}  // namespace penstock
