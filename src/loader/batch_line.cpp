#include "loader/batch_line.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

namespace penstock {

namespace {

constexpr std::size_t kMostDepth = 64;

/// Ends the wait for a receiver's batch: the line went elsewhere meanwhile.
struct GoneElsewhere {};

LoaderOptions checked(LoaderOptions options) {
  if (options.prefetch_depth == 0 || options.prefetch_depth > kMostDepth) {
    throw InvalidArgument(fmt::format("A prefetch depth of {} was asked for; use 1 to {}.",
                                      options.prefetch_depth, kMostDepth));
  }
  if (options.threads > LoaderOptions::kMostThreads) {
    throw InvalidArgument(fmt::format("{} threads were asked for; use 1 to {}, or 0 for as many as help.",
                                      options.threads, LoaderOptions::kMostThreads));
  }
  if (options.batch_sampler &&
      (options.shuffle || options.seed != 0 || options.drop_last || options.shard.world_size != 1)) {
    throw InvalidArgument(
        "A batch sampler chooses the samples of each batch: leave out shuffle, seed, drop_last and the "
        "shard.");
  }
  if (options.data_may_change && options.residency.kind != Residency::Kind::none) {
    throw InvalidArgument("Data that may change cannot be resident on the device: leave out the residency.");
  }
  return options;
}

/// How a batch is delivered, whose samples have so many bytes each.
Delivery delivery_of(const PublishedItem& batch, std::size_t sample_bytes) noexcept {
  return {.timed = batch.timed,
          .times = batch.times,
          .delivered_bytes = static_cast<std::size_t>(batch.times.samples) * sample_bytes,
          .ready = batch.ready,
          .slot_wait_seconds = batch.slot_wait_seconds};
}

/// Null if the loader chooses the samples of an epoch.
std::function<std::uint64_t(std::uint64_t)> samples_in_epoch(const Dataset& dataset) {
  std::shared_ptr<const FieldReader> reader = dataset.reader(0);
  if (!reader->samples_in_epoch(0)) return nullptr;
  return [reader = std::move(reader)](std::uint64_t epoch) { return *reader->samples_in_epoch(epoch); };
}

}  // namespace

BatchOrder::BatchOrder(const LoaderOptions& options, const Dataset& dataset)
    : first(dataset.sample_count(),
            {.shuffle = options.shuffle,
             .seed = options.seed,
             .batch_size = options.batch_size,
             .drop_last = options.drop_last,
             .shard = options.shard,
             .samples_in_epoch = options.batch_sampler ? nullptr : samples_in_epoch(dataset)}),
      drawn(options.batch_sampler
                ? std::make_unique<DrawnBatches>(options.batch_sampler, dataset.sample_count(),
                                                 options.batch_size, options.prefetch_depth + 1)
                : nullptr) {}

std::uint64_t BatchOrder::largest_batch() const noexcept {
  const std::uint64_t batch = first.options().batch_size;
  return drawn ? batch : std::min(batch, first.samples_per_epoch());
}

BatchLine::BatchLine(
    Destination destination, LoaderOptions options, const Dataset& dataset,
    FunctionRef<std::unique_ptr<BatchSource>(const Destination&, const LoaderOptions&, BatchOrder&)>
        make_source)
    : destination_(std::move(destination)),
      options_(checked(std::move(options))),
      order_(options_, dataset),
      source_(make_source(destination_, options_, order_)),
      rings_(source_->rings()),
      delivered_sample_bytes_(source_->layout().delivered_sample_bytes()),
      account_(std::make_unique<Account>(rings_[0]->device(),
                                         AccountOptions{.timeline_batches = options_.timeline_batches,
                                                        .link_ceiling = source_->link_ceiling()})),
      sampler_(order_.first),
      taken_(rings_.size()),
      position_(sampler_.state()),
      thread_(source_->thread_name(), [this] { run(); }, [this] { end_waits(); }) {
  thread_.begin();
}

/// Those of the line's thread.
void BatchLine::end_waits() {
  for (const auto& ring : rings_) ring->stop();
  if (order_.drawn) order_.drawn->stop();
}

void BatchLine::run() {
  const auto stopped = [this] { return thread_.is_ending(); };
  try {
    if (!source_->prepare(*account_, stopped)) return;
    while (make_next(stopped)) {
    }
  } catch (const ProductionStopped&) {
  } catch (const BatchSampler::Interrupted&) {  // the drawing was stopped
  } catch (...) {
    publish_failure(std::current_exception());
  }
}

/// Makes a batch, or an epoch's end, from which it goes on to the next one. False if it is to stop.
bool BatchLine::make_next(FunctionRef<bool()> stopped) {
  const std::optional<SampleRun> run = choose();
  if (!run) return false;
  if (run->count == 0 && !order_.drawn) {
    publish_end();
    return true;
  }
  const auto known_later = [this](std::size_t turns) { return later(turns); };
  const Turn turn{turn_, *run, chosen_, *account_, stopped, known_later};
  if (!source_->come_to(turn)) return false;
  if (run->count == 0) {
    publish_end();
  } else if (!make_batch(turn)) {
    return false;
  }
  source_->go_on(turn);
  ++turn_;
  return true;
}

/// The samples of the next batch; none at an epoch's end. Nullopt if it is to stop.
std::optional<SampleRun> BatchLine::choose() {
  if (!order_.drawn) return sampler_.next_run();
  std::uint64_t epoch = 0;
  if (order_.shared) {
    const DrawnBatch& batch = order_.shared->of(turn_);
    chosen_ = batch.indices;
    epoch = batch.reading_epoch;
  } else {
    if (!order_.drawn->wait()) return std::nullopt;
    epoch = order_.drawn->take(chosen_);
  }
  return SampleRun{.order = std::nullopt, .count = chosen_.size(), .epoch = epoch};
}

/// See Turn::later.
std::optional<BatchSamples> BatchLine::later(std::size_t turns) const {
  BatchSamples samples;
  if (order_.drawn) {
    if (!order_.drawn->peek(turns - 1, samples.drawn)) return std::nullopt;
    samples.run.count = samples.drawn.size();
    return samples;
  }
  Sampler sampler = sampler_;
  for (std::size_t i = 0; i < turns; ++i) samples.run = sampler.next_run();
  return samples.run.count == 0 ? std::nullopt : std::optional(std::move(samples));
}

/// False if it is to stop.
bool BatchLine::make_batch(const Turn& turn) {
  PublishedItem batch = next_item();
  batch.times.batch = index_++;
  batch.times.samples = turn.run.count;
  if (order_.drawn) batch.state.consumed = index_;
  // A receiver's slot is taken when the ones before it are published, as next() takes them. So if the slots
  // of one are all held, next() waits at that one's ring, which knows who holds them.
  for (std::size_t receiver = 0; receiver < rings_.size(); ++receiver) {
    PublishedItem item = batch;
    const double asked = account_->now();
    DeviceSlot* const slot = rings_[receiver]->acquire();
    if (slot == nullptr) return false;
    item.slot = slot;
    item.slot_wait_seconds = account_->now() - asked;
    slot->run = turn.run;
    if (receiver + 1 == rings_.size()) {
      slot->drawn.swap(chosen_);
    } else {
      slot->drawn = chosen_;
    }
    slot->epoch = item.times.epoch;
    slot->index = item.times.batch;
    if (receiver == 0) item.timed = account_->open();
    if (!fill(turn, receiver, *slot, item)) return false;
    rings_[receiver]->publish(std::move(item));
  }
  return true;
}

/// Gives the slot back if it is not filled. False if it is to stop.
bool BatchLine::fill(const Turn& turn, std::size_t receiver, DeviceSlot& slot, PublishedItem& item) {
  const auto give_up = [&] {
    account_->discard(item.timed);
    rings_[receiver]->put_back(slot, source_->may_still_write());
  };
  bool filled = false;
  try {
    slot.size_fields(source_->layout());
    filled = source_->fill(turn, receiver, slot, item);
  } catch (...) {
    give_up();
    throw;
  }
  if (!filled) give_up();
  return filled;
}

PublishedItem BatchLine::next_item() const {
  PublishedItem item;
  item.state = sampler_.state();
  item.times.epoch = sampler_.epoch();
  item.generation = generation_;
  return item;
}

void BatchLine::publish_end() {
  PublishedItem end = next_item();
  sampler_.start_epoch(sampler_.epoch() + 1);
  index_ = 0;
  end.state = sampler_.state();
  publish_to_all(end);
}

void BatchLine::publish_failure(const std::exception_ptr& error) {
  source_->fail(error);
  PublishedItem failed = next_item();
  failed.error = error;
  publish_to_all(failed);
}

void BatchLine::publish_to_all(const PublishedItem& item) {
  for (const auto& ring : rings_) ring->publish(item);
}

/// A consumer that asks for a batch, from before it waits until it has one.
class BatchLine::Request {
 public:
  Request(BatchLine& line, const Stream& stream) : line_(line), request_(*line.account_, &stream) {
    if (!line.order_.drawn || line.rings_[0]->is_closed()) return;
    line.between_epochs_ = false;
    asking_.emplace(*line.order_.drawn);
  }
  /// The consumer has `item`. Throws BatchSampler::Interrupted.
  void has(const PublishedItem& item) {
    const bool is_end = item.slot == nullptr;
    if (asking_) {
      line_.between_epochs_ = is_end;
      asking_->has(item.generation, is_end);
    }
    if (!is_end || line_.order_.drawn) ++line_.handed_out_;
  }
  void answer(const PublishedItem& item) {
    if (item.slot == nullptr) return request_.end(item.times.epoch);
    request_.answer(delivery_of(item, line_.delivered_sample_bytes_));
  }

