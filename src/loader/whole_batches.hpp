#pragma once

#include "loader/batch_parts.hpp"
#include "loader/device_ring.hpp"

#include <penstock/core/feed_statistics.hpp>
#include <penstock/core/function_ref.hpp>
#include <penstock/data/dataset.hpp>
#include <penstock/data/sampler.hpp>
#include <penstock/loader/feed_plan.hpp>
#include <penstock/loader/loader_options.hpp>
#include <penstock/transfer/account.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

/// Loaders whose batches come in parts, each over a link of its own. Some of this serves every loader.
namespace penstock {

/// Throws InvalidArgument for options that such a loader does not take.
[[nodiscard]] LoaderOptions checked_for_group(LoaderOptions options);

/// Throws InvalidArgument for options that a batch sampler decides. A Loader of one device asks here, too.
void check_sampler(const LoaderOptions& options);
/// Throws the InvalidArgument of a loader with a batch sampler that is asked for a place within an epoch.
[[noreturn]] void refuse_place();

/// What draws the batches of `options.batch_sampler`, as far ahead as on one device; null without one. A
/// Loader of one device asks here, too.
[[nodiscard]] std::unique_ptr<DrawnBatches> draws_of_whole(const LoaderOptions& options,
                                                           std::uint64_t samples);

/// The options of a loader's Sampler. A Loader of one device asks here, too.
[[nodiscard]] SamplerOptions sampler_options_of(const LoaderOptions& options);

/// The most samples that a batch has. A batch sampler may repeat samples. A Loader of one device asks here,
/// too.
[[nodiscard]] std::uint64_t largest_batch(const LoaderOptions& options, const Sampler& sampler);

/// How batches of up to `batch` samples lie in memory. Nothing travels by this plan.
[[nodiscard]] FeedPlan plan_of_whole(const Dataset& dataset, const LoaderOptions& options,
                                     std::uint64_t batch);

/// The options of the Loader that brings the parts of `sampler`, of up to `largest` samples. The budget is
/// the caller's to set.
[[nodiscard]] LoaderOptions options_of_parts(const LoaderOptions& whole, std::shared_ptr<PartSampler> sampler,
                                             std::uint64_t largest);

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

/// The samples of the next batch: of `sampler`, or of an item of `draws`, unless it is null. None at an
/// epoch's end.
[[nodiscard]] SampleRun next_run(Sampler& sampler, SharedDraws* draws, std::uint64_t item);

/// Ends make_batches: the loader's thread is to stop.
struct ProductionStopped {};

/// What make_batches calls, on the loader's thread.
struct BatchMaking {
  std::function<SampleRun()> next;  ///< the samples of the next batch; none at an epoch's end
  std::function<bool(const SampleRun&)> make;
  std::function<bool(PublishedItem&)> make_end;
  std::function<void(const PublishedItem&)> publish;
};

/// Makes batches, and publishes them all: also each epoch's end, from which it goes on to the next one, and
/// the exception that ends it. `index`: that of the next batch in its epoch. Returns if `make` or `make_end`
/// returns false, if one of the functions throws ProductionStopped or BatchSampler::Interrupted, or after
/// another exception.
void make_batches(Sampler& sampler, std::uint64_t& index, const BatchMaking& making);
/// The exception that is being handled, at the sampler's place.
[[nodiscard]] PublishedItem failed_item(const Sampler& sampler);

/// Drops what the ring has published, and has it go on at `position`. The producer must not be at work. A
/// Loader of one device asks here, too.
void drop_batches(DeviceRing& ring, Account& account, const SamplerState& position);

/// How a batch is delivered, whose samples have so many bytes each. A Loader of one device asks here, too.
[[nodiscard]] Delivery delivery_of(const PublishedItem& batch, std::size_t sample_bytes) noexcept;

/// Corrects the times in the account of a loader's slots, which does not know that the parts in them came
/// over links.
void count_copies_of_parts(FeedStatistics& statistics) noexcept;

}  // namespace penstock
