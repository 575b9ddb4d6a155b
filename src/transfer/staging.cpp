#include "transfer/staging.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/log.hpp>
#include <penstock/device/topology.hpp>

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>
#include <utility>

namespace penstock {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kSmallestSlot = std::size_t{256} << 10;
constexpr std::size_t kSmallestGranule = std::size_t{64} << 10;
constexpr std::size_t kLargestGranule = std::size_t{512} << 10;

}  // namespace

struct StagingRing::Slot {
  PinnedRing::Slot& pinned;

  // Guarded by the ring's mutex. A slot is open while it has a job.
  std::shared_ptr<StagedJob> job;
  StagedJob::Chunk chunk;
  std::size_t granule = 0;
  std::size_t handed_out = 0;  // bytes of the chunk
  std::size_t left = 0;        // bytes of the chunk not yet moved
  bool fetched = false;        // D2H: its copy is enqueued

  explicit Slot(PinnedRing::Slot& memory) : pinned(memory) {}
};

StagingRing::StagingRing(Device device, std::shared_ptr<Pool> pinned, std::shared_ptr<EventPool> events,
                         CopyDirection direction, const Stream& wire, StagingOptions options)
    : device_(std::move(device)),
      pinned_(std::move(pinned)),
      events_(std::move(events)),
      direction_(direction),
      wire_(wire),
      options_(options),
      polling_(options.spin) {}

StagingRing::~StagingRing() {
  {
    std::unique_lock lock(monitor_->mutex);
    monitor_->closed = true;
    for (const auto& job : jobs_) job->cancel();
    monitor_->changed();
    monitor_->condition.wait(lock, [&] { return monitor_->helpers == 0; });
  }
  for (std::thread& thread : threads_) thread.join();
}

void StagingRing::submit(const std::shared_ptr<TransferState>& state, void* destination, const void* source,
                         EventPool::Handle after) {
  const std::lock_guard lock(monitor_->mutex);
  if (threads_.empty()) start();
  ChunkSizes sizes = options_.chunks;
  sizes.largest = slot_bytes_;
  auto job = std::make_shared<StagedJob>(state, static_cast<std::byte*>(destination),
                                         static_cast<const std::byte*>(source), std::move(after), sizes);
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
      if (!alive) return;
      {
        const std::lock_guard guard(monitor->mutex);
        if (monitor->closed) return;  // and `this` may be gone
        ++monitor->helpers;
      }
      help(*alive);
      const std::lock_guard guard(monitor->mutex);
      --monitor->helpers;
      monitor->changed();
    };
  }
  jobs_.push_back(std::move(job));
  if (under_way_++ == 0) polling_.work_begins();
  monitor_->changed();
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
  for (unsigned i = 0; i < std::max(1u, options_.threads - 1); ++i) {
    try {
      threads_.emplace_back([this] { run(); });
    } catch (const std::system_error&) {  // fewer threads are slower, and none cannot work
      if (threads_.empty()) throw;
    }
  }
}

void StagingRing::run() {
  bind_thread_to_node(device_.info().numa_node);
  std::unique_lock lock(monitor_->mutex);
  while (const auto task = next_task(lock)) {
    lock.unlock();
    perform(*task);
    lock.lock();
  }
}

void StagingRing::help(const StagedJob& job) {
  std::unique_lock lock(monitor_->mutex);
  for (;;) {
    end_exhausted_jobs(lock);
    const auto task = find_task(&job);
    if (!task) return;
    lock.unlock();
    perform(*task);
    lock.lock();
  }
}

void StagingRing::end_exhausted_jobs(std::unique_lock<std::mutex>& lock) {
  while (!jobs_.empty() && !jobs_.front()->has_chunk()) {
    const auto job = std::move(jobs_.front());
    jobs_.pop_front();
    conclude(job, lock);
  }
}

std::optional<StagingRing::Task> StagingRing::next_task(std::unique_lock<std::mutex>& lock) {
  for (;;) {
    end_exhausted_jobs(lock);
    if (const auto task = find_task()) return task;
    if (monitor_->closed && jobs_.empty() && handing_ == opened_) return std::nullopt;
    const std::uint64_t seen = monitor_->version.load(std::memory_order_relaxed);
    const std::chrono::nanoseconds polled = under_way_ != 0 ? options_.spin : polling_.get();
    lock.unlock();
    spin_until([&] { return monitor_->version.load(std::memory_order_acquire) != seen; }, polled);
    lock.lock();
    monitor_->condition.wait(lock, [&] { return monitor_->version.load(std::memory_order_relaxed) != seen; });
  }
}

