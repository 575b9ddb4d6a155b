#pragma once

#include "loader/batch_parts.hpp"
#include "loader/batch_source.hpp"
#include "loader/rank_group.hpp"
#include "loader/whole_batches.hpp"

#include <penstock/loader/loader.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

/// The batches of a group whose processes read each other's parts:
///
///   its part, from a Loader -> a place that the others can read -> offered   in come_to
///   the parts that all offer -> a slot -> arrived                           in fill
///
/// The thread waits on the host at each arrow: a batch is published when it is all there and the processes
/// that had its parts still live. Meanwhile the Loader brings the next parts over the link.
///
/// With each batch a process offers a number that says which samples a batch sampler chose, and with none at
/// an epoch's end. So processes whose samplers differ notice it before they bring anything.
class RankSource final : public BatchSource {
 public:
  /// `options` outlive it. Throws as Loader.
  RankSource(std::shared_ptr<RankGroup> group, Dataset dataset, const Device& device,
             const LoaderOptions& options, BatchOrder& order);

  [[nodiscard]] std::vector<std::shared_ptr<DeviceRing>> rings() const override { return {ring_}; }
  [[nodiscard]] const Dataset& dataset() const noexcept override { return dataset_; }
  [[nodiscard]] const FeedPlan& plan() const noexcept override { return loader_->plan(); }
  [[nodiscard]] const FeedPlan& layout() const noexcept override { return group_->whole(); }
  [[nodiscard]] const char* thread_name() const noexcept override { return "penstock-rank"; }

  [[nodiscard]] bool come_to(const Turn& turn) override;
  [[nodiscard]] bool fill(const Turn& turn, std::size_t receiver, DeviceSlot& slot,
                          PublishedItem& item) override;
  [[nodiscard]] bool may_still_write() noexcept override { return !drain(); }
  void fail(const std::exception_ptr& error) noexcept override;

  void go_to(const Sampler& place) override;
  void leave() override { restart_parts(*loader_); }
  void close(std::uint64_t handed_out) override;

  void synchronize() override { loader_->synchronize(); }
  void complete(FeedStatistics& statistics) const override;
  [[nodiscard]] std::vector<std::string> describe() const override;
  [[nodiscard]] bool awaits_others() const noexcept override { return true; }
  void refuse_late(std::chrono::steady_clock::time_point since) const override { group_->refuse_late(since); }

 private:
  [[nodiscard]] bool offer(const Turn& turn);
  [[nodiscard]] static bool wait_for(const Event& event, const Turn& turn);
  [[nodiscard]] bool drain() const noexcept;
  [[nodiscard]] std::string describe_part() const;

  const std::shared_ptr<RankGroup> group_;
  const Dataset dataset_;
  const std::shared_ptr<BatchShares> shares_;
  const std::shared_ptr<SharedDraws> draws_;  ///< of the batch sampler; null without one
  const std::shared_ptr<PartSampler> sampler_of_parts_;
  std::shared_ptr<DeviceRing> ring_;
  std::optional<Loader> loader_;  ///< of the parts
  const Stream put_;              ///< copies this process's part to its place
  const Stream arrive_;           ///< copies all parts to a slot
  Event placed_;
};

}  // namespace penstock
