#include <penstock/core/fork.hpp>

#include <pthread.h>

#include <atomic>
#include <utility>

namespace penstock {

namespace {

std::atomic<std::uint64_t> generation{0};
std::atomic<std::uint64_t> worker_forks{0};
std::atomic<std::uint64_t> other_forks{0};
thread_local bool are_workers = false;

void count() { (are_workers ? worker_forks : other_forks).fetch_add(1); }

[[maybe_unused]] const int registered =
    pthread_atfork(&count, &count, [] { generation.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

std::uint64_t fork_generation() noexcept { return generation.load(std::memory_order_relaxed); }

ForkCounts fork_counts() noexcept { return {worker_forks.load(), other_forks.load()}; }

bool forks_are_workers(bool workers) noexcept { return std::exchange(are_workers, workers); }

}  // namespace penstock
