#include "loader/rank_loader_state.hpp"

#include "loader/link_weights.hpp"
#include "loader/whole_batches.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/log.hpp>
#include <penstock/core/pause.hpp>
#include <penstock/core/start_thread.hpp>
#include <penstock/core/wait_quietly.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace penstock {

namespace {

constexpr std::chrono::milliseconds kLongestFarewell{60'000};

/// The facts that the processes of a group must have in common, as a text.
std::string facts_of(const Dataset& dataset, const Device& device, const LoaderOptions& options) {
  std::string facts = fmt::format("{} samples on {} in batches of {}, {}seed {}, drop_last {}, rank {} of {}",
                                  dataset.sample_count(), device.info().backend, options.batch_size,
                                  options.shuffle ? "shuffled by " : "in order, ", options.seed,
                                  options.drop_last, options.shard.rank, options.shard.world_size);
  if (options.batch_sampler) facts += "; chosen by a sampler";
  for (std::size_t f = 0; f < dataset.field_count(); ++f) {
    const Field& field = dataset.field(f);
    fmt::format_to(std::back_inserter(facts), "; {} {} [{}]", field.name,
                   dtype_name(field.narrowed_from.value_or(field.dtype)), fmt::join(field.shape, ", "));
  }
  for (const FieldOptions& field : options.fields) {
    if (!field.to) continue;
    fmt::format_to(std::back_inserter(facts), "; {} as {} * [{}] + [{}] along {}", field.name,
                   dtype_name(*field.to), fmt::join(field.scale, ", "), fmt::join(field.shift, ", "),
                   field.channel_axis);
  }
  return facts;
}

/// Throws InvalidArgument, in all processes, if two have one GPU. An instance of MIG is a GPU of its own.
/// Memory of host devices is each process's own, whatever their names.
void refuse_shared_gpus(const Device& device, ProcessBoard& board) {
  const std::vector<std::string> gpus = board.exchange(device.info().uuid);
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    const auto first = static_cast<std::size_t>(std::ranges::find(gpus, gpus[rank]) - gpus.begin());
    if (gpus[rank].empty() || first == rank) continue;
    throw InvalidArgument(fmt::format(
        "Ranks {} and {} of the group (PIDs {} and {}) have one GPU, {}. Give each rank its own, such as "
        "cuda:N for the local rank N.",
        first, rank, board.process(first), board.process(rank), gpus[rank]));
  }
}

/// A number that says which samples a batch has.
std::uint64_t number_of(const std::vector<std::uint64_t>& indices) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, of whole numbers
  for (const std::uint64_t index : indices) {
    hash = (hash ^ index) * 0x100000001b3;
    hash ^= hash >> 32;
  }
  return hash;
}

std::string text_of(const SamplerState& place) {
  return fmt::format("sample {} of epoch {}", place.consumed, place.epoch);
}

std::exception_ptr error_of_left_epoch() {
  return std::make_exception_ptr(
      InvalidArgument("The epoch was left. Start one, in all processes of the group, and ask then."));
}

}  // namespace

RankLoaderState::RankLoaderState(Dataset dataset, Device device, ProcessBoardOptions group,
                                 LoaderOptions options, bool only_once)
    : options_(checked_for_group(std::move(options))),
      device_(std::move(device)),
      dataset_(std::move(dataset)),
      first_sampler_(dataset_.sample_count(), sampler_options_of(options_)),
      plan_(plan_of_whole(dataset_, options_, largest_batch(options_, first_sampler_))),
      board_(std::move(group)),
      rank_(board_.rank()),
      sampler_(first_sampler_) {
  try {
    board_.agree(facts_of(dataset_, device_, options_));
    refuse_shared_gpus(device_, board_);
    meet();
    if (feeds_once() || !only_once) add_loader();
    if (feeds_once()) begin_production();
  } catch (const std::exception& error) {
    board_.complain(error.what());
    throw;
  }
}

RankLoaderState::~RankLoaderState() = default;

void RankLoaderState::meet() {
  if (board_.size() == 1) {
    refusal_ = "the group is one process";
    return;
  }
  const std::vector<double> weights = weights_of_links(options_.profile, board_);
  split_.emplace(weights);
  shares_ = std::make_shared<BatchShares>(weights);
  parts_ = std::make_unique<PeerParts>(device_, board_, plan_, *split_);
  refusal_ = parts_->refusal();
}

void RankLoaderState::add_loader() {
  if (feeds_once()) return add_loader_of_parts();
  if (parts_ != nullptr) {
    log_warning(
        fmt::format("Each process of the group brings whole batches over its own link: they cannot read each "
                    "other's memory ({}). To use one link for each byte, feed shares and gather them with "
                    "torch.distributed.",
                    refusal_));
  }
  whole_ = std::make_unique<LoaderState>(dataset_, device_, options_, duties());
}

