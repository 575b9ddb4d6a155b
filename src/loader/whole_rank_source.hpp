#pragma once

#include "loader/gather_source.hpp"
#include "loader/rank_group.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace penstock {

/// Whole batches over this process's own link, for processes that cannot read each other's memory.
///
/// The line's thread offers the number of each batch before it gathers it, and waits for the offers of the
/// others. A process that is alone in its group offers nothing.
class WholeRankSource final : public GatherSource {
 public:
  /// `options` outlive it. Throws as Loader.
  WholeRankSource(std::shared_ptr<RankGroup> group, Dataset dataset, const Device& device,
                  const LoaderOptions& options, const BatchOrder& order);

  [[nodiscard]] bool come_to(const Turn& turn) override;
  [[nodiscard]] bool fill(const Turn& turn, std::size_t receiver, DeviceSlot& slot,
                          PublishedItem& item) override;
  void fail(const std::exception_ptr& error) noexcept override;

  void go_to(const Sampler& place) override;
  void close(std::uint64_t handed_out) override;

  [[nodiscard]] std::vector<std::string> describe() const override;
  [[nodiscard]] bool feeds_once() const noexcept override { return false; }
  [[nodiscard]] bool awaits_others() const noexcept override { return true; }
  void refuse_late(std::chrono::steady_clock::time_point since) const override { group_->refuse_late(since); }

 private:
  [[nodiscard]] bool agree(const Turn& turn);
  [[nodiscard]] bool is_alone() const noexcept { return group_->size() == 1; }

  const std::shared_ptr<RankGroup> group_;
};

}  // namespace penstock
