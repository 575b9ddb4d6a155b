#include <penstock/core/error.hpp>
#include <penstock/core/fork.hpp>
#include <penstock/core/log.hpp>
#include <penstock/core/pause.hpp>
#include <penstock/core/worker_team.hpp>

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace penstock {

// A call opens the gate; workers that see it open join, take indices until none are left, and leave. The
// caller closes the gate when no index is left, and waits for those who joined: never for a worker that is
// still asleep, which will find the gate shut. That is what keeps a call of a few microseconds possible with
// sleeping workers.
//
// gate = epoch << 32 | open << 31 | joined
struct WorkerTeam::State {
  static constexpr std::uint64_t kOpen = std::uint64_t{1} << 31;

  explicit State(WorkerTeamOptions given) : options(std::move(given)), polling(options.spin) {}

  const WorkerTeamOptions options;
  PollingTime polling;  // of idle workers; told under call_mutex
  std::uint64_t generation = fork_generation();
  std::mutex call_mutex;

  alignas(64) std::atomic<std::uint64_t> gate{0};
  std::atomic<std::uint32_t> wake{0};  // bumped with each opening, slept on by workers
  std::atomic<std::uint32_t> left{0};  // bumped by the last to leave a shut gate, slept on by the caller
  std::atomic<bool> stop{false};

  alignas(64) std::atomic<std::size_t> next{0};
  std::size_t count = 0;
  const FunctionRef<void(std::size_t)>* body = nullptr;
  std::atomic<bool> failed{false};
  std::exception_ptr failure;

  std::vector<std::thread> workers;

  void work() {
    for (;;) {
      const std::size_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= count || failed.load(std::memory_order_relaxed)) return;
      try {
        (*body)(i);
      } catch (...) {
        if (!failed.exchange(true)) failure = std::current_exception();
      }
    }
  }

  bool join() {
    std::uint64_t seen = gate.load(std::memory_order_acquire);
    while ((seen & kOpen) != 0) {
      if (gate.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire)) return true;
    }
    return false;
  }

  void leave() {
    const std::uint64_t before = gate.fetch_sub(1, std::memory_order_acq_rel);
    if ((before & kOpen) == 0 && (before & (kOpen - 1)) == 1) {
      left.fetch_add(1, std::memory_order_release);
      left.notify_one();
    }
  }

  void run_worker() {
    if (options.on_start) options.on_start();
    std::uint32_t seen = 0;
    for (;;) {
      const auto called = [&] { return wake.load(std::memory_order_acquire) != seen; };
      if (!spin_until(called, polling.get())) wake.wait(seen, std::memory_order_acquire);
      // In this order: a wake that is seen here and not above may be the last, and then `stop` says so.
      seen = wake.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_acquire)) return;
      if (join()) {
        work();
        leave();
      }
    }
  }

  void call(std::size_t n, const FunctionRef<void(std::size_t)>& function) {
    polling.work_begins();
    next.store(0, std::memory_order_relaxed);
    count = n;
    body = &function;
    failed.store(false, std::memory_order_relaxed);
    const std::uint64_t epoch = (gate.load(std::memory_order_relaxed) >> 32) + 1;
    gate.store(epoch << 32 | kOpen, std::memory_order_release);
    wake.fetch_add(1, std::memory_order_release);
    wake.notify_all();
    work();
    if ((gate.fetch_and(~kOpen, std::memory_order_acq_rel) & (kOpen - 1)) != 0) {
      const auto done = [&] { return (gate.load(std::memory_order_acquire) & (kOpen - 1)) == 0; };
      if (!spin_until(done, options.spin)) {
        // The last to leave may bump `left` only after this call has returned; a later call's wait then looks
        // once more than it needs to.
        for (std::uint32_t mark = left.load(std::memory_order_acquire); !done();
             mark = left.load(std::memory_order_acquire)) {
          left.wait(mark, std::memory_order_acquire);
        }
      }
    }
    polling.work_ends();
    if (failed.load(std::memory_order_relaxed)) std::rethrow_exception(std::exchange(failure, nullptr));
  }

  void call_alone(std::size_t n, const FunctionRef<void(std::size_t)>& function) {
    for (std::size_t i = 0; i < n; ++i) function(i);
  }
};

WorkerTeam::WorkerTeam(WorkerTeamOptions options) : state_(std::make_unique<State>(std::move(options))) {
  if (state_->options.threads > WorkerTeamOptions::kMostThreads) {
    throw InvalidArgument(fmt::format("a team of {} threads was asked for; use at most {}",
                                      state_->options.threads, WorkerTeamOptions::kMostThreads));
  }
  state_->workers.reserve(state_->options.threads);
  try {
    for (std::size_t i = 1; i < state_->options.threads; ++i) {
      state_->workers.emplace_back([state = state_.get()] { state->run_worker(); });
    }
  } catch (const std::system_error& error) {
    log_warning(std::string("a team works with fewer threads than asked for: ") + error.what());
  }
}

WorkerTeam::~WorkerTeam() {
  if (state_->generation != fork_generation()) {
    static_cast<void>(
        state_.release());  // the threads are the parent's: nothing here can be joined or torn down
    return;
  }
  state_->stop.store(true, std::memory_order_release);
  state_->wake.fetch_add(1, std::memory_order_release);
  state_->wake.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

std::size_t WorkerTeam::threads() const noexcept { return state_->workers.size() + 1; }

void WorkerTeam::for_each(std::size_t count, FunctionRef<void(std::size_t)> body) {
  if (state_->workers.empty() || count < 2 || state_->generation != fork_generation()) {
    return state_->call_alone(count, body);
  }
  const std::lock_guard lock(state_->call_mutex);
  state_->call(count, body);
}

bool WorkerTeam::try_for_each(std::size_t count, FunctionRef<void(std::size_t)> body) {
  if (state_->workers.empty() || count < 2 || state_->generation != fork_generation()) {
    state_->call_alone(count, body);
    return true;
  }
  const std::unique_lock lock(state_->call_mutex, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  state_->call(count, body);
  return true;
}

}  // namespace penstock
