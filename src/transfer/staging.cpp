#include "transfer/staging.hpp"

#include "core/pause.hpp"
#include "transfer/staged_job.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/log.hpp>
#include <penstock/device/topology.hpp>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

namespace penstock {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kSmallestSlot = std::size_t{256} << 10;
constexpr std::chrono::microseconds kSpin{50};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

struct StagingRing::Slot {
  enum class Use : std::uint8_t { idle, marked, unmarked };

  std::byte* data;
  Event event;
  Use use = Use::idle;
};

/// One thread's slots, and its part of the work on a transfer.
class StagingRing::Worker {
 public:
  Worker(StagingRing& ring, std::size_t index)
      : ring_(ring), wire_(ring.wires_[index % ring.wires_.size()]), stores_(ring.options_.stores) {
    std::byte* data = ring.slots_.data() + index * ring.options_.slots_per_thread * ring.slot_bytes_;
    for (unsigned i = 0; i < ring.options_.slots_per_thread; ++i, data += ring.slot_bytes_) {
      slots_.push_back({data, ring.device_.create_event()});
    }
  }

  void work(StagedJob& job) {
    if (ring_.direction_ == CopyDirection::h2d) {
      fill(job);
    } else {
      empty(job);
    }
    ring_.conclude(job);
  }

 private:
  void fill(StagedJob& job) {
    while (const auto chunk = job.take()) {
      try {
        Slot& slot = slots_[turn_++ % slots_.size()];
        const auto begin = Clock::now();
        wait(slot);
        const double waited = seconds_since(begin);
        copy_bytes(slot.data, job.source + chunk->offset, chunk->bytes, stores_);
        enqueue(job, slot, job.destination + chunk->offset, slot.data, chunk->bytes);
        job.state->account(1, seconds_since(begin) - waited, waited);
        if (job.enqueued(*chunk)) ring_.mark_submitted(job, false);
      } catch (...) {
        job.fail(std::current_exception());
      }
      job.returned();
    }
  }

  void empty(StagedJob& job) {
    std::deque<std::pair<StagedJob::Chunk, Slot*>> arriving;
    for (;;) {
      while (arriving.size() < slots_.size()) {
        const auto chunk = job.take();
        if (!chunk) break;
        try {
          Slot& slot = slots_[turn_++ % slots_.size()];
          wait(slot);
          enqueue(job, slot, slot.data, job.source + chunk->offset, chunk->bytes);
          arriving.emplace_back(*chunk, &slot);
          if (job.enqueued(*chunk)) ring_.mark_submitted(job, true);
        } catch (...) {
          job.fail(std::current_exception());
          job.returned();
        }
      }
      if (arriving.empty()) return;
      const auto [chunk, slot] = arriving.front();
      arriving.pop_front();
      try {
        const auto begin = Clock::now();
        wait(*slot);
        const double waited = seconds_since(begin);
        copy_bytes(job.destination + chunk.offset, slot->data, chunk.bytes, stores_);
        job.state->account(1, seconds_since(begin) - waited, waited);
      } catch (...) {
        job.fail(std::current_exception());
      }
      job.returned();
    }
  }

  void wait(Slot& slot) {
    if (slot.use == Slot::Use::marked) slot.event.synchronize();
    if (slot.use == Slot::Use::unmarked) wire_.synchronize();
    slot.use = Slot::Use::idle;
  }

  void enqueue(StagedJob& job, Slot& slot, void* destination, const void* source, std::size_t bytes) {
    if (job.after) wire_.wait(*job.after);
    slot.use = Slot::Use::unmarked;
    ring_.device_.backend().copy(destination, source, bytes, ring_.direction_, wire_.native());
    slot.event.record(wire_);
    slot.use = Slot::Use::marked;
  }

  StagingRing& ring_;
  Stream& wire_;
  const StoreKind stores_;
  std::vector<Slot> slots_;
  std::size_t turn_ = 0;
};

StagingRing::StagingRing(Device device, std::shared_ptr<Pool> pinned, std::shared_ptr<EventPool> events,
                         CopyDirection direction, StagingOptions options)
    : device_(std::move(device)),
      pinned_(std::move(pinned)),
      events_(std::move(events)),
      direction_(direction),
      options_(options) {}

StagingRing::~StagingRing() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    for (const auto& job : jobs_) job->cancel();
    version_.fetch_add(1, std::memory_order_release);
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  workers_.clear();
  for (Stream& wire : wires_) {
    try {
      wire.synchronize();
    } catch (const Error& error) {
      log(LogLevel::warning, error.what());
    }
  }
}

