#include "core/shared/pause.hpp"
#include "core/shared/start_thread.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/fork.hpp>
#include <penstock/core/host_workers.hpp>
#include <penstock/core/log.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock {

namespace {

/// How long idle workers poll for the next loop.
constexpr std::chrono::microseconds kLoopPolling{200};
/// Workers that a caller wakes, and each worker that wakes. A waking holds its caller up for up to 10 µs, and
/// the woken thread works some 60 µs later: with fewer, a team of twelve takes a third row of wakings.
constexpr int kWakings = 4;
/// How long a caller polls for workers to leave: about as long as a piece of work takes.
constexpr std::chrono::microseconds kLeavePolling{50};

/// The workers of a team, and how many may work while others share the processors.
class Places {
 public:
  explicit Places(std::shared_ptr<SharedProcessors> processors) : processors_(std::move(processors)) {}

  [[nodiscard]] const std::shared_ptr<SharedProcessors>& processors() const noexcept { return processors_; }
  [[nodiscard]] std::size_t most() const noexcept {
    return processors_ ? processors_->workers() : std::numeric_limits<std::size_t>::max();
  }
  [[nodiscard]] bool has_room() const noexcept { return taken_.load(std::memory_order_relaxed) < most(); }
  /// Since one more team works, some worker should leave.
  [[nodiscard]] bool is_crowded() const noexcept { return taken_.load(std::memory_order_relaxed) > most(); }
  void take() noexcept { taken_.fetch_add(1, std::memory_order_relaxed); }
  void leave() noexcept { taken_.fetch_sub(1, std::memory_order_relaxed); }

 private:
  const std::shared_ptr<SharedProcessors> processors_;
  std::atomic<std::size_t> taken_{0};  ///< by workers that are in a source
};

/// The indices of a for_each.
class Loop final : public HostWorkers::Source {
 public:
  Loop(std::size_t count, const FunctionRef<void(std::size_t)>& body, std::size_t threads,
       const PollingTime& polling, const Places& places)
      : Source(std::min(threads, count) - 1),
        count_(count),
        body_(body),
        polling_(polling),
        places_(places) {}

  bool work() noexcept override {
    bool worked = false;
    while (run_next()) {
      worked = true;
      if (places_.is_crowded()) break;
    }
    return worked;
  }
  /// By the caller, who wakes more workers with `call` once other teams leave more processors.
  void work_to_the_end(FunctionRef<void()> call) noexcept {
    std::size_t most = places_.most();
    while (run_next()) {
      const std::size_t now = places_.most();
      if (now > most) call();
      most = now;
    }
  }
  [[nodiscard]] std::chrono::nanoseconds polling() const noexcept override { return polling_.get(); }

  /// Call it once no worker is in the loop.
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  bool run_next() noexcept {
    if (failed_.load(std::memory_order_relaxed)) return false;
    const std::size_t i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= count_) return false;
    try {
      body_(i);
    } catch (...) {
      if (!failed_.exchange(true)) failure_ = std::current_exception();
    }
    return true;
  }

  const std::size_t count_;
  const FunctionRef<void(std::size_t)>& body_;
  const PollingTime& polling_;
  const Places& places_;
  alignas(64) std::atomic<std::size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;
};

}  // namespace

struct HostWorkers::State {
  explicit State(HostWorkersOptions given) : options(std::move(given)), places(options.processors) {}
  ~State() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    calls.fetch_add(1, std::memory_order_release);
    calls.notify_all();
    for (std::thread& worker : workers) worker.join();
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  const HostWorkersOptions options;
  const std::uint64_t generation = fork_generation();
  Places places;
  std::vector<std::thread> workers;

  std::mutex mutex;
  std::condition_variable left;         // a worker has left a source
  std::vector<Source*> sources;         // guarded by the mutex
  PollingTime polling{kLoopPolling};    // between loops; told under the mutex
  std::size_t loops = 0;                // guarded by the mutex
  bool stop = false;                    // guarded by the mutex
  std::atomic<std::uint32_t> calls{0};  // bumped when workers should ask the sources; they sleep on it
  std::atomic<std::size_t> to_wake{0};  // workers that those who wake are still to wake
  std::atomic<std::size_t> pollers{0};  // workers that poll for the next call
  std::atomic<std::size_t> works{0};    // of loops and sources, under way

  [[nodiscard]] bool works_alone() const noexcept {
    return workers.empty() || generation != fork_generation();
  }

  /// Has as many workers ask the sources as `source` has places. Wakes some, which wake some each, and so on.
  void call(const Source& source) noexcept {
    // In this order, as poll() leaves and sleeps: a poller that is counted here sees the call.
    calls.fetch_add(1);
    const std::size_t awake = pollers.load() + source.inside_.load(std::memory_order_relaxed);
    const std::size_t most = std::min(source.most_, places.most());
    const std::size_t wanted = most - std::min(most, awake);
    std::size_t owed = to_wake.load(std::memory_order_relaxed);
    while (owed < wanted && !to_wake.compare_exchange_weak(owed, wanted, std::memory_order_relaxed)) {
    }
    wake_some();
  }

  void wake_some() noexcept {
    for (int i = 0; i < kWakings; ++i) {
      std::size_t owed = to_wake.load(std::memory_order_relaxed);
      do {
        if (owed == 0) return;
      } while (!to_wake.compare_exchange_weak(owed, owed - 1, std::memory_order_relaxed));
      calls.notify_one();
    }
  }

