#include "loader/producer.hpp"

#include "loader/plan_feed.hpp"

#include <penstock/core/bytes.hpp>

#include <algorithm>
#include <span>
#include <utility>

namespace penstock {

Producer::Producer(FeedContext context, Pool& device_memory, std::size_t prefetch_depth)
    : context_(std::move(context)), feeders_(make_feeders(context_)) {
  const FeedPlan& plan = context_.plan;
  const Device& device = context_.device;
  for (std::size_t i = 0; i < kCopyStreams; ++i) {
    CopyStream& copy = copy_streams_.emplace_back(CopyStream{device.create_stream(StreamPriority::high), {}});
    if (plan.device_staging_bytes > 0) copy.staging = device_memory.allocate(plan.device_staging_bytes);
  }
  const std::size_t count = std::max<std::size_t>(prefetch_depth + 1, kCopyStreams + 1);
  const std::size_t bytes = align_up(plan.staging_bytes, 4096);
  pinned_ = std::make_unique<Pool>(make_pinned_pool(device, {.segment_bytes = count * bytes}));
  staging_memory_ = pinned_->allocate(count * bytes);
  auto* const on_device = static_cast<std::byte*>(device.backend().device_address(staging_memory_.data()));
  for (std::size_t i = 0; i < count; ++i) {
    // What keeps a processor busy in the driver would be paid for each batch: other slots' batches are still
    // queued while one is waited for, so that noticing its end late costs nothing.
    staging_.push_back({staging_memory_.data() + i * bytes, on_device + i * bytes,
                        device.create_event(EventTiming::off, EventWait::sleep)});
  }
}

Producer::~Producer() {
  try {
    synchronize();
  } catch (...) {  // a device that failed does no more work either
  }
}

void Producer::synchronize() const {
  for (const CopyStream& copy : copy_streams_) copy.stream.synchronize();
}

void Producer::fill(DeviceSlot& slot, const DeviceRing& ring, const SampleRun& run, Arrival& arrival,
                    const Account& account, bool& spoiled) {
  StagingSlot& staging = staging_[turn_ % staging_.size()];
  const CopyStream& copy = copy_streams_[turn_ % copy_streams_.size()];
  const Stream& stream = copy.stream;
  const FeedPlan& plan = context_.plan;
  ++turn_;
  staging.read.synchronize();
  BatchToFeed batch{slot, staging, copy, static_cast<std::size_t>(run.count), {}};
  if (!plan.orders_on_device) {
    const std::span indices(reinterpret_cast<std::uint64_t*>(staging.memory + plan.staging_indices),
                            batch.count);
    run.fill(indices);
    batch.indices = indices;
  }
  const double begin = account.now();
  for (const auto& feeder : feeders_) arrival.times.link_bytes += feeder->prepare(batch);
  if (plan.gathers_on_host()) {
    arrival.times.gather_begin = begin;
    arrival.times.gather_end = account.now();
  }
  ring.wait_for_users(slot, stream);
  spoiled = true;
  const auto mark = [&] {
    slot.ready.record(stream);
    staging.read.record(stream);
  };
  try {
    if (arrival.timed != nullptr) arrival.timed->begin.record(stream);
    if (plan.orders_on_device) context_.device.backend().fill_order({run, slot.indices}, stream.native());
    for (const auto& feeder : feeders_) feeder->enqueue(batch);
    if (arrival.timed != nullptr) arrival.timed->end.record(stream);
    mark();
  } catch (...) {
    try {
      mark();
    } catch (...) {
      stream.synchronize();
    }
    spoiled = false;
    throw;
  }
  spoiled = false;
}

}  // namespace penstock
