#include "transfer/staging.hpp"

#include "core/shared/start_thread.hpp"
#include "core/shared/wait_quietly.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/log.hpp>
#include <penstock/device/topology.hpp>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace penstock {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kSmallestSlot = std::size_t{256} << 10;
constexpr std::size_t kSmallestGranule = std::size_t{64} << 10;
constexpr std::size_t kLargestGranule = std::size_t{512} << 10;

// If there are no more processors than threads, a thread that synchronizes polls this long, then sleeps.
constexpr std::chrono::microseconds kHelperPolling{50};

/// With more than two threads, workers move the bytes, and the ring's thread is free to wait.
std::size_t worker_count(const StagingOptions& options) {
  return options.threads > 2 ? options.threads - 1 : 0;
}

/// Also false if the device failed: the failure is thrown when somebody waits.
bool is_free(PinnedRing::Slot& slot) noexcept {
  try {
    return slot.is_free();
  } catch (...) {
    return false;
  }
}

}  // namespace

struct StagingRing::Slot {
  PinnedRing::Slot& pinned;

  // Guarded by the ring's mutex. A slot is open while it has a job.
  enum class Phase : std::uint8_t {
    fetching,  ///< D2H: its copy is about to be enqueued
    on_wire,   ///< the device may still use it, and nobody waits for that
    awaited,
    ready,  ///< granules can be moved
  };
  std::shared_ptr<StagedJob> job;
  Phase phase = Phase::ready;
  StagedJob::Chunk chunk;
  std::size_t granule = 0;
  std::size_t handed_out = 0;  // bytes of the chunk
  std::size_t left = 0;        // bytes of the chunk not yet moved

  explicit Slot(PinnedRing::Slot& memory) : pinned(memory) {}

  [[nodiscard]] bool has_granules() const { return job && handed_out < chunk.bytes; }
};

StagingRing::StagingRing(Device device, std::shared_ptr<HostWorkers> workers, std::shared_ptr<Pool> pinned,
                         std::shared_ptr<EventPool> events, CopyDirection direction, CopyLane& wire,
                         StagingOptions options)
    : Source(worker_count(options)),
      device_(std::move(device)),
      workers_(std::move(workers)),
      pinned_(std::move(pinned)),
      events_(std::move(events)),
      direction_(direction),
      wire_(wire),
      options_(options),
      helper_polling_(options.threads < host_topology().processors ? options.spin : kHelperPolling),
      polling_(options.spin) {}

StagingRing::~StagingRing() {
  {
    const std::lock_guard lock(monitor_->mutex);
    monitor_->closed = true;
    for (const auto& job : jobs_) job->cancel();
    monitor_->changed();
  }
  if (!thread_.joinable()) return;
  thread_.join();
  workers_->remove(*this);
}

void StagingRing::submit(const std::shared_ptr<TransferState>& state, std::byte* on_device,
                         std::byte* on_host, EventPool::Handle after) {
  const StoreKind stores = options_.stores;
  if (direction_ == CopyDirection::h2d) {
    const auto fill = [on_host, stores](std::size_t offset, std::span<std::byte> staged) {
      copy_bytes(staged.data(), on_host + offset, staged.size(), stores);
    };
    submit(state, {{on_device, {0, state->bytes}}}, fill, std::move(after));
  } else {
    const auto empty = [on_host, stores](std::size_t offset, std::span<std::byte> staged) {
      copy_bytes(on_host + offset, staged.data(), staged.size(), stores);
    };
    submit(state, {{on_device, {0, state->bytes}}}, empty, std::move(after));
  }
}

