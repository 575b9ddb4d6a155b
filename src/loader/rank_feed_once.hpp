#pragma once

#include "loader/batch_parts.hpp"
#include "loader/device_ring.hpp"
#include "loader/drawn_batches.hpp"
#include "loader/production_thread.hpp"
#include "loader/rank_feed.hpp"
#include "loader/rank_group.hpp"

#include <penstock/loader/loader.hpp>
#include <penstock/transfer/account.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

namespace penstock {

/// The batches of a group whose processes read each other's parts, from the parts to the leases:
///
///   its part, from a Loader -> a place that the others can read -> offered
///   the parts that all offer -> a slot -> arrived -> published              on a thread of its own
///   take from the ring -> a lease                                           in next()
///
/// The thread waits on the host at each arrow: a batch is published when it is all there and the processes
/// that had its parts still live. Meanwhile the Loader brings the next parts over the link.
class RankFeedOnce final : public RankFeed {
 public:
  /// `group`, `options`, `first` and `whole` outlive it. `first`: the sampler at its first place. Throws as
  /// Loader.
  RankFeedOnce(RankGroup& group, const Dataset& dataset, const Device& device, const LoaderOptions& options,
               const Sampler& first, const FeedPlan& whole);

  [[nodiscard]] std::optional<DeviceBatch> next(const Stream& stream,
                                                const FunctionRef<void()>& while_waiting) override;
  void start_epoch(std::uint64_t epoch) override;
  void restore(const SamplerState& state) override;
  void leave_epoch() override;
  [[nodiscard]] SamplerState state() const override { return ring_->position(); }
  void close() override;

  [[nodiscard]] FeedStatistics stats() const override;
  [[nodiscard]] std::vector<BatchTimes> timeline() const override { return account_.timeline(); }
  [[nodiscard]] std::vector<std::string> describe() const override;

 private:
  void run();
  [[nodiscard]] bool make_batch(const SampleRun& run);
  [[nodiscard]] bool make_end(PublishedItem& end);
  [[nodiscard]] bool offer();
  [[nodiscard]] bool fill(DeviceSlot& slot, PublishedItem& item);
  [[nodiscard]] bool wait_for(const Event& event) const;
  [[nodiscard]] bool drain() const noexcept;
  void publish(const PublishedItem& item);
  void end_waits();
  void go_to(const Sampler& place);
  [[nodiscard]] std::string describe_part() const;

  RankGroup& group_;
  const LoaderOptions& options_;
  const FeedPlan& plan_;  ///< of a whole batch
  const std::size_t sample_bytes_;
  const Sampler& first_sampler_;
  Sampler sampler_;          ///< only for the thread, as the next two
  std::uint64_t index_ = 0;  ///< of the next batch in its epoch
  /// Batches since the processes were last at one place; with a batch sampler, also ends of epochs.
  std::uint64_t turn_ = 0;
  const std::shared_ptr<BatchShares> shares_;
  const std::unique_ptr<DrawnBatches> drawn_;  ///< of the batch sampler; null without one
  const std::shared_ptr<SharedDraws> draws_;   ///< the same, for the thread
  const std::shared_ptr<PartSampler> sampler_of_parts_;
  std::optional<Loader> loader_;  ///< of the parts
  mutable Account account_;       ///< reads the times of its events as it is asked
  std::shared_ptr<DeviceRing> ring_;
  const Stream put_;     ///< copies this process's part to its place
  const Stream arrive_;  ///< copies all parts to a slot
  Event placed_;

  std::atomic<std::uint64_t> handed_out_{0};  ///< as turn_, of next()
  std::atomic<bool> between_epochs_{false};   ///< with a batch sampler: an end was handed out last

  std::mutex control_mutex_;  ///< held by start_epoch, restore, leave_epoch and close
  ProductionThread thread_{"penstock-rank", [this] { run(); }, [this] { end_waits(); }};
};

}  // namespace penstock
