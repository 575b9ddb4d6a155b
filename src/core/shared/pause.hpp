#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace penstock {

/// Tells the processor that this thread polls.
inline void cpu_pause() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Polls `done` for up to `limit`. Returns true as soon as `done` does.
template <typename Predicate>
bool spin_until(Predicate&& done, std::chrono::nanoseconds limit) {
  if (done()) return true;
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (;;) {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      cpu_pause();
    }
    if (std::chrono::steady_clock::now() >= deadline) return done();
  }
}

/// Sleeps until `done` returns true, and looks for it in between. A nap lasts up to a fifth of the time slept
/// so far, and from 10 to 200 µs. On threads that start_thread did not start, Linux adds 50 µs to each.
template <typename Predicate>
void nap_until(Predicate&& done) {
  using std::chrono::microseconds;
  for (microseconds nap{10}; !done(); nap = std::min(nap * 5 / 4, microseconds(200))) {
    std::this_thread::sleep_for(nap);
  }
}

/// Locks a mutex that others hold for less time than a thread takes to wake: polls before it sleeps.
inline void lock_soon(std::unique_lock<std::mutex>& lock) {
  if (!spin_until([&] { return lock.try_lock(); }, std::chrono::microseconds(20))) lock.lock();
}

/// How long threads that wait for work poll before they sleep. While work comes in quick succession, they
/// poll for as long as is allowed. Once work came later than that twice in a row, they do not poll: it would
/// only keep processors from others. One thread at a time says when work begins and ends; any thread may ask.
class PollingTime {
 public:
  using Clock = std::chrono::steady_clock;

  explicit PollingTime(std::chrono::nanoseconds most) : most_(most), now_(most) {}

  void work_begins(Clock::time_point at = Clock::now()) noexcept {
    if (!worked_) return;
    const bool late = at - ended_ > most_;
    now_.store(late && was_late_ ? std::chrono::nanoseconds(0) : most_, std::memory_order_relaxed);
    was_late_ = late;
  }
  void work_ends(Clock::time_point at = Clock::now()) noexcept {
    worked_ = true;
    ended_ = at;
  }
  [[nodiscard]] std::chrono::nanoseconds get() const noexcept { return now_.load(std::memory_order_relaxed); }

 private:
  const std::chrono::nanoseconds most_;
  std::atomic<std::chrono::nanoseconds> now_;
  bool worked_ = false;
  bool was_late_ = false;
  Clock::time_point ended_;
};

}  // namespace penstock
