#include "loader/loader_state.hpp"

#include "loader/gaps.hpp"
#include "loader/loader_handle.hpp"
#include "loader/plan_feed.hpp"
#include "loader/plan_rows.hpp"
#include "loader/whole_batches.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/data/narrow.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace penstock {

namespace {

constexpr std::size_t kMostDepth = 64;
constexpr std::size_t kCheapToNarrow = std::size_t{512} << 20;

LoaderOptions checked(LoaderOptions options) {
  if (options.prefetch_depth == 0 || options.prefetch_depth > kMostDepth) {
    throw InvalidArgument(fmt::format("A prefetch depth of {} was asked for; use 1 to {}.",
                                      options.prefetch_depth, kMostDepth));
  }
  if (options.threads > LoaderOptions::kMostThreads) {
    throw InvalidArgument(fmt::format("{} threads were asked for; use 1 to {}, or 0 for as many as help.",
                                      options.threads, LoaderOptions::kMostThreads));
  }
  check_sampler(options);
  if (options.data_may_change && options.residency.kind != Residency::Kind::none) {
    throw InvalidArgument("Data that may change cannot be resident on the device: leave out the residency.");
  }
  return options;
}

/// `dataset` with integer fields in their narrowest types, if finding those is cheap.
Dataset narrow_small_fields(const Dataset& dataset, HostWorkers& workers) {
  std::vector<std::shared_ptr<const FieldReader>> readers(dataset.field_count());
  for (std::size_t f = 0; f < readers.size(); ++f) {
    readers[f] = dataset.reader(f);
    const bool in_memory = !dataset.memory(f).empty() || dataset.is_strided(f);
    const std::size_t bytes = static_cast<std::size_t>(dataset.sample_count()) * dataset.sample_bytes(f);
    if (!in_memory || bytes > kCheapToNarrow) continue;
    const Dataset alone({readers[f]});
    readers[f] = narrow_integers(alone, {.copy_limit = kCheapToNarrow, .workers = &workers}).reader(0);
  }
  return Dataset(std::move(readers));
}

Dataset first_fields(const Dataset& dataset, std::size_t count) {
  std::vector<std::shared_ptr<const FieldReader>> readers;
  for (std::size_t f = 0; f < count; ++f) readers.push_back(dataset.reader(f));
  return Dataset(std::move(readers));
}

}  // namespace

LoaderState::LoaderState(Dataset dataset, Device device, LoaderOptions options, RankDuties duties)
    : options_(checked(std::move(options))),
      duties_(std::move(duties)),
      device_(std::move(device)),
      profile_(options_.profile ? *options_.profile : LinkProfile::defaults(device_.info())),
      workers_(options_.workers ? options_.workers : device_.host_workers(options_.threads)),
      dataset_(options_.narrow && !options_.data_may_change ? narrow_small_fields(dataset, *workers_)
                                                            : std::move(dataset)),
      first_sampler_(dataset_.sample_count(), sampler_options_of(options_)),
      sampler_(first_sampler_),
      drawn_(draws_of_whole(options_, dataset_.sample_count())) {
  set_up();
  thread_.begin();
}

void LoaderState::set_up() {
  const auto batch = static_cast<std::size_t>(largest_batch(options_, sampler_));
  FeedFacts facts = collect_facts(dataset_, device_, batch);
  make_plan(facts);
  reserve_memory(facts);
  delivered_sample_bytes_ = plan_.delivered_sample_bytes();
  is_resident_ = plan_.resident_bytes == 0;

  resident_ = std::make_unique<Resident>(device_, *memory_, plan_);
  ring_ = std::make_shared<DeviceRing>(device_, memory_, plan_, options_, sampler_.state());
  account_ = std::make_unique<Account>(
      device_, AccountOptions{.timeline_batches = options_.timeline_batches,
                              .link_ceiling = profile_.measured ? profile_.ceiling(CopyDirection::h2d) : 0});
  FeedContext context{
      .dataset = *travelling_,
      .device = device_,
      .plan = plan_,
      .addresses = std::vector<FieldAddresses>(plan_.fields.size()),
      .split = resident_->split(),
      .workers = *workers_,
      .threads = options_.threads != 0 ? options_.threads : device_.info().tuning.gather_threads,
      .stores = profile_.streaming_stores ? StoreKind::streaming : StoreKind::cached,
      .gather_blocks = options_.gather_blocks,
      .link_rate = profile_.ceiling(CopyDirection::h2d)};
  for (std::size_t f = 0; f < plan_.fields.size(); ++f) context.addresses[f].streamed = sources_.samples[f];
  resident_->set_addresses(context.addresses);
  producer_ = std::make_unique<Producer>(std::move(context), *ring_, *memory_, options_.prefetch_depth);
  // From here on nothing is allocated, except for slots that the ring adds while batches are kept.
}

