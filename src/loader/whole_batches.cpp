#include "loader/whole_batches.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/memory/pool.hpp>

#include <algorithm>
#include <utility>

namespace penstock {

namespace {

// The next part crosses the link while the one before it is copied on.
constexpr std::size_t kPartsAhead = 2;

}  // namespace

std::shared_ptr<SharedDraws> share_draws(BatchOrder& order) {
  if (order.drawn) order.shared = std::make_shared<SharedDraws>(*order.drawn);
  return order.shared;
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

std::optional<DeviceBatch> next_part(Loader& parts, const Stream& stream, const Turn& turn) {
  const auto end_if_stopped = [&] {
    if (turn.stopped()) throw ProductionStopped{};
  };
  return parts.next(stream, end_if_stopped);
}

void restart_parts(Loader& parts) { parts.start_epoch(parts.state().epoch + 1); }

void count_copies_of_parts(FeedStatistics& statistics) noexcept {
  if (statistics.link_bytes == 0) return;
  statistics.transfer_seconds += std::exchange(statistics.kernel_seconds, 0);
  statistics.exposed_transfer_seconds += std::exchange(statistics.exposed_kernel_seconds, 0);
}

}  // namespace penstock