  void run() {
    if (options.on_start) options.on_start();
    Latest latest;
    std::unique_lock lock(mutex);
    while (!stop) {
      const std::uint32_t seen = calls.load(std::memory_order_acquire);
      if (ask_all(lock, latest)) continue;
      const std::chrono::nanoseconds polled = polling_after(latest);
      lock.unlock();
      if (!poll(seen, polled, latest.places)) {
        calls.wait(seen);
        latest = {};
        wake_some();
      }
      lock_soon(lock);
    }
  }

  /// The source that a worker has worked for last since it slept, which may be gone, and the most places of
  /// those since then.
  struct Latest {
    const Source* source = nullptr;
    std::size_t places = 0;
  };

  /// How long to poll for more work like the latest. If its source is gone, it was a loop.
  [[nodiscard]] std::chrono::nanoseconds polling_after(const Latest& latest) const {
    if (latest.source == nullptr) return {};
    return std::ranges::find(sources, latest.source) != sources.end() ? latest.source->polling()
                                                                      : polling.get();
  }

  /// True once there was a call. No more workers poll than there is work for: they take processors from those
  /// who work.
  [[nodiscard]] bool poll(std::uint32_t seen, std::chrono::nanoseconds limit, std::size_t wanted) noexcept {
    const bool may_poll = pollers.fetch_add(1) < std::min(wanted, places.most());
    const auto called = [&] { return calls.load(std::memory_order_acquire) != seen; };
    const bool was_called = spin_until(called, may_poll ? limit : std::chrono::nanoseconds(0));
    pollers.fetch_sub(1);
    return was_called;
  }

  /// Does one piece of each source. True if there was any; `latest` is then the last of these sources. If a
  /// source is removed meanwhile, another may be missed, so removing counts as a call.
  bool ask_all(std::unique_lock<std::mutex>& lock, Latest& latest) {
    bool worked = false;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      Source& source = *sources[i];
      if (source.inside_.load(std::memory_order_relaxed) >= source.most_ || !places.has_room()) continue;
      source.inside_.fetch_add(1, std::memory_order_relaxed);
      places.take();
      lock.unlock();
      if (source.work()) {
        worked = true;
        // After a loop of few pieces, those who worked for a larger one before poll on: it comes again.
        latest = {&source, std::max(latest.places, source.most_)};
      }
      lock_soon(lock);
      places.leave();
      // From here on the source may be removed.
      if (source.inside_.fetch_sub(1, std::memory_order_release) == 1) left.notify_all();
    }
    return worked;
  }
};

HostWorkers::HostWorkers(HostWorkersOptions options) : state_(std::make_unique<State>(std::move(options))) {
  if (state_->options.threads > HostWorkersOptions::kMostThreads) {
    throw InvalidArgument(fmt::format("{} threads were asked for; use at most {}", state_->options.threads,
                                      HostWorkersOptions::kMostThreads));
  }
  state_->workers.reserve(state_->options.threads);
  try {
    for (std::size_t i = 1; i < state_->options.threads; ++i) {
      state_->workers.push_back(start_thread("penstock-worker", [state = state_.get()] { state->run(); }));
    }
  } catch (const Unsupported& error) {
    log_warning(std::string("host threads work with fewer than were asked for: ") + error.what());
  }
}

HostWorkers::~HostWorkers() {
  if (state_->generation != fork_generation()) {
    static_cast<void>(state_.release());  // the threads belong to the parent: they cannot be joined here
  }
}

std::size_t HostWorkers::threads() const noexcept { return state_->workers.size() + 1; }

const std::shared_ptr<SharedProcessors>& HostWorkers::processors() const noexcept {
  return state_->places.processors();
}

void HostWorkers::for_each(std::size_t count, FunctionRef<void(std::size_t)> body, std::size_t threads) {
  if (count < 2 || threads < 2 || state_->works_alone()) {
    for (std::size_t i = 0; i < count; ++i) body(i);
    return;
  }
  Loop loop(count, body, threads, state_->polling, state_->places);
  {
    const std::lock_guard lock(state_->mutex);
    state_->sources.push_back(&loop);
    if (state_->loops++ == 0) state_->polling.work_begins();
  }
  work_begins();
  wake(loop);
  loop.work_to_the_end([&] { wake(loop); });
  remove(loop);
  work_ends();
  {
    const std::lock_guard lock(state_->mutex);
    if (--state_->loops == 0) state_->polling.work_ends();
  }
  loop.rethrow();
}

void HostWorkers::add(Source& source) {
  const std::lock_guard lock(state_->mutex);
  state_->sources.push_back(&source);
}

void HostWorkers::remove(Source& source) noexcept {
  {
    const std::lock_guard lock(state_->mutex);
    std::erase(state_->sources, &source);
    state_->calls.fetch_add(1, std::memory_order_release);
  }
  const auto empty = [&] { return source.inside_.load(std::memory_order_acquire) == 0; };
  if (spin_until(empty, kLeavePolling)) return;
  std::unique_lock lock(state_->mutex);
  state_->left.wait(lock, empty);
}

void HostWorkers::wake(const Source& source) noexcept { state_->call(source); }

void HostWorkers::work_begins() noexcept {
  if (state_->works.fetch_add(1) == 0 && processors()) processors()->team_begins();
}

void HostWorkers::work_ends() noexcept {
  if (state_->works.fetch_sub(1) == 1 && processors()) processors()->team_ends();
}

}  // namespace penstock