/// Of the loader of whole batches.
RankDuties RankLoaderState::duties() {
  RankDuties duties;
  if (parts_ == nullptr) return duties;
  duties.agree = [this](const DeviceSlot& slot, FunctionRef<bool()> stopped) { return agree(slot, stopped); };
  duties.meet = [this](const SamplerState& place) { meet_at(place); };
  duties.fail = [this](const std::exception_ptr& error) {
    complain(error);
    parts_->end_if_over();
  };
  return duties;
}

void RankLoaderState::add_loader_of_parts() {
  drawn_ = draws_of_whole(options_, dataset_.sample_count());
  if (drawn_) draws_ = std::make_shared<SharedDraws>(*drawn_);
  sampler_of_parts_ = std::make_shared<PartSampler>(first_sampler_, draws_, shares_, rank_);
  LoaderOptions own = options_of_parts(options_, sampler_of_parts_, split_->largest(plan_.batch, rank_));
  const std::size_t budget =
      options_.device_budget_bytes != 0 ? options_.device_budget_bytes : device_.memory().free / 2;
  const std::size_t ring_budget = group_ring_budget(options_, budget, plan_.slot_bytes);
  own.device_budget_bytes = std::max<std::size_t>(budget - ring_budget, 1);  // 0 would be half of the memory
  account_ =
      std::make_unique<Account>(device_, AccountOptions{.timeline_batches = options_.timeline_batches});
  ring_ = make_group_ring(device_, ring_budget, plan_, options_, sampler_.state());
  put_.emplace(device_.create_stream(StreamPriority::high));
  arrive_.emplace(device_.create_stream(StreamPriority::high));
  placed_.emplace(device_.create_event());
  loader_.emplace(dataset_, device_, std::move(own));
}

void RankLoaderState::begin_production() {
  stopped_ = false;
  thread_ = start_thread("penstock-rank", [this] { run(); });
}

void RankLoaderState::end_production() {
  stopped_ = true;
  ring_->stop();
  if (drawn_) drawn_->stop();
  if (thread_.joinable()) thread_.join();
}

void RankLoaderState::run() {
  make_batches(sampler_, index_,
               {.next = [this] { return next_run(); },
                .make = [this](const SampleRun& run) { return make_batch(run); },
                .make_end = [this](PublishedItem& end) { return make_end(end); },
                .publish = [this](const PublishedItem& item) { publish(item); }});
}

/// The samples of the next batch; none at an epoch's end.
SampleRun RankLoaderState::next_run() {
  if (draws_ == nullptr) return sampler_.next_run();
  return {.order = std::nullopt, .count = draws_->of(turn_).size()};
}

/// All processes come to it, if a sampler chooses the samples. False if it is to stop.
bool RankLoaderState::make_end(PublishedItem& end) {
  if (draws_ == nullptr) return true;
  const auto stopped = [this] { return stopped_.load(std::memory_order_relaxed); };
  if (!offer() || !parts_->wait_for_offers(turn_, stopped)) return false;
  parts_->taken(turn_++);
  end.generation = draws_->generation();
  return true;
}

/// Also tells the other processes of an exception.
void RankLoaderState::publish(const PublishedItem& item) {
  if (item.error == nullptr) return ring_->publish(item);
  complain(item.error);
  ring_->publish(item);
  parts_->end_if_over();
}

/// Tells the other processes of an exception.
void RankLoaderState::complain(const std::exception_ptr& failure) noexcept {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    board_.complain(error.what());
  } catch (...) {
    board_.complain("an unknown exception");
  }
}

/// False if it is to stop.
bool RankLoaderState::make_batch(const SampleRun& run) {
  if (!offer()) return false;
  PublishedItem item;
  const double asked = account_->now();
  DeviceSlot* const slot = ring_->acquire();
  if (slot == nullptr) return false;
  item.slot = slot;
  item.slot_wait_seconds = account_->now() - asked;
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
  item.timed = account_->open();
  bool filled = false;
  try {
    filled = fill(*slot, item);
  } catch (...) {
    account_->discard(item.timed);
    ring_->put_back(*slot, !drain());
    throw;
  }
  if (filled) {
    ring_->publish(std::move(item));
  } else {
    account_->discard(item.timed);
    ring_->put_back(*slot, !drain());
  }
  return filled;
}

/// Puts this process's part where the others find it. False if it is to stop.
bool RankLoaderState::offer() {
  const auto end_if_stopped = [this] {
    if (stopped_.load(std::memory_order_relaxed)) throw ProductionStopped{};
  };
  if (std::optional<DeviceBatch> part = loader_->next(*put_, end_if_stopped)) {
    parts_->put(turn_, *part, *put_);
    part.reset();
    placed_->record(*put_);
    if (!wait_for(*placed_)) return false;
  }
  shares_->forget_before(turn_);
  if (draws_ != nullptr) draws_->forget_before(turn_);
  parts_->offer(turn_, draws_ == nullptr ? 0 : number_of(draws_->of(turn_)));
  return true;
}

