#include "loader/group_loader_state.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/log.hpp>
#include <penstock/core/start_thread.hpp>
#include <penstock/core/wait_quietly.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace penstock {

namespace {

// The next part crosses the link while the one before it is copied on.
constexpr std::size_t kPartsAhead = 2;

/// Ends the wait for a part: the group's thread is to stop.
struct Stopped {};
/// Ends the wait for a member's batch: the group went elsewhere meanwhile.
struct GoneElsewhere {};

LoaderOptions checked_for_group(LoaderOptions options) {
  if (options.batch_sampler) {
    throw InvalidArgument(
        "A group's loader draws its batches by itself: leave out the batch sampler, or use a Loader for each "
        "device.");
  }
  if (options.data_may_change) {
    throw InvalidArgument("A group's loader reads ahead from epoch to epoch: its data must not change.");
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

/// How a whole batch lies in a slot. Nothing travels by this plan.
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

}  // namespace

GroupLoaderState::GroupLoaderState(Dataset dataset, DeviceGroup group, LoaderOptions options,
                                   const GroupLinks& links)
    : options_(checked_for_group(std::move(options))),
      group_(std::move(group)),
      dataset_(std::move(dataset)),
      first_sampler_(dataset_.sample_count(), sampler_options_of(options_)),
      plan_(plan_of_whole(dataset_, options_,
                          std::min(options_.batch_size, first_sampler_.samples_per_epoch()))),
      account_(std::make_unique<Account>(group_[0],
                                         AccountOptions{.timeline_batches = options_.timeline_batches})),
      sampler_(first_sampler_),
      taken_(group_.size()),
      position_(sampler_.state()) {
  for (const std::string& pair : group_.unreached()) log_warning(pair);
  try {
    add_members(links);
    begin_production();
  } catch (...) {
    end_members();
    throw;
  }
}

GroupLoaderState::~GroupLoaderState() {
  taken_.clear();
  end_members();
}

/// The last one first: a member may read memory that one before it has locked.
void GroupLoaderState::end_members() noexcept {
  while (!members_.empty()) members_.pop_back();
}

void GroupLoaderState::add_members(const GroupLinks& links) {
  const std::size_t count = group_.size();
  if (!links.profiles.empty() && links.profiles.size() != count) {
    throw InvalidArgument(fmt::format("{} profiles were given for a group of {}; give one for each or none",
                                      links.profiles.size(), count));
  }
  if (links.measured && links.measured->members.size() != count) {
    throw InvalidArgument(
        fmt::format("the measured profile has {} devices, and the group {}; measure this one",
                    links.measured->members.size(), count));
  }
  const bool together = !links.measured || links.measured->feeding_once_pays();
  for (std::size_t i = 0; i < count; ++i) {
    const Device& device = group_[i];
    std::vector<std::size_t> clique{i};
    for (const auto& each : group_.cliques()) {
      if (together && std::ranges::find(each, i) != each.end()) clique = each;
    }
    std::vector<double> weights;
    for (const std::size_t m : clique)
      weights.push_back(links.measured ? links.measured->members[m].link : 1);
    const BatchSplit split(weights);
    const auto number = static_cast<std::size_t>(std::ranges::find(clique, i) - clique.begin());
    auto sampler = std::make_shared<PartSampler>(first_sampler_, split, number);

    LoaderOptions own = options_;
    own.batch_sampler = sampler;
    own.batch_size = split.largest(plan_.batch, number);
    own.shuffle = own.drop_last = false;
    own.seed = 0;
    own.shard = {};
    own.prefetch_depth = std::min(kPartsAhead, options_.prefetch_depth);
    own.ring_grows = true;
    if (!links.profiles.empty()) own.profile = links.profiles[i];
    const std::size_t budget =
        options_.device_budget_bytes != 0 ? options_.device_budget_bytes : device.memory().free / 2;
    // Parts take little if nothing is resident. Otherwise the ring has room for as many slots again as it
    // begins with.
    const std::size_t ring_budget =
        options_.residency.kind == Residency::Kind::none
            ? budget / 2
            : std::min(budget / 2, 2 * (options_.prefetch_depth + 1) * plan_.slot_bytes);
    own.device_budget_bytes = budget - ring_budget;
    const auto memory = std::make_shared<Pool>(
        make_device_pool(device, {.budget_bytes = std::max<std::size_t>(ring_budget, 1),
                                  .segment_bytes = std::max(plan_.slot_bytes, std::size_t{1} << 20)}));
    members_.push_back(
        {.split = split,
         .number = number,
         .clique = std::move(clique),
         .sampler = std::move(sampler),
         .loader = Loader(dataset_, device, std::move(own)),
         .ring = std::make_shared<DeviceRing>(device, memory, plan_, options_, sampler_.state()),
         .push = device.create_stream(StreamPriority::high),
         .arrive = device.create_stream(StreamPriority::high),
         .pushed = device.create_event()});
    const std::optional<LinkProfile>& profile = members_.back().loader.options().profile;
    link_ceiling_ += profile && profile->measured ? profile->ceiling(CopyDirection::h2d) : 0;
  }
  if (links.measured) link_ceiling_ = links.measured->links_at_once;
}

void GroupLoaderState::begin_production() {
  stopping_ = false;
  thread_ = start_thread("penstock-group", [this] { run(); });
}

void GroupLoaderState::end_production() {
  stopping_ = true;
  for (const Member& member : members_) member.ring->stop();
  if (thread_.joinable()) thread_.join();
}

void GroupLoaderState::run() {
  try {
    for (;;) {
      const SampleRun run = sampler_.next_run();
      if (run.count > 0) {
        if (!make_batch(run)) return;
        continue;
      }
      PublishedItem end;
      end.times.epoch = sampler_.epoch();
      sampler_.start_epoch(sampler_.epoch() + 1);
      index_ = 0;
      end.state = sampler_.state();
      publish(end);
    }
  } catch (const Stopped&) {
  } catch (...) {
    PublishedItem failed;
    failed.error = std::current_exception();
    failed.times.epoch = sampler_.epoch();
    failed.state = sampler_.state();
    publish(failed);
  }
}

void GroupLoaderState::publish(const PublishedItem& item) {
  for (const Member& member : members_) {
    PublishedItem copy = item;
    copy.generation = generation_;
    member.ring->publish(std::move(copy));
  }
}

/// False if it is to stop.
bool GroupLoaderState::make_batch(const SampleRun& run) {
  const auto end_if_stopping = [this] {
    if (stopping_) throw Stopped{};
  };
  Parts parts(members_.size());
  for (std::size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    if (member.split.part(run.count, member.number).count == 0) continue;
    parts[i] = member.loader.next(member.push, end_if_stopping).value();
  }
  PublishedItem item;
  item.state = sampler_.state();
  item.generation = generation_;
  item.times.epoch = sampler_.epoch();
  item.times.batch = index_++;
  item.times.samples = run.count;
  // A member's slot is taken when the ones before it are published, as next() takes them. So if the slots of
  // one are all held, next() waits at that one's ring, which knows who holds them.
  for (std::size_t i = 0; i < members_.size(); ++i) {
    DeviceRing& ring = *members_[i].ring;
    const double asked = account_->now();
    DeviceSlot* const slot = ring.acquire();
    if (slot == nullptr) return false;
    slot->run = run;
    slot->epoch = item.times.epoch;
    slot->index = item.times.batch;
    PublishedItem own = item;
    own.slot = slot;
    own.slot_wait_seconds = account_->now() - asked;
    if (i == 0) own.timed = account_->open();
    try {
      fill(i, *slot, parts, own);
    } catch (...) {
      account_->discard(own.timed);
      ring.put_back(*slot, !drain());
      throw;
    }
    ring.publish(std::move(own));
  }
  return true;
}

/// Enqueues the copies of all parts into a member's slot.
void GroupLoaderState::fill(std::size_t member, DeviceSlot& slot, const Parts& parts, PublishedItem& item) {
  const Member& receiver = members_[member];
  for (std::size_t f = 0; f < slot.fields.size(); ++f) {
    slot.fields[f].shape[0] = static_cast<std::size_t>(slot.run.count);
    slot.fields[f].bytes = slot.fields[f].shape[0] * plan_.fields[f].delivered_bytes;
  }
  if (item.timed != nullptr) item.timed->begin.record(receiver.arrive);
  for (const std::size_t sender : receiver.clique) {
    Member& from = members_[sender];
    if (!parts[sender]) continue;
    const std::uint64_t begin = from.split.part(slot.run.count, from.number).begin;
    receiver.ring->wait_for_users(slot, from.push);
    for (std::size_t f = 0; f < slot.fields.size(); ++f) {
      const DeviceField& part = parts[sender]->field(f);
      if (part.bytes == 0) continue;
      std::byte* const there = slot.fields[f].data + begin * plan_.fields[f].delivered_bytes;
      from.push.copy(there, part.data, part.bytes, CopyDirection::d2d);
    }
    from.pushed.record(from.push);
    receiver.arrive.wait(from.pushed);
  }
  if (item.timed != nullptr) item.timed->end.record(receiver.arrive);
  slot.ready.record(receiver.arrive);
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
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (taken_[i] && taken_[i]->batch) taken_[i]->batch->use_on(streams[i]);
  }
  for (std::size_t i = 0; i < members_.size();) {
    std::optional<Taken>& taken = taken_[i];
    if (!taken) {
      PublishedItem item;
      try {
        item = members_[i].ring->take(streams[i], i == 0 ? while_waiting : &while_some_are_taken);
      } catch (const GoneElsewhere&) {
        i = 0;
        continue;
      }
      taken.emplace();
      if (item.slot != nullptr) taken->batch.emplace(DeviceBatch(members_[i].ring, item.slot));
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
  if (streams.size() != members_.size()) {
    throw InvalidArgument(fmt::format("{} streams were given for a group of {}; give one of each device",
                                      streams.size(), members_.size()));
  }
  const std::lock_guard lock(next_mutex_);
  Account::Request request(*account_, &streams[0]);
  take_all(streams, while_waiting);
  const PublishedItem item = taken_[0]->item;
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
  std::size_t bytes = 0;
  for (std::size_t f = 0; f < batches.front().field_count(); ++f) bytes += batches.front().field(f).bytes;
  request.answer({.timed = item.timed,
                  .times = item.times,
                  .delivered_bytes = bytes,
                  .ready = item.ready,
                  .slot_wait_seconds = item.slot_wait_seconds});
  return batches;
}

template <typename Change>
void GroupLoaderState::go_to(Change&& change) {
  refuse_fork();
  const std::lock_guard control(control_mutex_);
  if (closed_) throw Closed("The loader was closed; make another one.");
  Sampler changed = first_sampler_;
  change(changed);
  end_production();
  sampler_ = changed;
  index_ = first_sampler_.batches_per_epoch() - sampler_.batches_left();
  {
    const std::lock_guard guard(position_mutex_);
    position_ = sampler_.state();
    ++generation_;
  }
  for (const Member& member : members_) {
    for (const PublishedItem& dropped : member.ring->reset(sampler_.state())) {
      account_->discard(dropped.timed);
    }
  }
  try {
    for (Member& member : members_) {
      member.sampler->go_to(sampler_);
      member.loader.start_epoch(member.loader.state().epoch + 1);  // not the one that it is in
    }
    begin_production();
  } catch (...) {
    publish({.error = std::current_exception(), .state = sampler_.state()});
    throw;
  }
}

void GroupLoaderState::start_epoch(std::uint64_t epoch) {
  refuse_fork();
  const auto is_there = [&](const Member& member) {
    return !member.ring->is_closed() && member.ring->is_at_start_of(epoch);
  };
  if (std::ranges::all_of(members_, is_there)) return;
  go_to([&](Sampler& sampler) { sampler.start_epoch(epoch); });
}

void GroupLoaderState::restore(const SamplerState& state) {
  go_to([&](Sampler& sampler) { sampler.restore(state); });
}

SamplerState GroupLoaderState::state() const {
  refuse_fork();
  const std::lock_guard guard(position_mutex_);
  return position_;
}

std::uint64_t GroupLoaderState::batches_left() const {
  Sampler sampler = first_sampler_;
  sampler.restore(state());
  return sampler.batches_left();
}

void GroupLoaderState::close() {
  if (is_forked()) return;
  const std::lock_guard control(control_mutex_);
  if (closed_) return;
  closed_ = true;
  end_production();
  for (const Member& member : members_) member.ring->close();
  for (Member& member : members_) member.loader.close();
  for (const Member& member : members_) member.arrive.synchronize();
}

FeedStatistics GroupLoaderState::stats() const {
  refuse_fork();
  FeedStatistics statistics = account_->total();
  for (const Member& member : members_) {
    const FeedStatistics own = member.loader.stats();
    const RingSize size = member.ring->size();
    statistics.link_bytes += own.link_bytes;
    statistics.resident_bytes += own.resident_bytes;
    statistics.slots = std::max(statistics.slots, size.slots);
    statistics.ring_bytes += size.bytes + own.ring_bytes;
  }
  // The account does not know that the members' parts came over links.
  if (statistics.link_bytes > 0) {
    statistics.transfer_seconds += std::exchange(statistics.kernel_seconds, 0);
    statistics.exposed_transfer_seconds += std::exchange(statistics.exposed_kernel_seconds, 0);
  }
  statistics.link_ceiling = link_ceiling_;
  statistics.prefetch_depth = options_.prefetch_depth;
  statistics.sample_bytes = dataset_.sample_bytes();
  return statistics;
}

void GroupLoaderState::refuse_fork() const {
  if (is_forked()) {
    throw DeviceError(
        "PENSTOCK_FORKED", "GroupLoader", 0,
        "this process was forked from the one that made the loader, and cannot use its devices: make the "
        "loader in this process, or start processes with spawn");
  }
}

}  // namespace penstock