void StagingRing::submit(const std::shared_ptr<TransferState>& state, std::vector<DeviceRun> on_device,
                         HostSide on_host, EventPool::Handle after) {
  const std::lock_guard lock(monitor_->mutex);
  if (!thread_.joinable()) start();
  ChunkSizes sizes = options_.chunks;
  sizes.largest = slot_bytes_;
  auto job =
      std::make_shared<StagedJob>(state, std::move(on_device), std::move(on_host), std::move(after), sizes);
  state->set_threads(options_.threads);
  state->on_cancel = [monitor = monitor_, weak = std::weak_ptr(job)] {
    const auto alive = weak.lock();
    if (!alive) return false;
    const std::lock_guard guard(monitor->mutex);
    if (!alive->cancel()) return false;
    monitor->changed();
    return true;
  };
  if (options_.threads > 1) {
    state->help = [this, monitor = monitor_, weak = std::weak_ptr(job)] {
      const auto alive = weak.lock();
      if (alive) help(*alive, *monitor);
    };
  }
  stopped_.reserve(under_way_ + 1);
  jobs_.push_back(std::move(job));
  if (under_way_++ == 0) work_begins();
  if (in_sequence_++ == 0) chunk_size_ = 0;
  monitor_->changed();
  workers_->wake(*this);
}

void StagingRing::start() {
  slots_.clear();
  ring_.reset();
  for (slot_bytes_ = options_.chunks.largest;; slot_bytes_ /= 2) {
    try {
      ring_ = std::make_unique<PinnedRing>(device_, *pinned_, options_.slots, slot_bytes_);
      break;
    } catch (const OutOfMemory& error) {
      if (slot_bytes_ / 2 < std::min(kSmallestSlot, options_.chunks.largest)) throw;
      log_warning(std::string("staging with smaller slots: ") + error.what());
    }
  }
  for (std::size_t i = 0; i < ring_->size(); ++i) slots_.push_back(std::make_unique<Slot>((*ring_)[i]));
  thread_ = start_thread("penstock-stage", [this] { run(); });
  workers_->add(*this);
}

bool StagingRing::work() noexcept {
  if (under_way_.load(std::memory_order_relaxed) == 0) return false;
  std::unique_lock lock(monitor_->mutex, std::defer_lock);
  lock_soon(lock);
  end_exhausted_jobs();
  const auto task = find_task(Waits::never);
  if (!task) return false;
  lock.unlock();
  perform(*task);
  return true;
}

std::chrono::nanoseconds StagingRing::polling() const noexcept {
  return under_way_.load(std::memory_order_relaxed) != 0 ? options_.spin : polling_.get();
}

void StagingRing::work_begins() {
  polling_.work_begins();
  workers_->work_begins();
}

void StagingRing::work_ends() {
  workers_->work_ends();
  polling_.work_ends();
}

void StagingRing::Monitor::wait_for_change(std::unique_lock<std::mutex>& lock, std::uint64_t seen,
                                           std::chrono::nanoseconds polled) {
  const auto is_new = [&] { return version.load(std::memory_order_acquire) != seen; };
  lock.unlock();
  spin_until(is_new, polled);
  lock_soon(lock);
  condition.wait(lock, is_new);
}

void StagingRing::run() {
  bind_thread_to_node(device_.info().numa_node);
  const Waits waits = worker_count(options_) > 0 ? Waits::first : Waits::if_nothing_to_move;
  std::unique_lock lock(monitor_->mutex);
  for (;;) {
    const std::uint64_t seen = monitor_->version.load(std::memory_order_relaxed);
    end_exhausted_jobs();
    if (end_stopped_job(lock)) continue;
    if (const auto task = find_task(waits)) {
      lock.unlock();
      perform(*task);
      lock_soon(lock);
      continue;
    }
    if (monitor_->closed && under_way_ == 0) return;
    monitor_->wait_for_change(lock, seen, polling());
  }
}

void StagingRing::help(const StagedJob& job, Monitor& monitor) {
  std::unique_lock lock(monitor.mutex);
  while (!monitor.closed) {
    const std::uint64_t seen = monitor.version.load(std::memory_order_relaxed);
    end_exhausted_jobs();
    if (const auto task = find_task(Waits::if_nothing_to_move, &job)) {
      lock.unlock();
      perform(*task);
      lock_soon(lock);
    } else if (has_work_left(job)) {
      monitor.wait_for_change(lock, seen, helper_polling_);
    } else {
      return;
    }
  }
}

bool StagingRing::has_work_left(const StagedJob& job) const {
  return job.has_chunk() || std::ranges::any_of(slots_, [&](const auto& slot) {
           return slot->job.get() == &job && slot->has_granules();
         });
}