/// Locks the memory that the device reads under the plan. Plans again while a lock or copy is refused.
void LoaderState::make_plan(FeedFacts& facts) {
  do {
    plan_without_gaps(facts);
    travelling_ = with_rows(dataset_, plan_);
    sources_ = lock_sources(plan_, *travelling_, device_, *workers_, facts);
  } while (sources_.refused);
  if (sources_.rows == nullptr) return;
  // The arrays that the rows were made of are not needed any more.
  travelling_ = with_rows(dataset_, plan_, {sources_.rows->data(), sources_.rows->size()}, sources_.rows);
  dataset_ = first_fields(*travelling_, dataset_.field_count());
}

/// Plans a feed in which no field has gaps between its samples but for columns, whose rows are made of what
/// lies there. If the data may change, the host gathers it where it lies.
void LoaderState::plan_without_gaps(FeedFacts& facts) {
  if (!options_.data_may_change) copy_apart_from(choose_columns(facts, options_), facts);
  try {
    plan_ = plan_feed(facts, options_, profile_);
  } catch (const OutOfMemory&) {
    if (facts.rows_refused || options_.data_may_change) throw;
    facts.rows_refused = true;
    copy_apart_from({}, facts);
    plan_ = plan_feed(facts, options_, profile_);
  }
}

/// Copies the fields with gaps that are none of `columns`.
void LoaderState::copy_apart_from(const std::vector<std::size_t>& columns, FeedFacts& facts) {
  const std::vector<std::size_t> copied = fields_with_gaps(dataset_, columns);
  if (copied.empty()) return;
  dataset_ = with_copies(dataset_, copied, *workers_);
  const FeedFacts now = collect_facts(dataset_, device_, facts.batch);
  for (const std::size_t f : copied) facts.fields[f] = now.fields[f];
}

/// Reserves in one piece, so that a tight budget is not lost between pieces. If the device has less than the
/// budget, fewer slots without staging on the device may be enough.
void LoaderState::reserve_memory(FeedFacts& facts) {
  memory_ = std::make_shared<Pool>(
      make_device_pool(device_, {.budget_bytes = plan_.budget_bytes,
                                 .segment_bytes = std::max(plan_.slot_bytes, std::size_t{1} << 20)}));
  try {
    memory_->reserve(plan_.reserved_bytes);
  } catch (const OutOfMemory&) {
    facts.device.memory_refused = true;
    plan_ = plan_feed(facts, options_, profile_);
  }
}

/// Those of the loader's thread.
void LoaderState::end_waits() {
  ring_->stop();
  if (drawn_) drawn_->stop();
}

void LoaderState::run() {
  PublishedItem failed;
  failed.state = sampler_.state();
  try {
    if (!is_resident_) {
      const double begin = account_->now();
      is_resident_ =
          resident_->fill(*travelling_, plan_, profile_, workers_, [this] { return thread_.is_ending(); });
      if (!is_resident_) return;
      account_->count_resident(plan_.resident_bytes, account_->now() - begin);
    }
    std::uint64_t index = sampler_.batches_per_epoch() - sampler_.batches_left();
    for (;;) {
      if (drawn_ && !drawn_->wait()) return;
      const double asked = account_->now();
      DeviceSlot* const slot = ring_->acquire();
      if (slot == nullptr) return;
      produce(*slot, account_->now() - asked, index);
    }
  } catch (...) {
    failed.error = std::current_exception();
    failed.times.epoch = sampler_.epoch();
    publish_failure(std::move(failed));
  }
}

void LoaderState::produce(DeviceSlot& slot, double slot_wait_seconds, std::uint64_t& index) {
  PublishedItem item;
  item.times.epoch = sampler_.epoch();
  take_samples(slot, item);
  if (!agree(slot)) return;
  if (slot.run.count == 0) {
    ring_->put_back(slot, false);
    sampler_.start_epoch(sampler_.epoch() + 1);
    index = 0;
    item.state = sampler_.state();
    return ring_->publish(std::move(item));
  }
  slot.epoch = sampler_.epoch();
  slot.index = index++;
  item.state = sampler_.state();
  if (drawn_) item.state.consumed = index;
  item.slot_wait_seconds = slot_wait_seconds;
  item.times.batch = slot.index;
  item.times.samples = slot.run.count;
  item.timed = account_->open();
  bool may_be_written = false;
  try {
    slot.size_fields(plan_);
    producer_->fill(slot, item, *account_, may_be_written);
  } catch (...) {
    account_->discard(item.timed);
    ring_->put_back(slot, may_be_written);
    throw;
  }
  item.slot = &slot;
  ring_->publish(std::move(item));
}

