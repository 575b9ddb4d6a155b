#include "loader/whole_batches.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/memory/pool.hpp>

#include <algorithm>
#include <exception>
#include <utility>

namespace penstock {

namespace {

// The next part crosses the link while the one before it is copied on.
constexpr std::size_t kPartsAhead = 2;

}  // namespace

LoaderOptions checked_for_group(LoaderOptions options) {
  check_sampler(options);
  if (options.data_may_change && !options.batch_sampler) {
    throw InvalidArgument(
        "Without a batch sampler, a loader over several links reads ahead from epoch to epoch: its data must "
        "not change.");
  }
  return options;
}

void check_sampler(const LoaderOptions& options) {
  if (options.batch_sampler &&
      (options.shuffle || options.seed != 0 || options.drop_last || options.shard.world_size != 1)) {
    throw InvalidArgument(
        "A batch sampler chooses the samples of each batch: leave out shuffle, seed, drop_last and the "
        "shard.");
  }
}

void refuse_place() {
  throw InvalidArgument(
      "A loader with a batch sampler cannot go to a place within an epoch: the sampler keeps it.");
}

std::unique_ptr<DrawnBatches> draws_of_whole(const LoaderOptions& options, std::uint64_t samples) {
  if (!options.batch_sampler) return nullptr;
  return std::make_unique<DrawnBatches>(options.batch_sampler, samples, options.batch_size,
                                        options.prefetch_depth + 1);
}

SamplerOptions sampler_options_of(const LoaderOptions& options) {
  return {.shuffle = options.shuffle,
          .seed = options.seed,
          .batch_size = options.batch_size,
          .drop_last = options.drop_last,
          .shard = options.shard};
}

std::uint64_t largest_batch(const LoaderOptions& options, const Sampler& sampler) {
  return options.batch_sampler ? options.batch_size
                               : std::min(options.batch_size, sampler.samples_per_epoch());
}

FeedPlan plan_of_whole(const Dataset& dataset, const LoaderOptions& options, std::uint64_t batch) {
  FeedPlan plan;
  plan.batch = static_cast<std::size_t>(batch);
  for (std::size_t f = 0; f < dataset.field_count(); ++f) {
    FieldPlan field;
    field.stored = dataset.field(f);
    field.to = field.stored.narrowed_from.value_or(field.stored.dtype);
    for (const FieldOptions& asked : options.fields) {
      if (asked.name == field.stored.name && asked.to) field.to = *asked.to;
    }
    field.delivered_bytes = element_count(field.stored.shape) * dtype_bytes(field.to);
    field.slot_offset = plan.slot_bytes;
    plan.slot_bytes += align_up(plan.batch * field.delivered_bytes, kSlotAlignment);
    plan.fields.push_back(std::move(field));
  }
  // Nobody reads indices there.
  plan.slot_bytes = std::max(plan.slot_bytes, kSlotAlignment);
  return plan;
}

LoaderOptions options_of_parts(const LoaderOptions& whole, std::shared_ptr<PartSampler> sampler,
                               std::uint64_t largest) {
  LoaderOptions parts = whole;
  parts.batch_sampler = std::move(sampler);
  parts.batch_size = std::max<std::uint64_t>(largest, 1);
  parts.shuffle = parts.drop_last = false;
  parts.seed = 0;
  parts.shard = {};
  parts.prefetch_depth = std::min(kPartsAhead, whole.prefetch_depth);
  parts.ring_grows = true;
  return parts;
}

GroupBudget group_budget(const LoaderOptions& options, const Device& device, bool receives,
                         std::size_t slot_bytes) {
  const std::size_t all =
      options.device_budget_bytes != 0 ? options.device_budget_bytes : device.memory().free / 2;
  std::size_t ring = receives ? all / 2 : 0;
  // Parts take little if nothing is resident. Otherwise the ring has room for as many slots again as it
  // begins with.
  if (options.residency.kind != Residency::Kind::none) {
    ring = std::min(ring, 2 * (options.prefetch_depth + 1) * slot_bytes);
  }
  return {.ring = ring, .parts = std::max<std::size_t>(all - ring, 1)};
}

std::shared_ptr<DeviceRing> make_group_ring(const Device& device, std::size_t budget, const FeedPlan& whole,
                                            const LoaderOptions& options, const SamplerState& position) {
  const auto memory = std::make_shared<Pool>(
      make_device_pool(device, {.budget_bytes = std::max<std::size_t>(budget, 1),
                                .segment_bytes = std::max(whole.slot_bytes, std::size_t{1} << 20)}));
  return std::make_shared<DeviceRing>(device, memory, whole, options, position);
}

SampleRun next_run(Sampler& sampler, SharedDraws* draws, std::uint64_t item) {
  if (draws == nullptr) return sampler.next_run();
  return {.order = std::nullopt, .count = draws->of(item).size()};
}

void make_batches(Sampler& sampler, std::uint64_t& index, const BatchMaking& making) {
  try {
    for (;;) {
      const SampleRun run = making.next();
      if (run.count > 0) {
        if (!making.make(run)) return;
        continue;
      }
      PublishedItem end;
      if (!making.make_end(end)) return;
      end.times.epoch = sampler.epoch();
      sampler.start_epoch(sampler.epoch() + 1);
      index = 0;
      end.state = sampler.state();
      making.publish(end);
    }
  } catch (const ProductionStopped&) {
  } catch (const BatchSampler::Interrupted&) {  // the drawing was stopped
  } catch (...) {
    making.publish(failed_item(sampler));
  }
}

PublishedItem failed_item(const Sampler& sampler) {
  PublishedItem failed;
  failed.error = std::current_exception();
  failed.times.epoch = sampler.epoch();
  failed.state = sampler.state();
  return failed;
}

void drop_batches(DeviceRing& ring, Account& account, const SamplerState& position) {
  for (const PublishedItem& dropped : ring.reset(position)) account.discard(dropped.timed);
}

Delivery delivery_of(const PublishedItem& batch, std::size_t sample_bytes) noexcept {
  return {.timed = batch.timed,
          .times = batch.times,
          .delivered_bytes = static_cast<std::size_t>(batch.times.samples) * sample_bytes,
          .ready = batch.ready,
          .slot_wait_seconds = batch.slot_wait_seconds};
}

void count_copies_of_parts(FeedStatistics& statistics) noexcept {
  if (statistics.link_bytes == 0) return;
  statistics.transfer_seconds += std::exchange(statistics.kernel_seconds, 0);
  statistics.exposed_transfer_seconds += std::exchange(statistics.exposed_kernel_seconds, 0);
}

}  // namespace penstock
