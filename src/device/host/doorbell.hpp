#pragma once

#include "core/shared/pause.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>

namespace penstock {

/// Lets threads sleep until a condition over atomics holds. It only wakes: all its own accesses are relaxed.
/// If a caller forgets to read the atomic that carries the ordering, the bell does not order it, and the
/// thread sanitizer reports the race. A mutex with a condition variable, or std::atomic::wait, would order
/// sleepers after wakers and hide it.
class Doorbell {
 public:
  /// Returns when `done()` holds. Polls it for `spin`, then sleeps. `done` reads atomics written before
  /// `ring`.
  template <typename Predicate>
  void wait(Predicate&& done, std::chrono::nanoseconds spin) noexcept {
    if (spin_until(done, spin)) return;
    sleepers_.fetch_add(1, std::memory_order_relaxed);
    for (;;) {
      const std::uint32_t seen = rung_.load(std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (done()) break;
      syscall(SYS_futex, &rung_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
    }
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

  /// Makes all sleepers look at their condition again.
  void ring() noexcept {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_relaxed) == 0) return;
    rung_.fetch_add(1, std::memory_order_relaxed);
    syscall(SYS_futex, &rung_, FUTEX_WAKE_PRIVATE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
  }

 private:
  static_assert(sizeof(std::atomic<std::uint32_t>) == 4, "the kernel compares a plain 32-bit word");
  std::atomic<std::uint32_t> rung_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

}  // namespace penstock
