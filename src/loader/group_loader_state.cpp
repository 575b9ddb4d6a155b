#include "loader/group_loader_state.hpp"

#include "core/shared/wait_quietly.hpp"
#include "loader/loader_handle.hpp"
#include "loader/whole_batches.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/log.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace penstock {

namespace {

/// Ends the wait for a member's batch: the group went elsewhere meanwhile.
struct GoneElsewhere {};

}  // namespace

GroupLoaderState::~GroupLoaderState() {
  taken_.clear();
  end_members();
}

/// The last one first: a member may read memory that one before it has locked.
void GroupLoaderState::end_members() noexcept {
  while (!members_.empty()) members_.pop_back();
}

/// Those of the group's thread.
void GroupLoaderState::end_waits() {
  for (const std::size_t i : receivers_) members_[i].ring->stop();
  if (drawn_) drawn_->stop();
}

void GroupLoaderState::run() {
  make_batches(sampler_, index_,
               {.next = [this] { return next_run(sampler_, draws_.get(), made_); },
                .make = [this](const SampleRun& run) { return make_batch(run); },
                .make_end = [this](PublishedItem& end) { return make_end(end); },
                .publish = [this](const PublishedItem& item) { publish(item); }});
}

/// Takes the ends of the members' own epochs, too.
bool GroupLoaderState::make_end(PublishedItem& /*end*/) {
  if (draws_ == nullptr) return true;
  static_cast<void>(take_parts());
  go_on();
  return true;
}

void GroupLoaderState::publish(const PublishedItem& item) {
  for (const std::size_t i : receivers_) {
    PublishedItem copy = item;
    copy.generation = generation_;
    members_[i].ring->publish(std::move(copy));
  }
}

/// The parts of the next batch. A member without a part says so, since its loader's epoch ends.
GroupLoaderState::Parts GroupLoaderState::take_parts() {
  const auto end_if_stopping = [this] {
    if (thread_.is_ending()) throw ProductionStopped{};
  };
  Parts parts(members_.size());
  for (std::size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    if (member.loader) parts[i] = member.loader->next(member.push, end_if_stopping);
  }
  return parts;
}

/// False if it is to stop.
bool GroupLoaderState::make_batch(const SampleRun& run) {
  const Parts parts = take_parts();
  PublishedItem item;
  item.state = sampler_.state();
  item.generation = generation_;
  item.times.epoch = sampler_.epoch();
  item.times.batch = index_++;
  item.times.samples = run.count;
  if (draws_ != nullptr) item.state.consumed = index_;
  // A member's slot is taken when the ones before it are published, as next() takes them. So if the slots of
  // one are all held, next() waits at that one's ring, which knows who holds them.
  for (const std::size_t i : receivers_) {
    DeviceRing& ring = *members_[i].ring;
    const double asked = account_->now();
    DeviceSlot* const slot = ring.acquire();
    if (slot == nullptr) return false;
    slot->run = run;
    if (draws_ != nullptr) slot->drawn = draws_->of(made_);
    slot->epoch = item.times.epoch;
    slot->index = item.times.batch;
    PublishedItem own = item;
    own.slot = slot;
    own.slot_wait_seconds = account_->now() - asked;
    if (i == receivers_[0]) own.timed = account_->open();
    try {
      fill(i, *slot, parts, own);
    } catch (...) {
      account_->discard(own.timed);
      ring.put_back(*slot, !drain());
      throw;
    }
    ring.publish(std::move(own));
  }
  go_on();
  see_who_gives_way();
  return true;
}

/// Counts a batch, or an end, whose parts were taken.
void GroupLoaderState::go_on() {
  ++made_;
  for (Lane& lane : lanes_) lane.shares->forget_before(made_);
  if (draws_ != nullptr) draws_->forget_before(made_);
}

void GroupLoaderState::see_who_gives_way() {
  if (receiver_) own_link_.see(members_[*receiver_].loader->timeline());
  for (Member& member : members_) {
    if (!member.watch) continue;
    Lane& lane = lanes_[member.lane];
    const std::vector<BatchTimes> pulled = member.loader->timeline();
    lane.shares->set_gives_way(member.number,
                               member.watch->is_busy(pulled, lane.carriers.size() - 1, own_link_.pace()));
  }
}

