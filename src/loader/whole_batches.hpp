#pragma once

#include "loader/batch_parts.hpp"
#include "loader/batch_source.hpp"
#include "loader/device_ring.hpp"

#include <penstock/core/feed_statistics.hpp>
#include <penstock/data/dataset.hpp>
#include <penstock/data/sampler.hpp>
#include <penstock/loader/feed_plan.hpp>
#include <penstock/loader/loader.hpp>
#include <penstock/loader/loader_options.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

/// What sources have in common whose batches come in parts, each over a link of its own.
namespace penstock {

/// The draws of `order`, for a thread that takes them and for samplers of parts; null without any.
[[nodiscard]] std::shared_ptr<SharedDraws> share_draws(BatchOrder& order);

/// How batches of up to `batch` samples lie in memory. Nothing travels by this plan.
[[nodiscard]] FeedPlan plan_of_whole(const Dataset& dataset, const LoaderOptions& options,
                                     std::uint64_t batch);

/// The options of the Loader that brings the parts of `sampler`, of up to `largest` samples. The budget is
/// the caller's to set.
[[nodiscard]] LoaderOptions options_of_parts(const LoaderOptions& whole, std::shared_ptr<PartSampler> sampler,
                                             std::uint64_t largest);

/// The part of the turn's batch, ready on `stream`; nullopt if it has none, since the epoch of `parts` then
/// ends. Throws ProductionStopped if the thread is to stop.
[[nodiscard]] std::optional<DeviceBatch> next_part(Loader& parts, const Stream& stream, const Turn& turn);

/// Begins another epoch than the one that `parts` is in.
void restart_parts(Loader& parts);

/// How a device's budget is shared.
struct GroupBudget {
  std::size_t ring = 0;   ///< of whole batches
  std::size_t parts = 0;  ///< at least 1: 0 would be half of the memory that is free
};
/// `receives`: the device has a ring of whole batches, each of which takes `slot_bytes`.
[[nodiscard]] GroupBudget group_budget(const LoaderOptions& options, const Device& device, bool receives,
                                       std::size_t slot_bytes);

/// The ring of whole batches, which takes up to `budget` bytes of the device.
[[nodiscard]] std::shared_ptr<DeviceRing> make_group_ring(const Device& device, std::size_t budget,
                                                          const FeedPlan& whole, const LoaderOptions& options,
                                                          const SamplerState& position);

/// Corrects the times in the account of a loader's slots, which does not know that the parts in them came
/// over links.
void count_copies_of_parts(FeedStatistics& statistics) noexcept;

}  // namespace penstock
