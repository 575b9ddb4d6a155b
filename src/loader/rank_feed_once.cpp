#include "loader/rank_feed_once.hpp"

#include "core/shared/pause.hpp"
#include "core/shared/wait_quietly.hpp"
#include "loader/whole_batches.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace penstock {

namespace {

constexpr std::chrono::milliseconds kLongestFarewell{60'000};

}  // namespace

RankFeedOnce::RankFeedOnce(RankGroup& group, const Dataset& dataset, const Device& device,
                           const LoaderOptions& options, const Sampler& first, const FeedPlan& whole)
    : group_(group),
      options_(options),
      plan_(whole),
      sample_bytes_(dataset.sample_bytes()),
      first_sampler_(first),
      sampler_(first_sampler_),
      shares_(std::make_shared<BatchShares>(group.weights())),
      drawn_(draws_of_whole(options_, dataset.sample_count())),
      draws_(drawn_ ? std::make_shared<SharedDraws>(*drawn_) : nullptr),
      sampler_of_parts_(std::make_shared<PartSampler>(first_sampler_, draws_, shares_, group.rank())),
      account_(device, {.timeline_batches = options_.timeline_batches}),
      put_(device.create_stream(StreamPriority::high)),
      arrive_(device.create_stream(StreamPriority::high)),
      placed_(device.create_event()) {
  LoaderOptions own =
      options_of_parts(options_, sampler_of_parts_, group_.split().largest(plan_.batch, group_.rank()));
  const GroupBudget budget = group_budget(options_, device, /*receives=*/true, plan_.slot_bytes);
  own.device_budget_bytes = budget.parts;
  ring_ = make_group_ring(device, budget.ring, plan_, options_, sampler_.state());
  loader_.emplace(dataset, device, std::move(own));
  thread_.begin();
}

/// Those of the thread.
void RankFeedOnce::end_waits() {
  ring_->stop();
  if (drawn_) drawn_->stop();
}

void RankFeedOnce::run() {
  make_batches(sampler_, index_,
               {.next = [this] { return next_run(sampler_, draws_.get(), turn_); },
                .make = [this](const SampleRun& run) { return make_batch(run); },
                .make_end = [this](PublishedItem& end) { return make_end(end); },
                .publish = [this](const PublishedItem& item) { publish(item); }});
}

/// All processes come to it, if a sampler chooses the samples. False if it is to stop.
bool RankFeedOnce::make_end(PublishedItem& end) {
  if (draws_ == nullptr) return true;
  const auto stopped = [this] { return thread_.is_ending(); };
  if (!offer() || !group_.parts().wait_for_offers(turn_, stopped)) return false;
  group_.parts().taken(turn_++);
  end.generation = draws_->generation();
  return true;
}

/// Also tells the other processes of an exception.
void RankFeedOnce::publish(const PublishedItem& item) {
  if (item.error == nullptr) return ring_->publish(item);
  group_.complain(item.error);
  ring_->publish(item);
  group_.parts().end_if_over();
}

/// False if it is to stop.
bool RankFeedOnce::make_batch(const SampleRun& run) {
  if (!offer()) return false;
  PublishedItem item;
  const double asked = account_.now();
  DeviceSlot* const slot = ring_->acquire();
  if (slot == nullptr) return false;
  item.slot = slot;
  item.slot_wait_seconds = account_.now() - asked;
  item.state = sampler_.state();
  item.times.epoch = slot->epoch = sampler_.epoch();
  item.times.batch = slot->index = index_++;
  item.times.samples = run.count;
  slot->run = run;
  if (draws_ != nullptr) {
    slot->drawn = draws_->of(turn_);
    item.state.consumed = index_;
    item.generation = draws_->generation();
  }
  item.timed = account_.open();
  bool filled = false;
  try {
    filled = fill(*slot, item);
  } catch (...) {
    account_.discard(item.timed);
    ring_->put_back(*slot, !drain());
    throw;
  }
  if (filled) {
    ring_->publish(std::move(item));
  } else {
    account_.discard(item.timed);
    ring_->put_back(*slot, !drain());
  }
  return filled;
}

/// Puts this process's part where the others find it. False if it is to stop.
bool RankFeedOnce::offer() {
  const auto end_if_stopped = [this] {
    if (thread_.is_ending()) throw ProductionStopped{};
  };
  if (std::optional<DeviceBatch> part = loader_->next(put_, end_if_stopped)) {
    group_.parts().put(turn_, *part, put_);
    part.reset();
    placed_.record(put_);
    if (!wait_for(placed_)) return false;
  }
  shares_->forget_before(turn_);
  if (draws_ != nullptr) draws_->forget_before(turn_);
  group_.parts().offer(turn_, draws_ == nullptr ? 0 : number_of(draws_->of(turn_)));
  return true;
}

/// Brings the parts of all processes into a slot. False if it is to stop.
bool RankFeedOnce::fill(DeviceSlot& slot, PublishedItem& item) {
  slot.size_fields(plan_);
  PeerParts& parts = group_.parts();
  const auto stopped = [this] { return thread_.is_ending(); };
  if (!parts.wait_for_offers(turn_, stopped)) return false;
  ring_->wait_for_users(slot, arrive_);
  if (item.timed != nullptr) item.timed->begin.record(arrive_);
  // Each begins with its own part, so that not all read from the same device at once.
  for (std::size_t i = 0; i < group_.size(); ++i) {
    const std::size_t rank = (group_.rank() + i) % group_.size();
    parts.take(rank, turn_, group_.split().part(slot.run.count, rank), slot.fields, arrive_);
  }
  ring_->mark_end(slot, arrive_, item.timed);
  if (!wait_for(*slot.ready)) return false;
  parts.taken(turn_++);
  return true;
}

/// Blocks the host. False if it is to stop.
bool RankFeedOnce::wait_for(const Event& event) const {
  bool done = false;
  nap_until([&] { return (done = event.query()) || thread_.is_ending(); });
  return done;
}

/// Blocks the host until no copy of parts is under way. False if that cannot be known.
bool RankFeedOnce::drain() const noexcept {
  const bool placed = wait_quietly([&] { put_.synchronize(); });
  return wait_quietly([&] { arrive_.synchronize(); }) && placed;
}

std::optional<DeviceBatch> RankFeedOnce::next(const Stream& stream,
                                              const FunctionRef<void()>& while_waiting) {
  Account::Request request(account_, &stream);
  std::optional<DrawnBatches::Asking> asking;
  if (drawn_ && !ring_->is_closed()) {
    between_epochs_ = false;
    asking.emplace(*drawn_);
  }
  PublishedItem item = ring_->take(stream, &while_waiting);
  if (asking) {
    between_epochs_ = item.slot == nullptr;
    asking->has(item.generation, item.slot == nullptr);
  }
  if (item.slot != nullptr || drawn_) ++handed_out_;
  if (item.slot == nullptr) {
    request.end(item.times.epoch);
    return std::nullopt;
  }
  DeviceBatch batch(ring_, item.slot);
  request.answer(delivery_of(item, plan_.delivered_sample_bytes()));
  return batch;
}

void RankFeedOnce::go_to(const Sampler& place) {
  const std::lock_guard control(control_mutex_);
  if (ring_->is_closed()) throw Closed("The loader was closed; make another one.");
  thread_.end();
  try {
    if (!drain()) {
      group_.parts().give_up();
      throw DeviceError("PENSTOCK_LOST_WORK", "synchronize", 0, "Copies of parts cannot be waited for.");
    }
    group_.go_to(place.state());
    turn_ = 0;
    sampler_ = place;
    index_ = first_sampler_.batches_per_epoch() - sampler_.batches_left();
    handed_out_ = 0;
    drop_batches(*ring_, account_, sampler_.state());
    shares_->restart();
    if (drawn_) {
      drawn_->restart(sampler_.epoch());
      draws_->restart();
    }
    sampler_of_parts_->go_to(sampler_);
    loader_->start_epoch(loader_->state().epoch + 1);  // not the one that it is in
    thread_.begin();
  } catch (...) {
    drop_batches(*ring_, account_, sampler_.state());
    publish(failed_item(sampler_));
    throw;
  }
  if (drawn_) drawn_->draw();  // for those who are in next() now
}

void RankFeedOnce::start_epoch(std::uint64_t epoch) {
  if (ring_->is_at_start_of(epoch)) return;
  Sampler place = first_sampler_;
  place.start_epoch(epoch);
  go_to(place);
}

void RankFeedOnce::restore(const SamplerState& state) {
  Sampler place = first_sampler_;
  place.restore(state);
  go_to(place);
}

void RankFeedOnce::leave_epoch() {
  const std::lock_guard control(control_mutex_);
  if (ring_->is_closed()) return;
  if (!between_epochs_) {
    thread_.end();
    drop_batches(*ring_, account_, ring_->position());
    loader_->start_epoch(loader_->state().epoch + 1);
    ring_->publish({.error = error_of_left_epoch(), .state = ring_->position()});
  }
  loader_->synchronize();
}

void RankFeedOnce::close() {
  const std::lock_guard control(control_mutex_);
  thread_.end();
  ring_->close();
  static_cast<void>(drain());
  group_.leave(handed_out_, std::min(group_.options().timeout, kLongestFarewell));
  loader_->close();  // the last: it throws if the device failed
}

FeedStatistics RankFeedOnce::stats() const {
  const FeedStatistics own = loader_->stats();
  FeedStatistics statistics = account_.total();
  const RingSize size = ring_->size();
  statistics.link_bytes = own.link_bytes;
  statistics.link_ceiling = own.link_ceiling;
  statistics.resident_bytes = own.resident_bytes;
  statistics.slots = size.slots;
  statistics.ring_bytes = size.bytes + own.ring_bytes;
  count_copies_of_parts(statistics);
  statistics.prefetch_depth = options_.prefetch_depth;
  statistics.sample_bytes = sample_bytes_;
  return statistics;
}

std::vector<std::string> RankFeedOnce::describe() const {
  std::vector<std::string> lines = loader_->describe();
  lines.insert(lines.begin(), fmt::format("{} of each batch over this link, the rest from {} other processes",
                                          describe_part(), group_.size() - 1));
  return lines;
}

std::string RankFeedOnce::describe_part() const {
  if (group_.split().is_even()) return fmt::format("1/{}", group_.size());
  return fmt::format("by its measured rate, {}/{}", group_.split().part(plan_.batch, group_.rank()).count,
                     plan_.batch);
}

}  // namespace penstock
