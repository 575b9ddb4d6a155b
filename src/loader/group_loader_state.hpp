#pragma once

#include "loader/batch_parts.hpp"
#include "loader/device_ring.hpp"
#include "loader/production_thread.hpp"
#include "loader/relay_watch.hpp"

#include <penstock/core/fork.hpp>
#include <penstock/loader/group_loader.hpp>
#include <penstock/loader/loader.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/transfer/account.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

/// A group's batches, from the members' parts to the leases:
///
///   parts of a batch, each from its member's Loader -> a slot of each receiver -> copies of all parts into
///   it, each on the push stream of the member that has the part -> published     on a thread of the group
///   take from every receiver's ring -> leases                                    in next()
///
/// If a batch sampler chooses the samples, its batches are drawn in next(), and the members' Loaders find
/// their parts in draws_.
///
/// A receiver's slot is ready once its arrival stream has come to the ends of all copies into it. A part's
/// lease ends once its copies are enqueued, so its loader refills its slot when they are done.
class GroupLoaderState {
 public:
  /// `receiver`: the member that alone gets the batches; null: all get them.
  GroupLoaderState(Dataset dataset, DeviceGroup group, LoaderOptions options, const GroupLinks& links,
                   std::optional<std::size_t> receiver);
  ~GroupLoaderState();
  GroupLoaderState(const GroupLoaderState&) = delete;
  GroupLoaderState& operator=(const GroupLoaderState&) = delete;

  /// `while_waiting`: see GroupLoader::next; may be null.
  [[nodiscard]] std::optional<std::vector<DeviceBatch>> next(std::span<const Stream> streams,
                                                             const FunctionRef<void()>* while_waiting);
  void start_epoch(std::uint64_t epoch);
  void restore(const SamplerState& state);
  void synchronize();
  [[nodiscard]] SamplerState state() const;
  [[nodiscard]] std::uint64_t batches_left() const;
  void close();

  [[nodiscard]] FeedStatistics stats() const;
  [[nodiscard]] FeedStatistics member_stats(std::size_t member) const;
  [[nodiscard]] std::vector<std::string> describe() const;
  [[nodiscard]] Account& account() const noexcept { return *account_; }

  [[nodiscard]] const Sampler& first_sampler() const noexcept { return first_sampler_; }
  [[nodiscard]] const Dataset& dataset() const noexcept { return dataset_; }
  [[nodiscard]] const DeviceGroup& group() const noexcept { return group_; }
  [[nodiscard]] const LoaderOptions& options() const noexcept { return options_; }
  [[nodiscard]] bool is_forked() const noexcept { return generation_of_process_ != fork_generation(); }

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
  /// A batch or an end that next() has of one member, and not yet of all.
  struct Taken {
    PublishedItem item;
    std::optional<DeviceBatch> batch;
  };
  using Parts = std::vector<std::optional<DeviceBatch>>;

  [[nodiscard]] std::vector<Lane> lanes_of(const GroupLinks& links) const;
  void add_members(const GroupLinks& links);
  void add_loader(std::size_t member, const GroupLinks& links, std::size_t budget);
  void end_members() noexcept;
  void run();
  [[nodiscard]] bool make_end(PublishedItem& end);
  [[nodiscard]] bool make_batch(const SampleRun& run);
  [[nodiscard]] Parts take_parts();
  void go_on();
  void see_who_gives_way();
  void fill(std::size_t member, DeviceSlot& slot, const Parts& parts, PublishedItem& item);
  void publish(const PublishedItem& item);
  [[nodiscard]] bool drain() noexcept;
  void take_all(std::span<const Stream> streams, const FunctionRef<void()>* while_waiting);
  void drop(std::optional<Taken>& taken) noexcept;
  [[nodiscard]] bool drop_outdated() noexcept;
  void end_waits();
  template <typename Change>
  void go_to(Change&& change);
  void refuse_fork() const;

  const std::uint64_t generation_of_process_ = fork_generation();
  const LoaderOptions options_;
  const DeviceGroup group_;
  const Dataset dataset_;
  const std::optional<std::size_t> receiver_;
  const std::vector<std::size_t> receivers_;  ///< ascending
  const Sampler first_sampler_;
  const std::unique_ptr<DrawnBatches> drawn_;  ///< of the batch sampler; may be null
  const std::shared_ptr<SharedDraws> draws_;   ///< the same, for the group's thread
  const FeedPlan plan_;                        ///< of a whole batch: how it lies in a slot
  double link_ceiling_ = 0;
  std::unique_ptr<Account> account_;  ///< on the first receiver's device
  std::vector<Lane> lanes_;
  std::vector<Member> members_;
  OwnLinkWatch own_link_;  ///< of the receiver that others relay to

  Sampler sampler_;  ///< only for the group's thread; with a batch sampler, only its epoch counts
  std::uint64_t index_ = 0;
  std::uint64_t made_ = 0;  ///< batches since the shares began; with a batch sampler, also ends of epochs

  std::mutex next_mutex_;                    ///< held in next()
  std::vector<std::optional<Taken>> taken_;  ///< of each receiver; guarded by it

  mutable std::mutex position_mutex_;  ///< guards the two below
  SamplerState position_;
  std::uint64_t generation_ = 0;  ///< changes with each go_to, as that of the drawn batches does

  std::mutex control_mutex_;  ///< held by start_epoch, restore and close
  ProductionThread thread_{"penstock-group", [this] { run(); }, [this] { end_waits(); }};
  bool closed_ = false;
};

}  // namespace penstock
