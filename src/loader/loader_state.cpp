#include "loader/loader_state.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/device/topology.hpp>

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <utility>

namespace penstock {

namespace {

constexpr std::size_t kMostDepth = 64;
constexpr unsigned kThreadsByDefault = 8;

LoaderOptions checked(LoaderOptions options) {
  if (options.prefetch_depth == 0 || options.prefetch_depth > kMostDepth) {
    throw InvalidArgument(fmt::format("A prefetch depth of {} was asked for; use 1 to {}.",
                                      options.prefetch_depth, kMostDepth));
  }
  if (options.threads > LoaderOptions::kMostThreads) {
    throw InvalidArgument(fmt::format("{} threads were asked for; use 1 to {}, or 0 for as many as help.",
                                      options.threads, LoaderOptions::kMostThreads));
  }
  if (options.threads == 0)
    options.threads = std::min(kThreadsByDefault, std::max(1U, host_topology().processors));
  return options;
}

SamplerOptions sampler_options(const LoaderOptions& options) {
  return {.shuffle = options.shuffle,
          .seed = options.seed,
          .batch_size = options.batch_size,
          .drop_last = options.drop_last,
          .shard = options.shard};
}

/// Signals go to the threads of the program.
std::thread start_quietly(auto&& body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread(std::forward<decltype(body)>(body));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

}  // namespace

LoaderState::LoaderState(Dataset dataset, Device device, LoaderOptions options)
    : options_(checked(std::move(options))),
      device_(std::move(device)),
      profile_(options_.profile ? *options_.profile : LinkProfile::defaults(device_.info())),
      team_(std::make_unique<WorkerTeam>(
          WorkerTeamOptions{.threads = options_.threads,
                            .on_start = [node = device_.info().numa_node] { bind_thread_to_node(node); }})),
      dataset_(options_.narrow ? narrow_small_fields(dataset, team_.get()) : std::move(dataset)),
      first_sampler_(dataset_.sample_count(), sampler_options(options_)),
      sampler_(first_sampler_),
      batch_(static_cast<std::size_t>(std::min(options_.batch_size, sampler_.samples_per_epoch()))) {
  set_up();
  begin_production();
}

void LoaderState::set_up() {
  routes_ = make_routes(dataset_, options_);
  for (const Route& route : routes_) sample_delivered_bytes_ += route.delivered_bytes;
  const std::size_t resident_bytes = choose_memory();
  const Layout layout = lay_out(routes_, batch_);
  resident_ = std::make_unique<Resident>(device_, *memory_, routes_);
  is_resident_ = resident_bytes == 0;
  ring_ = std::make_shared<DeviceRing>(device_, memory_, routes_, layout, batch_, options_.prefetch_depth,
                                       sampler_.state());
  account_ = std::make_unique<Account>(device_, options_.timeline_batches);
  const bool gathers = std::ranges::any_of(routes_, &Route::host_gathered);
  if (!gathers && is_resident_) team_.reset();
  producer_ = std::make_unique<Producer>(dataset_, device_, *memory_, routes_, layout, options_, batch_,
                                         team_.get(), profile_.streaming_stores);
}

std::size_t LoaderState::choose_memory() {
  const std::size_t slot = slot_bytes(routes_, batch_);
  const std::size_t budget =
      options_.device_budget_bytes != 0 ? options_.device_budget_bytes : device_.memory().free / 2;
  if (slot > budget) {
    throw OutOfMemory("the loader's device memory budget", slot, 0, budget,
                      "one batch does not fit; use smaller batches or raise the budget");
  }
  const std::size_t ring = slot * (options_.prefetch_depth + 1);
  const std::size_t factors = factor_bytes(routes_);
  const std::size_t beside_ring = budget - std::min(budget, ring + factors);
  choose_paths(routes_, dataset_, device_, profile_, options_);
  const MemoryShares shares = share_memory(routes_, batch_, options_, beside_ring);
  memory_ = std::make_shared<Pool>(make_device_pool(
      device_, {.budget_bytes = budget, .segment_bytes = std::max(slot, std::size_t{1} << 20)}));
  // In one piece, so that nothing is lost between pieces of a tight budget.
  try {
    memory_->reserve(std::min(budget / 256 * 256, ring + factors + shares.resident + shares.landing));
  } catch (const OutOfMemory&) {  // less may do: fewer slots, and nothing that lands
    if (options_.gather != GatherPath::copy_engine) give_up_landing(routes_);
  }
  sources_ = lock_sources(routes_, dataset_, device_, options_);
  return shares.resident;
}

void LoaderState::begin_production() {
  stopping_ = false;
  thread_ = start_quietly([this] { run(); });
}

void LoaderState::end_production() {
  stopping_ = true;
  ring_->stop();
  if (thread_.joinable()) thread_.join();
}

void LoaderState::run() {
  Arrival failed;
  failed.state = sampler_.state();
  try {
    if (!is_resident_) {
      const double begin = account_->now();
      is_resident_ =
          resident_->fill(dataset_, routes_, profile_, team_.get(), [this] { return stopping_.load(); });
      if (!is_resident_) return;
      account_->count_resident(resident_->bytes(), account_->now() - begin);
    }
    std::uint64_t index = sampler_.batches_per_epoch() - sampler_.batches_left();
    for (;;) {
      const double asked = account_->now();
      DeviceSlot* const slot = ring_->acquire();
      if (slot == nullptr) return;
      produce(*slot, account_->now() - asked, index);
    }
  } catch (...) {
    failed.error = std::current_exception();
    failed.times.epoch = sampler_.epoch();
    ring_->publish(std::move(failed));
  }
}

void LoaderState::produce(DeviceSlot& slot, double slot_wait_seconds, std::uint64_t& index) {
  Arrival arrival;
  arrival.times.epoch = sampler_.epoch();
  slot.run = sampler_.next_run();
  if (slot.run.count == 0) {
    ring_->put_back(slot, false);
    sampler_.start_epoch(sampler_.epoch() + 1);
    index = 0;
    arrival.state = sampler_.state();
    return ring_->publish(std::move(arrival));
  }
  slot.epoch = sampler_.epoch();
  slot.index = index++;
  arrival.state = sampler_.state();
  arrival.slot_wait_seconds = slot_wait_seconds;
  arrival.times.batch = slot.index;
  arrival.times.samples = slot.run.count;
  arrival.timed = account_->open();
  bool spoiled = false;
  try {
    for (std::size_t f = 0; f < routes_.size(); ++f) {
      slot.fields[f].shape[0] = static_cast<std::size_t>(slot.run.count);
      slot.fields[f].bytes = slot.fields[f].shape[0] * routes_[f].delivered_bytes;
    }
    producer_->fill(slot, *ring_, slot.run, arrival, *account_, spoiled);
  } catch (...) {
    account_->discard(arrival.timed);
    ring_->put_back(slot, spoiled);
    throw;
  }
  arrival.slot = &slot;
  ring_->publish(std::move(arrival));
}

void LoaderState::refuse_fork() const {
  if (is_forked()) {
    throw DeviceError(
        "PENSTOCK_FORKED", "Loader", 0,
        "this process was forked from the one that made the loader, and cannot use its device: make the "
        "loader in this process, or start processes with spawn");
  }
}

std::optional<DeviceBatch> LoaderState::next(const Stream& stream, const FunctionRef<void()>* while_waiting) {
  refuse_fork();
  Account::Question question(*account_, stream);
  const Arrival arrival = ring_->take(stream, while_waiting);
  if (arrival.slot == nullptr) {
    question.answer(arrival, 0);
    return std::nullopt;
  }
  DeviceBatch batch(ring_, arrival.slot);
  question.answer(arrival, batch.size() * sample_delivered_bytes_);
  return batch;
}

template <typename Change>
void LoaderState::go_to(Change&& change) {
  refuse_fork();
  const std::lock_guard control(control_mutex_);
  if (closed_) throw Closed("The loader was closed; make another one.");
  Sampler changed = first_sampler_;
  change(changed);
  end_production();
  sampler_ = changed;
  for (const Arrival& dropped : ring_->reset(sampler_.state())) account_->discard(dropped.timed);
  try {
    begin_production();
  } catch (...) {
    ring_->publish({.error = std::current_exception(), .state = sampler_.state()});
    throw;
  }
}

void LoaderState::start_epoch(std::uint64_t epoch) {
  refuse_fork();
  if (!ring_->is_closed() && ring_->is_at_start_of(epoch)) return;
  go_to([&](Sampler& sampler) { sampler.start_epoch(epoch); });
}

void LoaderState::restore(const SamplerState& state) {
  go_to([&](Sampler& sampler) { sampler.restore(state); });
}

SamplerState LoaderState::state() const {
  refuse_fork();
  return ring_->position();
}

std::uint64_t LoaderState::batches_left() const {
  Sampler sampler = first_sampler_;
  sampler.restore(state());
  return sampler.batches_left();
}

void LoaderState::close() {
  if (is_forked()) return;
  const std::lock_guard control(control_mutex_);
  if (closed_) return;
  closed_ = true;
  end_production();
  ring_->close();
  producer_->synchronize();
}

FeedStatistics LoaderState::complete(FeedStatistics statistics) const {
  const RingSize size = ring_->size();
  statistics.prefetch_depth = options_.prefetch_depth;
  statistics.slots = size.slots;
  statistics.ring_bytes = size.bytes;
  statistics.link_ceiling = profile_.measured ? profile_.ceiling(CopyDirection::h2d) : 0;
  statistics.sample_bytes = dataset_.sample_bytes();
  if (statistics.link_ceiling > 0 && statistics.batches > 0) {
    // A driver may begin the copies of a batch before it notes the event in front of them (seen with many
    // copies in one call); nothing crosses the link faster than the link carries.
    const double timed =
        static_cast<double>(statistics.timed_batches) / static_cast<double>(statistics.batches);
    const double least = timed * static_cast<double>(statistics.link_bytes) / statistics.link_ceiling;
    statistics.transfer_seconds = std::max(statistics.transfer_seconds, least);
  }
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