void StagingRing::end_exhausted_jobs() {
  while (!jobs_.empty() && !jobs_.front()->has_chunk()) {
    const auto job = std::move(jobs_.front());
    jobs_.pop_front();
    conclude(job);
  }
}

bool StagingRing::may_open_slot(const StagedJob* only) const {
  if (jobs_.empty() || !jobs_.front()->has_chunk()) return false;
  if (only != nullptr && only != jobs_.front().get()) return false;
  // H2D: one slot ahead, for the ring's thread to wait for while others fill the one before.
  return direction_ == CopyDirection::d2h || opened_ - handing_ < 2;
}

std::optional<StagingRing::Task> StagingRing::find_task(Waits waits, const StagedJob* only) {
  while (handing_ != opened_ && !slot_at(handing_).has_granules()) ++handing_;
  while (may_open_slot(only) && open_slot()) {
    // D2H: gives the link work before threads.
    if (direction_ == CopyDirection::d2h)
      return Task{.kind = Task::Kind::fetch, .slot = &slot_at(opened_ - 1)};
  }
  const auto await = [](Slot& slot) {
    slot.phase = Slot::Phase::awaited;
    return Task{.kind = Task::Kind::wait, .slot = &slot};
  };
  for (std::uint64_t i = handing_; waits == Waits::first && i != opened_; ++i) {
    Slot& slot = slot_at(i);
    if (!slot.has_granules()) continue;
    if (slot.phase == Slot::Phase::fetching) break;  // it will be free before those after it
    if (slot.phase == Slot::Phase::on_wire) return await(slot);
  }
  if (handing_ == opened_) return std::nullopt;
  Slot& slot = slot_at(handing_);
  if (only != nullptr && only != slot.job.get()) return std::nullopt;
  if (slot.phase == Slot::Phase::on_wire) {
    if (waits != Waits::never) return await(slot);
    if (is_free(slot.pinned)) make_ready(slot);
  }
  if (slot.phase != Slot::Phase::ready) return std::nullopt;
  Task task{.slot = &slot, .offset = slot.handed_out};
  task.bytes = std::min(slot.granule, slot.chunk.bytes - slot.handed_out);
  slot.handed_out += task.bytes;
  return task;
}

std::size_t StagingRing::next_chunk_size() {
  const auto smallest = static_cast<double>(options_.chunks.smallest);
  chunk_size_ =
      std::min(std::max(chunk_size_ * options_.chunks.growth, smallest), static_cast<double>(slot_bytes_));
  return static_cast<std::size_t>(chunk_size_);
}

bool StagingRing::open_slot() {
  Slot& slot = slot_at(opened_);
  if (slot.job) return false;
  slot.job = jobs_.front();
  slot.chunk = slot.job->take_chunk(next_chunk_size(), jobs_.size() > 1);
  slot.granule =
      std::clamp(align_up(slot.chunk.bytes / options_.threads, 4096), kSmallestGranule, kLargestGranule);
  slot.handed_out = 0;
  slot.left = slot.chunk.bytes;
  slot.phase = direction_ == CopyDirection::d2h ? Slot::Phase::fetching : Slot::Phase::on_wire;
  ++opened_;
  monitor_->changed();
  return true;
}

void StagingRing::make_ready(Slot& slot) {
  slot.phase = Slot::Phase::ready;
  monitor_->changed();
  workers_->wake(*this);
}

void StagingRing::perform(const Task& task) {
  try {
    switch (task.kind) {
      case Task::Kind::fetch:
        enqueue(*task.slot);
        break;
      case Task::Kind::wait:
        wait_for(*task.slot);
        break;
      case Task::Kind::move:
        move_granule(task);
        break;
    }
  } catch (...) {
    const std::lock_guard lock(monitor_->mutex);
    task.slot->job->fail(std::current_exception());
  }
  task_done(task);
}

void StagingRing::wait_for(Slot& slot) {
  const auto begin = Clock::now();
  slot.pinned.wait();
  slot.job->state->account(0, 0, seconds_since(begin));
}

