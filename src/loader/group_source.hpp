#pragma once

#include "loader/batch_parts.hpp"
#include "loader/batch_source.hpp"
#include "loader/device_ring.hpp"
#include "loader/relay_watch.hpp"

#include <penstock/device/device_group.hpp>
#include <penstock/loader/loader.hpp>
#include <penstock/transfer/destination.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

/// Parts of batches, each of which one member of a group brings over its link:
///
///   parts of a batch, each from its member's Loader                                 in come_to
///   copies of all parts into the slot of each receiver, each on the push stream
///   of the member that has the part                                                 in fill
///
/// If a batch sampler chooses the samples, the members' Loaders find their parts in the shared draws.
///
/// A receiver's slot is ready once its arrival stream has come to the ends of all copies into it. A part's
/// lease ends once its copies are enqueued, so its loader refills its slot when they are done.
class GroupSource final : public BatchSource {
 public:
  /// `destination`: a group, or a relayed device. `options` outlive it.
  GroupSource(Dataset dataset, const Destination& destination, const LoaderOptions& options,
              BatchOrder& order);

  [[nodiscard]] std::vector<std::shared_ptr<DeviceRing>> rings() const override;
  [[nodiscard]] const Dataset& dataset() const noexcept override { return dataset_; }
  [[nodiscard]] const FeedPlan& plan() const noexcept override { return first_receiver().loader->plan(); }
  [[nodiscard]] const FeedPlan& layout() const noexcept override { return plan_; }
  [[nodiscard]] const char* thread_name() const noexcept override { return "penstock-group"; }

  [[nodiscard]] bool come_to(const Turn& turn) override;
  [[nodiscard]] bool fill(const Turn& turn, std::size_t receiver, DeviceSlot& slot,
                          PublishedItem& item) override;
  [[nodiscard]] bool may_still_write() noexcept override;
  void go_on(const Turn& turn) override;
  void fail(const std::exception_ptr& error) noexcept override;

  void go_to(const Sampler& place) override;
  void leave() override;
  void close(std::uint64_t handed_out) override;

  void synchronize() override;
  void complete(FeedStatistics& statistics) const override;
  [[nodiscard]] std::optional<FeedStatistics> member_stats(std::size_t member) const override;
  [[nodiscard]] std::vector<std::string> describe() const override;

 private:
  /// Members that share each batch, and members that each get all of it.
  struct Lane {
    std::vector<std::size_t> carriers;
    std::vector<std::size_t> receivers;
    std::shared_ptr<BatchShares> shares = nullptr;  ///< among the carriers
  };
  /// The parts of a loader that each member has for itself.
  struct Member {
    std::size_t lane = 0;
    std::size_t number = 0;  ///< its place among the lane's carriers
    std::shared_ptr<PartSampler> sampler = nullptr;
    std::optional<Loader> loader = std::nullopt;     ///< of its parts; none: it carries nothing
    std::shared_ptr<DeviceRing> ring = nullptr;      ///< null: it gets no batches
    Stream push;                                     ///< copies its parts to all receivers of the lane
    Stream arrive;                                   ///< waits for the copies into its slots
    Event pushed;                                    ///< of its latest part, to one of the receivers
    std::optional<RelayWatch> watch = std::nullopt;  ///< if it gives way
  };
  /// The last one ends first: a member may read memory that one before it has locked.
  struct Members : std::vector<Member> {
    ~Members() {
      while (!empty()) pop_back();
    }
  };

  [[nodiscard]] std::vector<Lane> lanes_of(const GroupLinks& links) const;
  void add_members(const GroupLinks& links, const BatchOrder& order);
  void add_loader(std::size_t member, const GroupLinks& links, const BatchOrder& order, std::size_t budget);
  [[nodiscard]] const Member& first_receiver() const noexcept { return members_[receivers_[0]]; }

  const LoaderOptions& options_;
  const DeviceGroup group_;
  const Dataset dataset_;
  const std::vector<std::size_t> receivers_;  ///< ascending
  const bool relays_;                         ///< all members to the one receiver
  const std::shared_ptr<SharedDraws> draws_;  ///< of the batch sampler; may be null
  const FeedPlan plan_;                       ///< of a whole batch: how it lies in a slot
  double link_ceiling_ = 0;
  std::vector<Lane> lanes_;
  Members members_;
  OwnLinkWatch own_link_;                          ///< of the receiver that others relay to
  std::vector<std::optional<DeviceBatch>> parts_;  ///< of this turn's batch, by member
};

}  // namespace penstock
