#pragma once

#include "loader/rank_feed.hpp"
#include "loader/rank_group.hpp"

#include <penstock/core/fork.hpp>
#include <penstock/loader/rank_loader.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

/// The group that the process has met, and the way in which it gets its batches: RankFeedOnce, or
/// RankFeedWhole if the processes cannot read each other's memory.
///
/// If a batch sampler chooses the samples, its batches are drawn in next(). With each batch a process offers
/// a number that says which samples it has, and with none at an epoch's end. So processes whose samplers
/// differ notice it before they bring anything.
class RankLoaderState {
 public:
  /// `only_once`: if feeds_once() is false, there is no feed. Only feeds_once, refusal and close may be
  /// called then.
  RankLoaderState(Dataset dataset, Device device, ProcessBoardOptions group, LoaderOptions options,
                  bool only_once);
  RankLoaderState(const RankLoaderState&) = delete;
  RankLoaderState& operator=(const RankLoaderState&) = delete;

  /// `while_waiting` may be null.
  [[nodiscard]] std::optional<DeviceBatch> next(const Stream& stream,
                                                const FunctionRef<void()>* while_waiting);
  void start_epoch(std::uint64_t epoch);
  void restore(const SamplerState& state);
  void leave_epoch();
  [[nodiscard]] SamplerState state() const;
  void close();

  [[nodiscard]] FeedStatistics stats() const;
  [[nodiscard]] std::vector<BatchTimes> timeline() const;
  [[nodiscard]] std::vector<std::string> describe() const;
  [[nodiscard]] bool feeds_once() const noexcept { return group_.feeds_once(); }
  /// Why it does not feed once; empty if it does.
  [[nodiscard]] const std::string& refusal() const noexcept { return group_.refusal(); }

  [[nodiscard]] const Sampler& first_sampler() const noexcept { return first_sampler_; }
  [[nodiscard]] const Dataset& dataset() const noexcept { return dataset_; }
  [[nodiscard]] const Device& device() const noexcept { return device_; }
  [[nodiscard]] const LoaderOptions& options() const noexcept { return options_; }
  [[nodiscard]] bool is_forked() const noexcept { return generation_ != fork_generation(); }

 private:
  [[nodiscard]] std::unique_ptr<RankFeed> make_feed();
  void refuse_fork() const;

  const std::uint64_t generation_ = fork_generation();
  const LoaderOptions options_;
  const Device device_;
  const Dataset dataset_;
  const Sampler first_sampler_;
  const FeedPlan plan_;  ///< of a whole batch: how it lies in a slot
  RankGroup group_;
  std::unique_ptr<RankFeed> feed_;

  std::mutex closing_mutex_;
  bool closed_ = false;
};

}  // namespace penstock