void StagingRing::move_granule(const Task& task) {
  Slot& slot = *task.slot;
  StagedJob& job = *slot.job;
  const auto begin = Clock::now();
  job.on_host(slot.chunk.offset + task.offset, {slot.pinned.data() + task.offset, task.bytes});
  job.state->account(0, seconds_since(begin), 0);
}

void StagingRing::enqueue_on(const Stream& stream, Slot& slot) {
  const StagedJob& job = *slot.job;
  if (job.after) stream.wait(*job.after);
  job.state->begin_on(stream);
  std::size_t copies = 0;
  const ImageRange range{slot.chunk.offset, slot.chunk.offset + slot.chunk.bytes};
  for_each_run(job.on_device, range, [&](std::byte* on_device, std::size_t offset, std::size_t bytes) {
    std::byte* const staged = slot.pinned.data() + (offset - range.begin);
    const bool h2d = direction_ == CopyDirection::h2d;
    stream.copy(h2d ? on_device : staged, h2d ? staged : on_device, bytes, direction_);
    ++copies;
  });
  slot.pinned.sent(stream);
  job.state->account(copies, 0, 0);
}

void StagingRing::enqueue(Slot& slot) {
  StagedJob& job = *slot.job;
  const auto chunk = [&](const Stream& stream) { enqueue_on(stream, slot); };
  if (direction_ == CopyDirection::h2d) {
    wire_.enqueue(slot.chunk.bytes, chunk, job.state->whole);
  } else {
    chunk(wire_.streams()[0]);
  }
  bool last = false;
  {
    const std::lock_guard lock(monitor_->mutex);
    last = job.enqueued(slot.chunk.bytes);
    // Before anybody hears that it has ended, and submits the next one.
    if (last && direction_ == CopyDirection::h2d) --in_sequence_;
  }
  if (last) {
    auto event = job.state->take_end(*events_);
    event->record(wire_.joined());
    job.state->submitted(std::move(event), direction_ == CopyDirection::d2h);
  }
}

void StagingRing::task_done(const Task& task) {
  Slot& slot = *task.slot;
  std::unique_lock lock(monitor_->mutex, std::defer_lock);
  lock_soon(lock);
  if (task.kind == Task::Kind::wait) make_ready(slot);
  if (task.kind == Task::Kind::fetch) {
    slot.phase = Slot::Phase::on_wire;
    monitor_->changed();
  }
  slot.left -= task.bytes;
  if (slot.job->stopping()) {
    slot.left -= slot.chunk.bytes - slot.handed_out;
    slot.handed_out = slot.chunk.bytes;
  }
  if (slot.left != 0) return;
  if (direction_ == CopyDirection::h2d && !slot.job->stopping()) {
    lock.unlock();
    try {
      enqueue(slot);
      lock.lock();
    } catch (...) {
      lock.lock();
      slot.job->fail(std::current_exception());
    }
  }
  close_slot(slot);
}

void StagingRing::close_slot(Slot& slot) {
  const std::shared_ptr<StagedJob> job = std::move(slot.job);
  slot.job.reset();
  job->returned();
  conclude(job);
  monitor_->changed();
}

void StagingRing::conclude(const std::shared_ptr<StagedJob>& job) {
  if (!job->claim_end()) return;
  if (direction_ == CopyDirection::d2h || !job->is_enqueued()) --in_sequence_;
  if (job->stopping()) {
    stopped_.push_back(job);
  } else {
    if (direction_ == CopyDirection::d2h) job->state->finish();
    if (--under_way_ == 0) work_ends();
  }
  monitor_->changed();
}

bool StagingRing::end_stopped_job(std::unique_lock<std::mutex>& lock) {
  if (stopped_.empty()) return false;
  const std::shared_ptr<StagedJob> job = std::move(stopped_.back());
  stopped_.pop_back();
  lock.unlock();
  wire_.drain();
  if (job->failure()) {
    job->state->fail(job->failure());
  } else {
    job->state->cancelled();
  }
  lock.lock();
  if (--under_way_ == 0) work_ends();
  return true;
}

}  // namespace penstock
