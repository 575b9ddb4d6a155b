#pragma once

#include "loader/batch_parts.hpp"
#include "loader/peer_parts.hpp"

#include <penstock/data/dataset.hpp>
#include <penstock/data/sampler.hpp>
#include <penstock/device/device.hpp>
#include <penstock/loader/feed_plan.hpp>
#include <penstock/loader/loader_options.hpp>
#include <penstock/memory/process_board.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock {

/// The processes of a group, as one of them sees them once they have met: they feed the same data, each to a
/// GPU of its own, and know whether they can read each other's parts of batches.
class RankGroup {
 public:
  /// All processes make it at once. `whole`: how a batch lies in memory. Throws
  /// InvalidArgument if the processes feed different things, or two of them have one GPU; as PeerParts. The
  /// others learn of an exception.
  RankGroup(ProcessBoardOptions group, const Dataset& dataset, const Device& device,
            const LoaderOptions& options, FeedPlan whole);
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  [[nodiscard]] std::size_t size() const noexcept { return board_.size(); }
  [[nodiscard]] std::size_t rank() const noexcept { return board_.rank(); }
  [[nodiscard]] const ProcessBoardOptions& options() const noexcept { return board_.options(); }
  /// True if each process brings only its part of a batch.
  [[nodiscard]] bool feeds_once() const noexcept { return refusal_.empty(); }
  /// Why it does not; empty if it does.
  [[nodiscard]] const std::string& refusal() const noexcept { return refusal_; }

  /// Of the parts of a batch, by rank. Not for a group of one process, as `parts`.
  [[nodiscard]] const std::vector<double>& weights() const noexcept { return weights_; }
  [[nodiscard]] const BatchSplit& split() const noexcept { return *split_; }
  [[nodiscard]] PeerParts& parts() noexcept { return *parts_; }
  [[nodiscard]] const FeedPlan& whole() const noexcept { return whole_; }

  /// All processes go to `place`: see PeerParts::start_anew.
  void go_to(const SamplerState& place);
  /// Throws Error if another process has been waited for for too long, by a call that began at `since`.
  void refuse_late(PeerParts::Clock::time_point since) const;
  /// Tells the other processes of an exception.
  void complain(const std::exception_ptr& failure) noexcept;
  /// As PeerParts::leave, also for a group of one process.
  void leave(std::uint64_t count, std::chrono::milliseconds patience) noexcept;

 private:
  void meet(const Dataset& dataset, const Device& device, const LoaderOptions& options);

  const FeedPlan whole_;
  ProcessBoard board_;
  std::vector<double> weights_;
  std::optional<BatchSplit> split_;  ///< of each batch; nullopt if the group is one process
  std::optional<PeerParts> parts_;   ///< nullopt if the group is one process
  std::string refusal_;
};

/// A number that says which samples a batch has: processes offer it with their parts.
[[nodiscard]] std::uint64_t number_of(std::span<const std::uint64_t> indices) noexcept;

}  // namespace penstock
