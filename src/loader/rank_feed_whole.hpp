#pragma once

#include "loader/loader_state.hpp"
#include "loader/rank_feed.hpp"
#include "loader/rank_group.hpp"

#include <atomic>
#include <cstdint>

namespace penstock {

/// Whole batches over this process's own link, for processes that cannot read each other's memory.
///
/// The loader's thread offers the number of each batch before it gathers it, and waits for the offers of the
/// others. A process that is alone in its group offers nothing.
class RankFeedWhole final : public RankFeed {
 public:
  /// `group` outlives it. Throws as Loader.
  RankFeedWhole(RankGroup& group, const Dataset& dataset, const Device& device, const LoaderOptions& options);

  [[nodiscard]] std::optional<DeviceBatch> next(const Stream& stream,
                                                const FunctionRef<void()>& while_waiting) override;
  void start_epoch(std::uint64_t epoch) override { loader_.start_epoch(epoch); }
  void restore(const SamplerState& state) override { loader_.restore(state); }
  void leave_epoch() override;
  [[nodiscard]] SamplerState state() const override { return loader_.state(); }
  void close() override;

  [[nodiscard]] FeedStatistics stats() const override { return loader_.stats(); }
  [[nodiscard]] std::vector<BatchTimes> timeline() const override { return loader_.timeline(); }
  [[nodiscard]] std::vector<std::string> describe() const override;

 private:
  [[nodiscard]] RankDuties duties();
  [[nodiscard]] bool agree(const DeviceSlot& slot, FunctionRef<bool()> stopped);

  RankGroup& group_;
  const bool is_drawn_;                      ///< by a batch sampler
  std::uint64_t turn_ = 0;                   ///< as that of RankFeedOnce
  std::atomic<bool> between_epochs_{false};  ///< with a batch sampler: an end was handed out last
  LoaderState loader_;
};

}  // namespace penstock
