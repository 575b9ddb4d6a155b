#pragma once

#include "loader/batch_parts.hpp"

#include <penstock/data/dataset.hpp>
#include <penstock/data/sampler.hpp>
#include <penstock/loader/feed_plan.hpp>
#include <penstock/loader/loader_options.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>

/// Loaders whose batches come in parts, each over a link of its own.
namespace penstock {

/// Throws InvalidArgument for options that such a loader does not take.
[[nodiscard]] LoaderOptions checked_for_group(LoaderOptions options);

/// The options of a loader's Sampler. A Loader of one device asks here, too.
[[nodiscard]] SamplerOptions sampler_options_of(const LoaderOptions& options);

/// How batches of up to `batch` samples lie in memory. Nothing travels by this plan.
[[nodiscard]] FeedPlan plan_of_whole(const Dataset& dataset, const LoaderOptions& options,
                                     std::uint64_t batch);

/// The options of the Loader that brings the parts of `sampler`, of up to `largest` samples. The budget is
/// the caller's to set.
[[nodiscard]] LoaderOptions options_of_parts(const LoaderOptions& whole, std::shared_ptr<PartSampler> sampler,
                                             std::uint64_t largest);

/// The share of a device's budget that the ring of whole batches has; the parts have the rest.
[[nodiscard]] std::size_t group_ring_budget(const LoaderOptions& options, std::size_t budget,
                                            std::size_t slot_bytes);

}  // namespace penstock
