#include "transfer/paced_copier.hpp"

#include "core/shared/pause.hpp"
#include "core/shared/start_thread.hpp"
#include "core/shared/wait_quietly.hpp"
#include "transfer/part_sizes.hpp"
#include "transfer/shared/copy_turns.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/log.hpp>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <exception>
#include <list>
#include <utility>

namespace penstock {

class PacedCopier::Queue {
 public:
  struct Job {
    std::shared_ptr<TransferState> state;
    std::byte* destination = nullptr;
    const std::byte* source = nullptr;
    std::size_t left = 0;  ///< bytes
    EventPool::Handle after{nullptr, {}};
    bool begun = false;
    bool queued = true;
    std::exception_ptr failure;
  };

  Queue(const Device& device, std::shared_ptr<EventPool> events)
      : events_(std::move(events)),
        streams_{device.create_stream(), device.create_stream()},
        turns_(device),
        sizes_(device.info().tuning) {}

  void push(const std::shared_ptr<Job>& job) {
    {
      const std::lock_guard lock(mutex_);
      if (jobs_.empty() && is_idle()) sizes_.link_was_idle();
      jobs_.push_back(job);
      advance(nullptr);
    }
    changed_.notify_one();
  }

  /// Enqueues all that is left of a job and of those before it. Does not block the host. The thread is awake
  /// as long as a job is queued, and sees if one fails here.
  void hurry(const Job& job) {
    const std::lock_guard lock(mutex_);
    if (job.queued) advance(&job);
  }

  /// The thread's work, until close.
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return closed_ || !jobs_.empty() || !failed_.empty(); });
      if (!failed_.empty()) {
        end_failed(lock);
      } else if (jobs_.empty()) {
        return;
      } else {
        lock.unlock();
        nap_until([&] {
          const std::lock_guard meanwhile(mutex_);
          const std::size_t before = parts_;
          advance(nullptr);
          return jobs_.empty() || parts_ != before || !failed_.empty();
        });
        lock.lock();
      }
    }
  }

  /// Enqueues all that is left, and ends the thread.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      if (!jobs_.empty()) advance(jobs_.back().get());
    }
    changed_.notify_one();
  }

  void synchronize() const {
    for (const Stream& stream : streams_) stream.synchronize();
  }

 private:
  [[nodiscard]] bool is_idle() const noexcept {
    try {
      return turns_.are_done();
    } catch (...) {  // the device failed: the next part says so
      return false;
    }
  }

  /// Enqueues parts as long as there is a turn for them; all parts up to the end of `through` if it is given.
  void advance(const Job* through) noexcept {
    while (!jobs_.empty()) {
      const std::shared_ptr<Job> job = jobs_.front();
      try {
        const bool has_turn = turns_.may_enqueue();
        if (!has_turn && through == nullptr) return;
        enqueue_part(*job, has_turn);
        if (job->left == 0) end(*job);
      } catch (...) {
        job->failure = std::current_exception();
      }
      if (job->left != 0 && !job->failure) continue;
      job->queued = false;
      if (job->failure) {
        failed_.splice(failed_.end(), jobs_, jobs_.begin());
      } else {
        jobs_.pop_front();
      }
      if (job.get() == through) return;
    }
  }

  void enqueue_part(Job& job, bool has_turn) {
    if (!std::exchange(job.begun, true)) {
      const Stream& first = streams_[parts_ % 2];
      const Stream& second = streams_[(parts_ + 1) % 2];
      turns_.begin(first, second);
      if (job.after) {
        first.wait(*job.after);
        second.wait(*job.after);
      }
      job.state->begin_on(first);
    }
    // A part without a turn begins once the one before is done.
    const std::size_t bytes = std::min(job.left, has_turn ? sizes_.most() : sizes_.most_alone());
    const auto copy = [&](const Stream& stream) {
      stream.copy(job.destination, job.source, bytes, CopyDirection::h2d);
    };
    if (!has_turn) turns_.come_behind();
    turns_.enqueue(copy);
    ++parts_;
    sizes_.enqueued(bytes);
    job.destination += bytes;
    job.source += bytes;
    job.left -= bytes;
    job.state->account(1, 0, 0);
  }

  void end(Job& job) {
    turns_.join();
    auto event = job.state->take_end(*events_);
    event->record(turns_.first());
    job.state->submitted(std::move(event), false);
  }

  /// Releases `lock` while it waits for the parts that were enqueued.
  void end_failed(std::unique_lock<std::mutex>& lock) {
    std::list<std::shared_ptr<Job>> failed;
    failed.swap(failed_);
    lock.unlock();
    for (const auto& job : failed) {
      for (const Stream& stream : streams_) {
        static_cast<void>(wait_quietly([&] { stream.synchronize(); }));
      }
      job->state->fail(job->failure);
    }
    lock.lock();
  }

  const std::shared_ptr<EventPool> events_;
  const std::array<Stream, 2> streams_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by the mutex.
  CopyTurns turns_;
  PartSizes sizes_;
  std::list<std::shared_ptr<Job>> jobs_;
  std::list<std::shared_ptr<Job>> failed_;  ///< for the thread to end
  std::size_t parts_ = 0;                   ///< enqueued so far
  bool closed_ = false;
};

PacedCopier::PacedCopier(const Device& device, std::shared_ptr<EventPool> events)
    : small_part_(device.info().tuning.small_part_bytes),
      queue_(std::make_shared<Queue>(device, std::move(events))) {}

PacedCopier::~PacedCopier() {
  queue_->close();
  if (thread_.joinable()) thread_.join();
  try {
    queue_->synchronize();
  } catch (const std::exception& error) {
    log_warning(error.what());
  }
}

void PacedCopier::submit(const std::shared_ptr<TransferState>& state, std::byte* destination,
                         const std::byte* source, EventPool::Handle after) {
  std::call_once(started_, [&] { thread_ = start_thread("penstock-pace", [this] { queue_->run(); }); });
  auto job = std::make_shared<Queue::Job>();
  job->state = state;
  job->destination = destination;
  job->source = source;
  job->left = state->bytes;
  job->after = std::move(after);
  state->hurry = [queue = std::weak_ptr(queue_), weak = std::weak_ptr(job)] {
    const auto alive = queue.lock();
    const auto waiting = weak.lock();
    if (alive && waiting) alive->hurry(*waiting);
  };
  queue_->push(job);
}

}  // namespace penstock