/// Chooses the samples of the slot's batch; none at the end of the epoch.
void LoaderState::take_samples(DeviceSlot& slot, PublishedItem& item) {
  if (!drawn_) {
    slot.run = sampler_.next_run();
    return;
  }
  item.generation = drawn_->take(slot.drawn);
  slot.run = {.order = std::nullopt, .count = slot.drawn.size()};
}

/// False if production is to stop; the slot is free then.
bool LoaderState::agree(DeviceSlot& slot) {
  if (!duties_.agree) return true;
  bool agreed = false;
  try {
    agreed = duties_.agree(slot, [this] { return thread_.is_ending(); });
  } catch (...) {
    ring_->put_back(slot, false);
    throw;
  }
  if (!agreed) ring_->put_back(slot, false);
  return agreed;
}

void LoaderState::publish_failure(PublishedItem failed) {
  if (duties_.fail) duties_.fail(failed.error);
  ring_->publish(std::move(failed));
}

void LoaderState::refuse_fork() const {
  if (is_forked()) refuse_forked_loader("Loader", "device");
}

std::optional<DeviceBatch> LoaderState::next(const Stream& stream, const FunctionRef<void()>* while_waiting) {
  refuse_fork();
  Account::Request request(*account_, &stream);
  std::optional<DrawnBatches::Asking> asking;
  if (drawn_ && !ring_->is_closed()) asking.emplace(*drawn_);
  const PublishedItem item = ring_->take(stream, while_waiting);
  std::optional<DeviceBatch> batch;
  if (item.slot != nullptr) batch.emplace(DeviceBatch(ring_, item.slot));
  if (asking) asking->has(item.generation, !batch);
  if (!batch) {
    request.end(item.times.epoch);
    return std::nullopt;
  }
  request.answer(delivery_of(item, delivered_sample_bytes_));
  return batch;
}

template <typename Change>
void LoaderState::go_to(Change&& change) {
  refuse_fork();
  const std::lock_guard control(control_mutex_);
  if (closed_) throw Closed("The loader was closed; make another one.");
  Sampler changed = first_sampler_;
  change(changed);
  thread_.end();
  sampler_ = changed;
  drop_batches(*ring_, *account_, sampler_.state());
  if (drawn_) drawn_->restart(sampler_.epoch());
  try {
    if (duties_.meet) duties_.meet(sampler_.state());
    thread_.begin();
  } catch (...) {
    publish_failure({.error = std::current_exception(), .state = sampler_.state()});
    throw;
  }
  if (drawn_) drawn_->draw();  // for those who are in next() now
}

void LoaderState::start_epoch(std::uint64_t epoch) {
  refuse_fork();
  if (ring_->is_at_start_of(epoch)) return;
  go_to([&](Sampler& sampler) { sampler.start_epoch(epoch); });
}

void LoaderState::synchronize() {
  refuse_fork();
  producer_->synchronize();
}

void LoaderState::restore(const SamplerState& state) {
  if (drawn_) refuse_place();
  go_to([&](Sampler& sampler) { sampler.restore(state); });
}

void LoaderState::leave_epoch(const std::exception_ptr& error) {
  const std::lock_guard control(control_mutex_);
  if (closed_) return;
  thread_.end();
  drop_batches(*ring_, *account_, ring_->position());
  ring_->publish({.error = error, .state = ring_->position()});
  producer_->synchronize();
}

SamplerState LoaderState::state() const {
  refuse_fork();
  return ring_->position();
}

std::uint64_t LoaderState::batches_left() const {
  if (drawn_) return 0;
  Sampler sampler = first_sampler_;
  sampler.restore(state());
  return sampler.batches_left();
}

void LoaderState::close() {
  if (is_forked()) return;
  const std::lock_guard control(control_mutex_);
  if (closed_) return;
  closed_ = true;
  thread_.end();
  ring_->close();
  producer_->synchronize();
}

FeedStatistics LoaderState::complete(FeedStatistics statistics) const {
  const RingSize size = ring_->size();
  statistics.prefetch_depth = options_.prefetch_depth;
  statistics.slots = size.slots;
  statistics.ring_bytes = size.bytes;
  statistics.sample_bytes = dataset_.sample_bytes();
  return statistics;
}

FeedStatistics LoaderState::stats() const {
  refuse_fork();
  return complete(account_->total());
}

std::optional<FeedStatistics> LoaderState::epoch_stats(std::uint64_t epoch) const {
  refuse_fork();
  const auto statistics = account_->epoch(epoch);
  return statistics ? std::optional(complete(*statistics)) : std::nullopt;
}

std::vector<BatchTimes> LoaderState::timeline() const {
  refuse_fork();
  return account_->timeline();
}

}  // namespace penstock
