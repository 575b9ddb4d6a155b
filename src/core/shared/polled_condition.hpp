#pragma once

#include "core/shared/pause.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace penstock {

/// A condition variable for threads that hand work to each other in quick succession. Waiters poll before
/// they sleep, as waking takes longer than such work; see PollingTime. All waiters hold the same mutex, whose
/// state the condition is about, and may wake without reason.
class PolledCondition {
 public:
  using Clock = std::chrono::steady_clock;

  void wait(std::unique_lock<std::mutex>& lock) {
    const Waiting waiting(*this);
    if (!poll(lock)) condition_.wait(lock);
  }
  void wait_until(std::unique_lock<std::mutex>& lock, Clock::time_point end) {
    const Waiting waiting(*this);
    if (!poll(lock)) condition_.wait_until(lock, end);
  }
  /// Call it with each change of the state, while the mutex is still held. Otherwise a waiter that has just
  /// polled in vain would sleep on a state that is no more.
  void note_change() noexcept { notices_.fetch_add(1, std::memory_order_release); }
  /// Call it after that, with the mutex or without.
  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }

 private:
  // About twice as long as a thread takes to sleep and to wake.
  static constexpr std::chrono::microseconds kPolling{50};

  /// Under the mutex at its beginning and at its end.
  struct Waiting {
    explicit Waiting(PolledCondition& condition) : polling(condition.polling_) { polling.work_ends(); }
    ~Waiting() { polling.work_begins(); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    PollingTime& polling;
  };

  /// True once a change was noted; false if the time for polling is over, and there was none.
  bool poll(std::unique_lock<std::mutex>& lock) {
    const auto limit = polling_.get();
    if (limit.count() == 0) return false;
    const std::uint64_t seen = notices_.load(std::memory_order_relaxed);
    const auto is_noticed = [&] { return notices_.load(std::memory_order_acquire) != seen; };
    lock.unlock();
    spin_until(is_noticed, limit);
    lock_soon(lock);
    return is_noticed();  // also what came before the lock was there again
  }

  std::condition_variable condition_;
  std::atomic<std::uint64_t> notices_{0};
  PollingTime polling_{kPolling};  // guarded by the mutex
};

}  // namespace penstock