 private:
  BatchLine& line_;
  Account::Request request_;
  std::optional<DrawnBatches::Asking> asking_;
};

std::optional<DeviceBatch> BatchLine::next(const Stream& stream, const FunctionRef<void()>* while_waiting) {
  refuse_fork();
  refuse_streams(1);
  const auto since = std::chrono::steady_clock::now();
  const auto look = [&] {
    if (while_waiting != nullptr) (*while_waiting)();
    source_->refuse_late(since);
  };
  const FunctionRef<void()> looking(look);
  while (true) {
    Request request(*this, stream);
    const PublishedItem item = rings_[0]->take(stream, source_->awaits_others() ? &looking : while_waiting);
    std::optional<DeviceBatch> batch;
    if (item.slot != nullptr) batch.emplace(DeviceBatch(rings_[0], item.slot));
    request.has(item);
    if (!is_torn(item)) {
      request.answer(item);
      return batch;
    }
    account_->discard(item.timed);
    if (while_waiting != nullptr) (*while_waiting)();
  }
}

bool BatchLine::is_torn(const PublishedItem& item) const {
  if (item.slot == nullptr || !order_.drawn || !options_.batch_sampler->may_tear()) return false;
  item.slot->ready->synchronize();
  return !options_.batch_sampler->is_whole(item.slot->run.epoch);
}

std::optional<std::vector<DeviceBatch>> BatchLine::next(std::span<const Stream> streams,
                                                        const FunctionRef<void()>* while_waiting) {
  refuse_fork();
  refuse_streams(streams.size());
  std::vector<DeviceBatch> batches;
  batches.reserve(streams.size());  // nothing may fail between the receivers
  if (streams.size() == 1) {
    std::optional<DeviceBatch> batch = next(streams[0], while_waiting);
    if (!batch) return std::nullopt;
    batches.push_back(*std::move(batch));
    return batches;
  }
  const std::lock_guard lock(next_mutex_);
  Request request(*this, streams[0]);
  take_all(streams, while_waiting);
  const PublishedItem item = taken_[0]->item;
  request.has(item);
  {
    const std::lock_guard guard(position_mutex_);
    if (item.generation == generation_) position_ = item.state;
  }
  for (std::optional<Taken>& taken : taken_) {
    if (taken->batch) batches.push_back(*std::move(taken->batch));
    taken.reset();
  }
  request.answer(item);
  return item.slot == nullptr ? std::nullopt : std::optional(std::move(batches));
}

/// Takes the same batch from every ring. If a ring has failed, the batches of the others stay for the next
/// call. If the line went to another place meanwhile, some are of the place before, and are dropped.
void BatchLine::take_all(std::span<const Stream> streams, const FunctionRef<void()>* while_waiting) {
  const auto ask = [&] {
    if (drop_outdated()) throw GoneElsewhere{};
    if (while_waiting != nullptr) (*while_waiting)();
  };
  const FunctionRef<void()> while_some_are_taken(ask);
  static_cast<void>(drop_outdated());
  for (std::size_t i = 0; i < rings_.size(); ++i) {
    if (taken_[i] && taken_[i]->batch) taken_[i]->batch->use_on(streams[i]);
  }
  for (std::size_t i = 0; i < rings_.size();) {
    std::optional<Taken>& taken = taken_[i];
    if (!taken) {
      PublishedItem item;
      try {
        item = rings_[i]->take(streams[i], i == 0 ? while_waiting : &while_some_are_taken);
      } catch (const GoneElsewhere&) {
        i = 0;
        continue;
      }
      taken.emplace();
      if (item.slot != nullptr) taken->batch.emplace(DeviceBatch(rings_[i], item.slot));
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

void BatchLine::drop(std::optional<Taken>& taken) noexcept {
  if (taken) account_->discard(taken->item.timed);
  taken.reset();
}

/// True if the line went elsewhere after the batches that next() has were made. Drops them: their slots may
/// be those that the batch at the new place needs.
bool BatchLine::drop_outdated() noexcept {
  {
    const std::lock_guard guard(position_mutex_);
    if (!taken_[0] || taken_[0]->item.generation == generation_) return false;
  }
  for (std::optional<Taken>& taken : taken_) drop(taken);
  return true;
}

template <typename Change>
void BatchLine::go_to(Change&& change) {
  refuse_fork();
  const std::lock_guard control(control_mutex_);
  if (closed_) throw Closed("The loader was closed; make another one.");
  Sampler changed = order_.first;
  change(changed);
  thread_.end();
  sampler_ = changed;
  index_ = sampler_.batches_per_epoch() - sampler_.batches_left();
  {
    const std::lock_guard guard(position_mutex_);
    position_ = sampler_.state();
    ++generation_;
  }
  if (order_.drawn) order_.drawn->restart(sampler_.epoch(), generation_);
  if (order_.shared) order_.shared->restart();
  drop_batches(sampler_.state());
  try {
    source_->go_to(sampler_);
    turn_ = handed_out_ = 0;
    thread_.begin();
  } catch (...) {
    publish_failure(std::current_exception());
    throw;
  }
  if (order_.drawn) order_.drawn->draw();  // for those who are in next() now
}

/// Drops what is published, and has the rings go on at `position`. The thread is not at work.
void BatchLine::drop_batches(const SamplerState& position) {
  for (const auto& ring : rings_) {
    for (const PublishedItem& dropped : ring->reset(position)) account_->discard(dropped.timed);
  }
}

void BatchLine::start_epoch(std::uint64_t epoch) {
  refuse_fork();
  if (std::ranges::all_of(rings_, [&](const auto& ring) { return ring->is_at_start_of(epoch); })) return;
  go_to([&](Sampler& sampler) { sampler.start_epoch(epoch); });
}

void BatchLine::restore(const SamplerState& state) {
  refuse_fork();
  if (order_.drawn) {
    throw InvalidArgument(
        "A loader with a batch sampler cannot go to a place within an epoch: the sampler keeps it.");
  }
  go_to([&](Sampler& sampler) { sampler.restore(state); });
}

void BatchLine::leave_epoch() {
  refuse_fork();
  const std::lock_guard control(control_mutex_);
  if (closed_) return;
  if (!between_epochs_) {
    thread_.end();
    PublishedItem left = next_item();
    left.state = state();
    left.error =
        std::make_exception_ptr(InvalidArgument("The epoch was left. Start one, in all processes of the "
                                                "group, and ask then."));
    drop_batches(left.state);
    source_->leave();
    publish_to_all(left);
  }
  source_->synchronize();
}

void BatchLine::synchronize() {
  refuse_fork();
  source_->synchronize();
}

SamplerState BatchLine::state() const {
  refuse_fork();
  if (rings_.size() == 1) return rings_[0]->position();
  const std::lock_guard guard(position_mutex_);
  return position_;
}

Sampler BatchLine::whole_epoch() const {
  Sampler sampler = order_.first;
  if (sampler.options().samples_in_epoch) sampler.start_epoch(state().epoch);
  return sampler;
}

std::uint64_t BatchLine::batches_left() const {
  if (order_.drawn) return 0;
  Sampler sampler = order_.first;
  sampler.restore(state());
  return sampler.batches_left();
}

void BatchLine::close() {
  if (is_forked()) return;
  const std::lock_guard control(control_mutex_);
  if (closed_) return;
  closed_ = true;
  thread_.end();
  for (const auto& ring : rings_) ring->close();
  source_->close(handed_out_);
}

FeedStatistics BatchLine::complete(FeedStatistics statistics) const {
  for (const auto& ring : rings_) {
    const RingSize size = ring->size();
    statistics.slots = std::max(statistics.slots, size.slots);
    statistics.ring_bytes += size.bytes;
  }
  statistics.prefetch_depth = options_.prefetch_depth;
  statistics.sample_bytes = source_->dataset().sample_bytes();
  statistics.decodes = decodes(source_->dataset());
  statistics.device_decodes = std::ranges::any_of(source_->plan().fields, &FieldPlan::by_decoder);
  return statistics;
}

FeedStatistics BatchLine::stats() const {
  refuse_fork();
  FeedStatistics statistics = complete(account_->total());
  source_->complete(statistics);
  const Dataset& dataset = source_->dataset();
  for (std::size_t f = 0; f < dataset.field_count(); ++f) dataset.reader(f)->add_failures(statistics);
  return statistics;
}

std::optional<FeedStatistics> BatchLine::epoch_stats(std::uint64_t epoch) const {
  refuse_fork();
  const auto statistics = account_->epoch(epoch);
  return statistics ? std::optional(complete(*statistics)) : std::nullopt;
}

FeedStatistics BatchLine::member_stats(std::size_t member) const {
  refuse_fork();
  const std::optional<FeedStatistics> own = source_->member_stats(member);
  return own ? *own : stats();
}

std::vector<BatchTimes> BatchLine::timeline() const {
  refuse_fork();
  return account_->timeline();
}

void BatchLine::refuse_fork() const {
  if (!is_forked()) return;
  throw DeviceError(
      "PENSTOCK_FORKED", "Loader", 0,
      fmt::format("This process was forked from the one that made the loader, and cannot use its {}: make "
                  "the loader in this process, or start processes with spawn.",
                  rings_.size() == 1 ? "device" : "devices"));
}

void BatchLine::refuse_streams(std::size_t count) const {
  if (count == rings_.size()) return;
  throw InvalidArgument(fmt::format(
      "{} streams were given for batches on {} devices; give one of each device", count, rings_.size()));
}

}  // namespace penstock