/// Enqueues the copies of all parts into a receiver's slot.
void GroupLoaderState::fill(std::size_t member, DeviceSlot& slot, const Parts& parts, PublishedItem& item) {
  const Member& receiver = members_[member];
  slot.size_fields(plan_);
  if (item.timed != nullptr) item.timed->begin.record(receiver.arrive);
  const Lane& lane = lanes_[receiver.lane];
  const BatchSplit& split = lane.shares->of(made_);
  for (const std::size_t sender : lane.carriers) {
    Member& from = members_[sender];
    if (!parts[sender]) continue;
    const std::uint64_t begin = split.part(slot.run.count, from.number).begin;
    receiver.ring->wait_for_users(slot, from.push);
    if (from.watch) from.watch->push_begins(*parts[sender], from.push);
    for (std::size_t f = 0; f < slot.fields.size(); ++f) {
      const DeviceField& part = parts[sender]->field(f);
      if (part.bytes == 0) continue;
      std::byte* const there = slot.fields[f].data + begin * plan_.fields[f].delivered_bytes;
      from.push.copy(there, part.data, part.bytes, CopyDirection::d2d);
    }
    if (from.watch) from.watch->push_ends(from.push);
    from.pushed.record(from.push);
    receiver.arrive.wait(from.pushed);
  }
  receiver.ring->mark_end(slot, receiver.arrive, item.timed);
}

/// Blocks the host until no copy to a slot is under way. False if that cannot be known.
bool GroupLoaderState::drain() noexcept {
  bool done = true;
  for (const Member& member : members_) {
    for (const Stream* stream : {&member.push, &member.arrive}) {
      done = wait_quietly([&] { stream->synchronize(); }) && done;
    }
  }
  return done;
}

void GroupLoaderState::drop(std::optional<Taken>& taken) noexcept {
  if (taken) account_->discard(taken->item.timed);
  taken.reset();
}

/// True if the group went elsewhere after the batches that next() has were made. Drops them: their slots may
/// be those that the batch at the new place needs.
bool GroupLoaderState::drop_outdated() noexcept {
  {
    const std::lock_guard guard(position_mutex_);
    if (!taken_[0] || taken_[0]->item.generation == generation_) return false;
  }
  for (std::optional<Taken>& taken : taken_) drop(taken);
  return true;
}

/// Takes the same batch from every ring. If a ring has failed, the batches of the others stay for the next
/// call. If the group went to another place meanwhile, some are of the place before, and are dropped.
void GroupLoaderState::take_all(std::span<const Stream> streams, const FunctionRef<void()>* while_waiting) {
  const auto ask = [&] {
    if (drop_outdated()) throw GoneElsewhere{};
    if (while_waiting != nullptr) (*while_waiting)();
  };
  const FunctionRef<void()> while_some_are_taken(ask);
  for (std::size_t i = 0; i < receivers_.size(); ++i) {
    if (taken_[i] && taken_[i]->batch) taken_[i]->batch->use_on(streams[i]);
  }
  for (std::size_t i = 0; i < receivers_.size();) {
    const std::shared_ptr<DeviceRing>& ring = members_[receivers_[i]].ring;
    std::optional<Taken>& taken = taken_[i];
    if (!taken) {
      PublishedItem item;
      try {
        item = ring->take(streams[i], i == 0 ? while_waiting : &while_some_are_taken);
      } catch (const GoneElsewhere&) {
        i = 0;
        continue;
      }
      taken.emplace();
      if (item.slot != nullptr) taken->batch.emplace(DeviceBatch(ring, item.slot));
      taken->item = std::move(item);
    }
    if (taken->item.generation == taken_[0]->item.generation) {
      ++i;
    } else if (taken->item.generation < taken_[0]->item.generation) {
      drop(taken);
    } else {
      for (std::size_t before = 0; before < i; ++before) drop(taken_[before]);
      i = 0;
    }
  }
}

std::optional<std::vector<DeviceBatch>> GroupLoaderState::next(std::span<const Stream> streams,
                                                               const FunctionRef<void()>* while_waiting) {
  refuse_fork();
  if (streams.size() != receivers_.size()) {
    throw InvalidArgument(
        fmt::format("{} streams were given for batches on {} devices; give one of each device",
                    streams.size(), receivers_.size()));
  }
  const std::lock_guard lock(next_mutex_);
  Account::Request request(*account_, &streams[0]);
  std::optional<DrawnBatches::Asking> asking;
  if (drawn_ && !members_[receivers_[0]].ring->is_closed()) asking.emplace(*drawn_);
  take_all(streams, while_waiting);
  const PublishedItem item = taken_[0]->item;
  if (asking) asking->has(item.generation, item.slot == nullptr);
  {
    const std::lock_guard guard(position_mutex_);
    if (item.generation == generation_) position_ = item.state;
  }
  std::vector<DeviceBatch> batches;
  for (std::optional<Taken>& taken : taken_) {
    if (taken->batch) batches.push_back(*std::move(taken->batch));
    taken.reset();
  }
  if (item.slot == nullptr) {
    request.end(item.times.epoch);
    return std::nullopt;
  }
  request.answer(delivery_of(item, plan_.delivered_sample_bytes()));
  return batches;
}