/// Brings the parts of all processes into a slot. False if it is to stop.
bool RankLoaderState::fill(DeviceSlot& slot, PublishedItem& item) {
  for (std::size_t f = 0; f < slot.fields.size(); ++f) {
    slot.fields[f].shape[0] = static_cast<std::size_t>(slot.run.count);
    slot.fields[f].bytes = slot.fields[f].shape[0] * plan_.fields[f].delivered_bytes;
  }
  const auto stopped = [this] { return stopped_.load(std::memory_order_relaxed); };
  if (!parts_->wait_for_offers(turn_, stopped)) return false;
  ring_->wait_for_users(slot, *arrive_);
  if (item.timed != nullptr) item.timed->begin.record(*arrive_);
  // Each begins with its own part, so that not all read from the same device at once.
  for (std::size_t i = 0; i < board_.size(); ++i) {
    const std::size_t rank = (rank_ + i) % board_.size();
    parts_->take(rank, turn_, split_->part(slot.run.count, rank), slot.fields, *arrive_);
  }
  ring_->mark_end(slot, *arrive_, item.timed);
  if (!wait_for(*slot.ready)) return false;
  parts_->taken(turn_++);
  return true;
}

/// Blocks the host. False if it is to stop.
bool RankLoaderState::wait_for(const Event& event) const {
  bool done = false;
  nap_until([&] { return (done = event.query()) || stopped_.load(std::memory_order_relaxed); });
  return done;
}

/// Blocks the host until no copy of parts is under way. False if that cannot be known.
bool RankLoaderState::drain() const noexcept {
  const bool placed = wait_quietly([&] { put_->synchronize(); });
  return wait_quietly([&] { arrive_->synchronize(); }) && placed;
}

/// On the thread of the loader of whole batches. False if it is to stop.
bool RankLoaderState::agree(const DeviceSlot& slot, FunctionRef<bool()> stopped) {
  const bool is_drawn = options_.batch_sampler != nullptr;
  if (slot.run.count == 0 && !is_drawn) return true;
  parts_->offer(turn_, is_drawn ? number_of(slot.drawn) : 0);
  if (!parts_->wait_for_offers(turn_, stopped)) return false;
  ++turn_;
  return true;
}

/// All processes go to `place`, and count from there.
void RankLoaderState::meet_at(const SamplerState& place) {
  parts_->start_anew(text_of(place));
  turn_ = 0;
}

std::optional<DeviceBatch> RankLoaderState::next(const Stream& stream,
                                                 const FunctionRef<void()>* while_waiting) {
  refuse_fork();
  const auto since = PeerParts::Clock::now();
  const auto look = [&] {
    if (while_waiting != nullptr) (*while_waiting)();
    refuse_late(since);
  };
  const FunctionRef<void()> look_meanwhile(look);
  return feeds_once() ? next_of_parts(stream, look_meanwhile) : next_whole(stream, look_meanwhile);
}

/// Throws Error if another process has been waited for for too long, by a call that began at `since`.
void RankLoaderState::refuse_late(PeerParts::Clock::time_point since) const {
  if (parts_ == nullptr) return;
  const std::optional<PeerParts::Awaited> awaited = parts_->awaited();
  if (!awaited) return;
  if (PeerParts::Clock::now() - std::max(since, awaited->since) <= board_.options().timeout) return;
  throw Error(fmt::format(
      "No batch came within {} s: rank {} of the group (PID {}) lives, and has not done its part. All "
      "processes of a group must ask for equally many batches.",
      static_cast<double>(board_.options().timeout.count()) / 1000, awaited->rank,
      board_.process(awaited->rank)));
}

std::optional<DeviceBatch> RankLoaderState::next_whole(const Stream& stream,
                                                       const FunctionRef<void()>& while_waiting) {
  between_epochs_ = false;
  std::optional<DeviceBatch> batch = whole_->next(stream, &while_waiting);
  between_epochs_ = !batch && options_.batch_sampler != nullptr;
  return batch;
}

