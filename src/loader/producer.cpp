#include "loader/producer.hpp"

#include "core/shared/pause.hpp"
#include "loader/plan_feed.hpp"

#include <penstock/core/bytes.hpp>

#include <algorithm>
#include <span>
#include <utility>

namespace penstock {

namespace {

/// No staging slots if kernels read all samples where they lie, in an order of the device's own.
std::size_t staging_count(const FeedPlan& plan, std::size_t prefetch_depth) {
  return plan.staging_bytes == 0 ? 0 : most_under_way(prefetch_depth);
}

/// The bytes of a batch that copies bring, and not kernels.
std::size_t copied_bytes(const FeedPlan& plan) {
  std::size_t bytes = 0;
  for (const FieldPlan& field : plan.fields) {
    if (field.is_listed() && !field.by_decoder()) bytes += plan.batch * field.sample_bytes;
  }
  return bytes;
}

std::size_t staging_bytes(const FeedPlan& plan) { return align_up(plan.staging_bytes, 4096); }

}  // namespace

std::size_t most_under_way(std::size_t prefetch_depth) {
  return std::max<std::size_t>(prefetch_depth + 1, kCopyStreams + 1);
}

Producer::Producer(FeedContext context, const DeviceRing& ring, Pool& device_memory,
                   std::size_t prefetch_depth)
    : context_(std::move(context)),
      ring_(ring),
      feeders_(make_feeders(context_)),
      pacer_(context_.device, ring,
             {.batch_bytes = copied_bytes(context_.plan),
              .batches = prefetch_depth + 1,
              .pieces = context_.plan.batch,
              .link_rate = context_.link_rate}),
      pinned_(make_pinned_pool(
          context_.device,
          {.segment_bytes = staging_count(context_.plan, prefetch_depth) * staging_bytes(context_.plan),
           .purpose = "a loader"})),
      staging_(context_.device, pinned_, staging_count(context_.plan, prefetch_depth),
               staging_bytes(context_.plan)),
      ends_(most_under_way(prefetch_depth)) {
  for (std::size_t i = 0; i < staging_.size(); ++i) {
    std::byte* const memory = staging_[i].data();
    staging_slots_.push_back({memory, static_cast<std::byte*>(context_.device.device_address(memory)), i});
  }
  const FeedPlan& plan = context_.plan;
  for (std::size_t i = 0; i < kCopyStreams; ++i) {
    Stream stream = context_.device.create_stream(StreamPriority::high);
    Buffer staging;
    if (plan.device_staging_bytes > 0) staging = device_memory.allocate(plan.device_staging_bytes);
    copy_streams_.push_back({std::move(stream), std::move(staging)});
  }
}

Producer::~Producer() {
  drop_begun();
  try {
    synchronize();
  } catch (...) {  // a failed device does no more work
  }
}

void Producer::synchronize() const {
  for (const CopyStream& copy : copy_streams_) copy.stream.synchronize();
}

/// Chooses the batch's place, and writes its indices there if the host lists them.
void Producer::begin(const BatchSamples& samples) {
  Begun begun;
  if (!staging_slots_.empty()) {
    // Polling would keep a processor busy for each batch. Noticing the slot's end late costs nothing, since
    // batches of other slots are still queued.
    begun.pinned = &staging_.next_in_naps();
    begun.staging = staging_slots_[staging_turn_++ % staging_slots_.size()];
  }
  if (!context_.plan.orders_on_device) {
    const auto count = static_cast<std::size_t>(samples.run.count);
    const std::span indices(
        reinterpret_cast<std::uint64_t*>(begun.staging.memory + context_.plan.staging_indices), count);
    const std::size_t pieces = (count + kSamplesAtATime - 1) / kSamplesAtATime;
    const auto fill_piece = [&](std::size_t piece) {
      const std::size_t first = piece * kSamplesAtATime;
      samples.fill(indices.subspan(first, std::min(kSamplesAtATime, count - first)), first);
    };
    context_.workers.for_each(pieces, fill_piece, context_.threads);
    begun.indices = indices;
    for (const auto& feeder : feeders_) feeder->begin(begun.staging, indices);
  }
  begun_.push_back(begun);
}

void Producer::drop_begun() noexcept {
  for (const auto& feeder : feeders_) feeder->drop_begun();
  begun_.clear();
}

void Producer::fill(const Turn& turn, DeviceSlot& slot, PublishedItem& item, bool& may_be_written) {
  const FeedPlan& plan = context_.plan;
  const Account& account = turn.account;
  if (begun_.empty()) begin(slot);
  const bool looks_ahead =
      std::ranges::any_of(feeders_, [](const auto& feeder) { return feeder->looks_ahead(); });
  while (looks_ahead && begun_.size() < staging_slots_.size() && staging_.next_is_free()) {
    const std::optional<BatchSamples> later = turn.later(begun_.size());
    if (!later) break;
    begin(*later);
  }
  const Begun begun = begun_.front();
  begun_.pop_front();
  // As a staging slot does, this keeps the host near the device. Otherwise it would enqueue as many batches
  // as a program asks for whose own work runs late: the account could not time them all.
  std::shared_ptr<const Event>& end = ends_[turn_ % ends_.size()];
  if (begun.pinned == nullptr && end != nullptr) nap_until([&] { return end->query(); });
  CopyStream& copy = copy_streams_[turn_++ % copy_streams_.size()];
  const CopyStream& next = copy_streams_[turn_ % copy_streams_.size()];
  const Stream& stream = copy.stream;
  BatchToFeed batch{slot,         begun.staging, copy, pacer_, static_cast<std::size_t>(slot.run.count),
                    begun.indices};
  if (!plan.orders_on_device) {
    batch.lists = plan.list_bytes > 0 ? copy.staging.data() + plan.device_lists
                                      : begun.staging.on_device + plan.staging_indices;
    batch.order = reinterpret_cast<const std::uint64_t*>(batch.lists);
  }
  const double begin = account.now();
  for (const auto& feeder : feeders_) item.times.link_bytes += feeder->prepare(batch);
  if (plan.gathers_on_host()) {
    item.times.gather_begin = begin;
    item.times.gather_end = account.now();
  }
  ring_.wait_for_users(slot, stream);
  may_be_written = true;
  const auto mark = [&] {
    pacer_.join();
    ring_.mark_end(slot, stream, item.timed);
    if (begun.pinned != nullptr) begun.pinned->sent(slot.ready);
    end = slot.ready;
  };
  try {
    if (item.timed != nullptr) item.timed->begin.record(stream);
    if (plan.orders_on_device) {
      auto* const indices = reinterpret_cast<std::uint64_t*>(copy.staging.data() + plan.order_offset);
      stream.fill_order({slot.run, indices});
      batch.order = indices;
    }
    if (plan.list_bytes > 0) {  // each warp would read them over the link, beside the copies
      stream.copy(copy.staging.data() + plan.device_lists, begun.staging.memory + plan.staging_indices,
                  plan.list_bytes, CopyDirection::h2d);
    }
    pacer_.begin(slot, stream, next.stream);
    for (const auto& feeder : feeders_) feeder->enqueue(batch);
    mark();
  } catch (...) {
    try {
      mark();
    } catch (...) {
      synchronize();
    }
    may_be_written = false;
    throw;
  }
  may_be_written = false;
}

}  // namespace penstock