template <typename Change>
void GroupLoaderState::go_to(Change&& change) {
  refuse_fork();
  const std::lock_guard control(control_mutex_);
  if (closed_) throw Closed("The loader was closed; make another one.");
  Sampler changed = first_sampler_;
  change(changed);
  thread_.end();
  sampler_ = changed;
  index_ = first_sampler_.batches_per_epoch() - sampler_.batches_left();
  made_ = 0;
  {
    const std::lock_guard guard(position_mutex_);
    position_ = sampler_.state();
    ++generation_;
  }
  if (drawn_) {
    drawn_->restart(sampler_.epoch());
    draws_->restart();
  }
  for (const std::size_t i : receivers_) {
    drop_batches(*members_[i].ring, *account_, sampler_.state());
  }
  try {
    for (Lane& lane : lanes_) lane.shares->restart();
    for (Member& member : members_) {
      if (!member.loader) continue;
      member.sampler->go_to(sampler_);
      member.loader->start_epoch(member.loader->state().epoch + 1);  // not the one that it is in
    }
    thread_.begin();
  } catch (...) {
    publish(failed_item(sampler_));
    throw;
  }
  if (drawn_) drawn_->draw();  // for those who are in next() now
}

void GroupLoaderState::synchronize() {
  refuse_fork();
  for (Member& member : members_) {
    if (member.loader) member.loader->synchronize();
  }
}

void GroupLoaderState::start_epoch(std::uint64_t epoch) {
  refuse_fork();
  const auto is_there = [&](std::size_t receiver) { return members_[receiver].ring->is_at_start_of(epoch); };
  if (std::ranges::all_of(receivers_, is_there)) return;
  go_to([&](Sampler& sampler) { sampler.start_epoch(epoch); });
}

void GroupLoaderState::restore(const SamplerState& state) {
  if (drawn_) refuse_place();
  go_to([&](Sampler& sampler) { sampler.restore(state); });
}

SamplerState GroupLoaderState::state() const {
  refuse_fork();
  const std::lock_guard guard(position_mutex_);
  return position_;
}

std::uint64_t GroupLoaderState::batches_left() const {
  if (drawn_) return 0;
  Sampler sampler = first_sampler_;
  sampler.restore(state());
  return sampler.batches_left();
}

void GroupLoaderState::close() {
  if (is_forked()) return;
  const std::lock_guard control(control_mutex_);
  if (closed_) return;
  closed_ = true;
  thread_.end();
  for (const std::size_t i : receivers_) members_[i].ring->close();
  for (Member& member : members_) {
    if (member.loader) member.loader->close();
  }
  for (const Member& member : members_) member.arrive.synchronize();
}

FeedStatistics GroupLoaderState::stats() const {
  refuse_fork();
  FeedStatistics statistics = account_->total();
  for (const Member& member : members_) {
    if (member.loader) {
      const FeedStatistics own = member.loader->stats();
      statistics.link_bytes += own.link_bytes;
      statistics.resident_bytes += own.resident_bytes;
      statistics.ring_bytes += own.ring_bytes;
    }
    if (member.ring) {
      const RingSize size = member.ring->size();
      statistics.slots = std::max(statistics.slots, size.slots);
      statistics.ring_bytes += size.bytes;
    }
  }
  count_copies_of_parts(statistics);
  statistics.link_ceiling = link_ceiling_;
  statistics.prefetch_depth = options_.prefetch_depth;
  statistics.sample_bytes = dataset_.sample_bytes();
  return statistics;
}

FeedStatistics GroupLoaderState::member_stats(std::size_t member) const {
  refuse_fork();
  const std::optional<Loader>& loader = members_.at(member).loader;
  return loader ? loader->stats() : FeedStatistics{};
}

std::vector<std::string> GroupLoaderState::describe() const {
  std::vector<std::string> lines = members_[receivers_[0]].loader->describe();
  std::string links;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    fmt::format_to(std::back_inserter(links), "{} {} {}", i == 0 ? "" : ",", group_[i].info().spec,
                   format_bytes(member_stats(i).link_bytes));
  }
  lines.push_back("links: carried so far by" + links);
  return lines;
}

void GroupLoaderState::refuse_fork() const {
  if (is_forked()) refuse_forked_loader("GroupLoader", "devices");
}

}  // namespace penstock
