#pragma once

#include "loader/device_ring.hpp"
#include "loader/drawn_batches.hpp"

#include <penstock/core/feed_statistics.hpp>
#include <penstock/core/function_ref.hpp>
#include <penstock/core/sample_run.hpp>
#include <penstock/data/dataset.hpp>
#include <penstock/data/sampler.hpp>
#include <penstock/loader/feed_plan.hpp>
#include <penstock/loader/loader_options.hpp>
#include <penstock/transfer/account.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock {

/// The order of a line's batches.
struct BatchOrder {
  BatchOrder(const LoaderOptions& options, const Dataset& dataset);

  /// The most samples that a batch has. A batch sampler may repeat samples.
  [[nodiscard]] std::uint64_t largest_batch() const noexcept;

  const Sampler first;                            ///< at its first place
  const std::unique_ptr<DrawnBatches> drawn;      ///< of the batch sampler; null without one
  std::shared_ptr<SharedDraws> shared = nullptr;  ///< the same, for a source that brings batches in parts
};

/// What a line makes next: a batch or, with a batch sampler, an epoch's end, which has no samples.
struct Turn {
  std::uint64_t number = 0;  ///< since the line went to its place
  SampleRun run;
  std::span<const std::uint64_t> drawn;  ///< the samples that a batch sampler chose, in place of the run's
  const Account& account;
  FunctionRef<bool()> stopped;  ///< true if the line's thread is to stop
  /// The samples of the batch that comes so many turns later, if they are known by now and it is of the same
  /// epoch.
  FunctionRef<std::optional<BatchSamples>(std::size_t turns)> later;
};

/// Ends the work of a line's thread, which is to stop.
struct ProductionStopped {};

/// Fills the slots of a line with batches. The line's thread calls `prepare` to `fail`, in this order. While
/// the thread is not at work, another calls `go_to`, `leave` and `close`, one at a time. Any thread may call
/// the rest.
///
/// A slot says which samples its batch has: their indices (DeviceSlot::fill), and its epoch and index.
class BatchSource {
 public:
  BatchSource() = default;
  virtual ~BatchSource() = default;
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;

  /// Of each device that receives. The same at each call, as is all that the next five return.
  [[nodiscard]] virtual std::vector<std::shared_ptr<DeviceRing>> rings() const = 0;
  [[nodiscard]] virtual const Dataset& dataset() const noexcept = 0;
  /// How the fields travel: for several devices, to the first one.
  [[nodiscard]] virtual const FeedPlan& plan() const noexcept = 0;
  /// How a batch lies in a slot.
  [[nodiscard]] virtual const FeedPlan& layout() const noexcept { return plan(); }
  /// See AccountOptions.
  [[nodiscard]] virtual double link_ceiling() const noexcept { return 0; }
  [[nodiscard]] virtual const char* thread_name() const noexcept { return "penstock-loader"; }

  /// Before the first batch since the thread began. False if it is to stop.
  [[nodiscard]] virtual bool prepare(Account& /*account*/, FunctionRef<bool()> /*stopped*/) { return true; }
  /// The turn comes, before slots are taken for its batch. False if the thread is to stop.
  [[nodiscard]] virtual bool come_to(const Turn& /*turn*/) { return true; }
  /// Enqueues the batch into the slot of a receiver; DeviceSlot::ready then marks its end. Notes in `item`
  /// what the host knows of its times. False if the thread is to stop.
  [[nodiscard]] virtual bool fill(const Turn& turn, std::size_t receiver, DeviceSlot& slot,
                                  PublishedItem& item) = 0;
  /// After `fill` threw or returned false: true if copies that DeviceSlot::ready does not mark may write the
  /// slot.
  [[nodiscard]] virtual bool may_still_write() noexcept = 0;
  /// The batch or the end is published. Its samples may be gone.
  virtual void go_on(const Turn& /*turn*/) {}
  /// The line makes no batches until it goes to a place, because of an exception.
  virtual void fail(const std::exception_ptr& /*error*/) noexcept {}

  /// The next batch is the one at `place`, in turn 0. After an exception none is made until the next call.
  virtual void go_to(const Sampler& /*place*/) {}
  /// None is made until go_to: what was read ahead is dropped.
  virtual void leave() {}
  /// Blocks the host until no work is under way. `handed_out`: turns that consumers have taken.
  virtual void close(std::uint64_t handed_out) = 0;

  /// See Loader::synchronize.
  virtual void synchronize() = 0;
  /// Adds what the account of the line's batches does not know.
  virtual void complete(FeedStatistics& /*statistics*/) const {}
  /// See Loader::member_stats; nullopt for one device.
  [[nodiscard]] virtual std::optional<FeedStatistics> member_stats(std::size_t /*member*/) const {
    return std::nullopt;
  }
  [[nodiscard]] virtual std::vector<std::string> describe() const { return plan().describe(); }

  /// True if each byte crosses one link.
  [[nodiscard]] virtual bool feeds_once() const noexcept { return true; }
  /// True if other processes take part: a consumer that waits then calls refuse_late.
  [[nodiscard]] virtual bool awaits_others() const noexcept { return false; }
  /// Throws Error if another process has been waited for for too long, by a call that began at `since`.
  virtual void refuse_late(std::chrono::steady_clock::time_point /*since*/) const {}
};

}  // namespace penstock