std::optional<StagingRing::Task> StagingRing::find_task(const StagedJob* only) {
  const auto open_next = [&] {
    return !jobs_.empty() && (only == nullptr || only == jobs_.front().get()) && open_slot();
  };
  // D2H: the wire is to have work before threads have.
  if (direction_ == CopyDirection::d2h && open_next()) {
    return Task{.slot = slots_[(opened_ - 1) % slots_.size()].get(), .fetch = true};
  }
  for (;;) {
    while (handing_ != opened_) {
      Slot& slot = *slots_[handing_ % slots_.size()];
      if (slot.job && slot.handed_out < slot.chunk.bytes) {
        if (direction_ == CopyDirection::d2h && !slot.fetched) return std::nullopt;
        if (only != nullptr && only != slot.job.get()) return std::nullopt;
        Task task{.slot = &slot, .offset = slot.handed_out};
        task.bytes = std::min(slot.granule, slot.chunk.bytes - slot.handed_out);
        slot.handed_out += task.bytes;
        return task;
      }
      ++handing_;
    }
    if (direction_ == CopyDirection::d2h || !open_next()) return std::nullopt;
  }
}

bool StagingRing::open_slot() {
  Slot& slot = *slots_[opened_ % slots_.size()];
  if (slot.job) return false;
  slot.job = jobs_.front();
  slot.chunk = slot.job->take_chunk();
  slot.granule =
      std::clamp(align_up(slot.chunk.bytes / options_.threads, 4096), kSmallestGranule, kLargestGranule);
  slot.handed_out = 0;
  slot.left = slot.chunk.bytes;
  slot.fetched = false;
  ++opened_;
  return true;
}

void StagingRing::perform(const Task& task) {
  try {
    if (task.fetch) {
      enqueue(*task.slot);
    } else {
      move_granule(task);
    }
  } catch (...) {
    const std::lock_guard lock(monitor_->mutex);
    task.slot->job->fail(std::current_exception());
  }
  granule_done(*task.slot, task.bytes);
}

void StagingRing::move_granule(const Task& task) {
  Slot& slot = *task.slot;
  StagedJob& job = *slot.job;
  const auto begin = Clock::now();
  slot.pinned.wait();
  const double waited = seconds_since(begin);
  std::byte* staged = slot.pinned.data() + task.offset;
  const std::size_t at = slot.chunk.offset + task.offset;
  if (direction_ == CopyDirection::h2d) {
    copy_bytes(staged, job.source + at, task.bytes, options_.stores);
  } else {
    copy_bytes(job.destination + at, staged, task.bytes, options_.stores);
  }
  job.state->account(0, seconds_since(begin) - waited, waited);
}

void StagingRing::enqueue(Slot& slot) {
  StagedJob& job = *slot.job;
  const std::size_t at = slot.chunk.offset;
  if (job.after) wire_.wait(*job.after);
  job.state->begin_on(wire_);
  if (direction_ == CopyDirection::h2d) {
    wire_.copy(job.destination + at, slot.pinned.data(), slot.chunk.bytes, direction_);
  } else {
    wire_.copy(slot.pinned.data(), job.source + at, slot.chunk.bytes, direction_);
  }
  slot.pinned.sent(wire_);
  job.state->account(1, 0, 0);

  bool last = false;
  {
    const std::lock_guard lock(monitor_->mutex);
    last = job.enqueued(slot.chunk.bytes);
  }
  if (last) {
    auto event = job.state->take_end(*events_);
    event->record(wire_);
    job.state->submitted(std::move(event), direction_ == CopyDirection::d2h);
  }
}

void StagingRing::granule_done(Slot& slot, std::size_t bytes) {
  std::unique_lock lock(monitor_->mutex);
  if (bytes == 0) {  // a fetch
    slot.fetched = true;
    monitor_->changed();
  }
  slot.left -= bytes;
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
  close_slot(slot, lock);
}

void StagingRing::close_slot(Slot& slot, std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<StagedJob> job = std::move(slot.job);
  slot.job.reset();
  job->returned();
  monitor_->changed();
  conclude(job, lock);
}

void StagingRing::conclude(const std::shared_ptr<StagedJob>& job,
                           std::unique_lock<std::mutex>& lock) noexcept {
  if (!job->claim_end()) return;
  if (--under_way_ == 0) polling_.work_ends();
  lock.unlock();
  if (!job->stopping()) {
    if (direction_ == CopyDirection::d2h) job->state->finish();
  } else {
    try {
      wire_.synchronize();
    } catch (...) {  // the device failed, and touches nothing any more
    }
    if (job->failure()) {
      job->state->fail(job->failure());
    } else {
      job->state->cancelled();
    }
  }
  lock.lock();
}

}  // namespace penstock