void StagingRing::submit(const std::shared_ptr<TransferState>& state, void* destination, const void* source,
                         EventPool::Handle after) {
  {
    const std::lock_guard lock(mutex_);
    if (workers_.empty()) start();
    auto job = std::make_shared<StagedJob>(state, static_cast<std::byte*>(destination),
                                           static_cast<const std::byte*>(source), std::move(after),
                                           slot_bytes_, options_.threads);
    state->set_threads(options_.threads);
    state->on_cancel = [weak = std::weak_ptr(job)] {
      const auto alive = weak.lock();
      return alive && alive->cancel();
    };
    jobs_.push_back(std::move(job));
    version_.fetch_add(1, std::memory_order_release);
  }
  changed_.notify_all();
}

void StagingRing::start() {
  const std::size_t slots = std::size_t{options_.threads} * options_.slots_per_thread;
  for (slot_bytes_ = options_.chunk_bytes;; slot_bytes_ /= 2) {
    try {
      slots_ = pinned_->allocate(slots * slot_bytes_);
      break;
    } catch (const OutOfMemory& error) {
      if (slot_bytes_ / 2 < std::min(kSmallestSlot, options_.chunk_bytes)) throw;
      log(LogLevel::warning, std::string("staging with smaller slots: ") + error.what());
    }
  }
  while (wires_.size() < options_.wires) wires_.push_back(device_.create_stream());
  std::vector<std::unique_ptr<Worker>> workers;
  for (std::size_t i = 0; i < options_.threads; ++i) workers.push_back(std::make_unique<Worker>(*this, i));
  workers_ =
      std::move(workers);  // from here on nothing throws but the start of a thread; one thread is enough
  for (std::size_t i = 0; i < options_.threads; ++i) {
    try {
      threads_.emplace_back([this, i] { run(i); });
    } catch (const std::system_error&) {
      if (threads_.empty()) {
        workers_.clear();
        throw;
      }
    }
  }
}

void StagingRing::run(std::size_t index) {
  bind_thread_to_node(device_.info().numa_node);
  std::shared_ptr<StagedJob> job;
  while ((job = next_job(job))) workers_[index]->work(*job);
}

std::shared_ptr<StagedJob> StagingRing::next_job(const std::shared_ptr<StagedJob>& finished) {
  std::unique_lock lock(mutex_);
  if (finished) std::erase(jobs_, finished);
  for (;;) {
    if (!jobs_.empty()) return jobs_.front();
    if (stop_) return nullptr;
    const std::uint64_t seen = version_.load(std::memory_order_acquire);
    lock.unlock();
    spin_until([&] { return version_.load(std::memory_order_acquire) != seen; }, kSpin);
    lock.lock();
    changed_.wait(lock, [&] { return version_.load(std::memory_order_relaxed) != seen; });
  }
}

void StagingRing::mark_submitted(StagedJob& job, bool host_finishes) {
  for (std::size_t i = 1; i < wires_.size(); ++i) {
    auto joined = events_->take();
    joined->record(wires_[i]);
    wires_[0].wait(*joined);
  }
  auto event = events_->take();
  event->record(wires_[0]);
  job.state->submitted(std::move(event), host_finishes);
}

void StagingRing::conclude(StagedJob& job) noexcept {
  if (!job.claim_end()) return;
  const std::exception_ptr failure = job.failure();
  if (!failure && !job.was_cancelled()) {
    if (direction_ == CopyDirection::d2h) job.state->finish();
    return;
  }
  for (Stream& wire : wires_) {
    try {
      wire.synchronize();
    } catch (...) {  // the device failed, and touches nothing any more
    }
  }
  if (failure) {
    job.state->fail(failure);
  } else {
    job.state->cancelled();
  }
}

}  // namespace penstock
