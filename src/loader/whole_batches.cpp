#include "loader/whole_batches.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <algorithm>
#include <utility>

namespace penstock {

namespace {

// The next part crosses the link while the one before it is copied on.
constexpr std::size_t kPartsAhead = 2;

}  // namespace

LoaderOptions checked_for_group(LoaderOptions options) {
  if (options.batch_sampler) {
    throw InvalidArgument(
        "A loader over several links draws its batches by itself: leave out the sampler, or use a Loader for "
        "each device.");
  }
  if (options.data_may_change) {
    throw InvalidArgument(
        "A loader over several links reads ahead from epoch to epoch: its data must not change.");
  }
  return options;
}

SamplerOptions sampler_options_of(const LoaderOptions& options) {
  return {.shuffle = options.shuffle,
          .seed = options.seed,
          .batch_size = options.batch_size,
          .drop_last = options.drop_last,
          .shard = options.shard};
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

std::size_t group_ring_budget(const LoaderOptions& options, std::size_t budget, std::size_t slot_bytes) {
  // Parts take little if nothing is resident. Otherwise the ring has room for as many slots again as it
  // begins with.
  return options.residency.kind == Residency::Kind::none
             ? budget / 2
             : std::min(budget / 2, 2 * (options.prefetch_depth + 1) * slot_bytes);
}

}  // namespace penstock