std::optional<DeviceBatch> RankLoaderState::next_of_parts(const Stream& stream,
                                                          const FunctionRef<void()>& while_waiting) {
  Account::Request request(*account_, &stream);
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

template <typename Change>
void RankLoaderState::go_to(Change&& change) {
  refuse_fork();
  const std::lock_guard control(control_mutex_);
  if (closed_) throw Closed("The loader was closed; make another one.");
  Sampler changed = first_sampler_;
  change(changed);
  end_production();
  try {
    if (!drain()) {
      parts_->give_up();
      throw DeviceError("PENSTOCK_LOST_WORK", "synchronize", 0, "Copies of parts cannot be waited for.");
    }
    meet_at(changed.state());
    sampler_ = changed;
    index_ = first_sampler_.batches_per_epoch() - sampler_.batches_left();
    handed_out_ = 0;
    for (const PublishedItem& dropped : ring_->reset(sampler_.state())) account_->discard(dropped.timed);
    shares_->restart();
    if (drawn_) {
      drawn_->restart(sampler_.epoch());
      draws_->restart();
    }
    sampler_of_parts_->go_to(sampler_);
    loader_->start_epoch(loader_->state().epoch + 1);  // not the one that it is in
    begin_production();
  } catch (...) {
    for (const PublishedItem& dropped : ring_->reset(sampler_.state())) account_->discard(dropped.timed);
    publish(failed_item(sampler_));
    throw;
  }
  if (drawn_) drawn_->draw();  // for those who are in next() now
}

void RankLoaderState::leave_epoch() {
  refuse_fork();
  if (!feeds_once()) {
    return between_epochs_ ? whole_->synchronize() : whole_->leave_epoch(error_of_left_epoch());
  }
  const std::lock_guard control(control_mutex_);
  if (closed_) return;
  if (!between_epochs_) {
    end_production();
    for (const PublishedItem& dropped : ring_->reset(ring_->position())) account_->discard(dropped.timed);
    loader_->start_epoch(loader_->state().epoch + 1);
    ring_->publish({.error = error_of_left_epoch(), .state = ring_->position()});
  }
  loader_->synchronize();
}

void RankLoaderState::start_epoch(std::uint64_t epoch) {
  refuse_fork();
  if (!feeds_once()) return whole_->start_epoch(epoch);
  if (!ring_->is_closed() && ring_->is_at_start_of(epoch)) return;
  go_to([&](Sampler& sampler) { sampler.start_epoch(epoch); });
}

void RankLoaderState::restore(const SamplerState& state) {
  if (options_.batch_sampler) refuse_place();
  if (!feeds_once()) return whole_->restore(state);
  go_to([&](Sampler& sampler) { sampler.restore(state); });
}

SamplerState RankLoaderState::state() const {
  refuse_fork();
  return feeds_once() ? ring_->position() : whole_->state();
}

void RankLoaderState::close() {
  if (is_forked()) return;
  const std::lock_guard control(control_mutex_);
  if (std::exchange(closed_, true)) return;
  if (!feeds_once()) return close_whole();
  end_production();
  ring_->close();
  static_cast<void>(drain());
  parts_->leave(handed_out_, std::min(board_.options().timeout, kLongestFarewell));
  loader_->close();  // the last: it throws if the device failed
}

void RankLoaderState::close_whole() {
  std::exception_ptr failure;
  try {
    if (whole_ != nullptr) whole_->close();
  } catch (...) {  // a failed device
    failure = std::current_exception();
  }
  if (parts_ != nullptr) parts_->leave(0, {});
  if (failure != nullptr) std::rethrow_exception(failure);
}

FeedStatistics RankLoaderState::stats() const {
  refuse_fork();
  if (!feeds_once()) return whole_->stats();
  const FeedStatistics own = loader_->stats();
  FeedStatistics statistics = account_->total();
  const RingSize size = ring_->size();
  statistics.link_bytes = own.link_bytes;
  statistics.link_ceiling = own.link_ceiling;
  statistics.resident_bytes = own.resident_bytes;
  statistics.slots = size.slots;
  statistics.ring_bytes = size.bytes + own.ring_bytes;
  count_copies_of_parts(statistics);
  statistics.prefetch_depth = options_.prefetch_depth;
  statistics.sample_bytes = dataset_.sample_bytes();
  return statistics;
}

std::vector<BatchTimes> RankLoaderState::timeline() const {
  refuse_fork();
  return feeds_once() ? account_->timeline() : whole_->timeline();
}

std::vector<std::string> RankLoaderState::describe() const {
  std::vector<std::string> lines = feeds_once() ? loader_->describe() : whole_->plan().describe();
  lines.insert(lines.begin(),
               feeds_once() ? fmt::format("{} of each batch over this link, the rest from {} other processes",
                                          describe_part(), board_.size() - 1)
                            : fmt::format("whole batches over this link: {}", refusal_));
  return lines;
}

std::string RankLoaderState::describe_part() const {
  if (split_->is_even()) return fmt::format("1/{}", board_.size());
  return fmt::format("by its measured rate, {}/{}", split_->part(plan_.batch, rank_).count, plan_.batch);
}

void RankLoaderState::refuse_fork() const {
  if (is_forked()) {
    throw DeviceError(
        "PENSTOCK_FORKED", "RankLoader", 0,
        "this process was forked from the one that made the loader, and cannot use its device: make the "
        "loader in this process, or start processes with spawn");
  }
}

}  // namespace penstock
