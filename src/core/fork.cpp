#include <penstock/core/fork.hpp>

#include <pthread.h>

#include <atomic>

namespace penstock {

namespace {

std::atomic<std::uint64_t> generation{0};
std::atomic<std::uint64_t> forks{0};
thread_local bool is_counted = true;

void count() {
  if (is_counted) forks.fetch_add(1);
}

[[maybe_unused]] const int registered =
    pthread_atfork(&count, &count, [] { generation.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

std::uint64_t fork_generation() noexcept { return generation.load(std::memory_order_relaxed); }

std::uint64_t fork_count() noexcept { return forks.load(); }

void count_forks(bool counted) noexcept { is_counted = counted; }

}  // namespace penstock
