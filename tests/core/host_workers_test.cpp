#include "core/shared/pause.hpp"
#include "support/fork.hpp"
#include "support/threads.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/host_workers.hpp>

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace penstock {
namespace {

using namespace std::chrono_literals;

TEST(PollingTime, IsForWorkInQuickSuccession) {
  PollingTime polling(100us);
  const PollingTime::Clock::time_point zero{};
  EXPECT_EQ(polling.get(), 100us);
  polling.work_begins(zero + 5s);
  EXPECT_EQ(polling.get(), 100us) << "nothing is known yet";
  polling.work_ends(zero + 6s);
  polling.work_begins(zero + 6s + 100us);
  EXPECT_EQ(polling.get(), 100us);
  polling.work_ends(zero + 7s);
  polling.work_begins(zero + 7s + 101us);
  EXPECT_EQ(polling.get(), 100us) << "once may be chance, or every other time";
  polling.work_ends(zero + 8s);
  polling.work_begins(zero + 9s);
  EXPECT_EQ(polling.get(), 0us);
  polling.work_ends(zero + 10s);
  EXPECT_EQ(polling.get(), 0us);
  polling.work_begins(zero + 10s + 1us);
  EXPECT_EQ(polling.get(), 100us);
}

HostWorkersOptions with_threads(std::size_t threads) { return {.threads = threads, .on_start = {}}; }

/// Returns once `threads` threads are in one loop together.
void meet(HostWorkers& workers, int threads) {
  std::atomic<int> together{0};
  workers.for_each(static_cast<std::size_t>(threads), [&](std::size_t) {
    ++together;
    while (together.load() < threads) std::this_thread::yield();
  });
}

TEST(HostWorkersTest, EachIndexOnce) {
  HostWorkers workers(with_threads(4));
  EXPECT_EQ(workers.threads(), 4u);
  for (const std::size_t count : {0u, 1u, 2u, 3u, 4u, 5u, 100u, 1000u}) {
    std::vector<std::atomic<int>> calls(count);
    workers.for_each(count, [&](std::size_t i) { ++calls.at(i); });
    for (const auto& one : calls) ASSERT_EQ(one.load(), 1) << count;
  }
}

TEST(HostWorkersTest, WhatBodiesWroteIsVisibleAfterwards) {
  HostWorkers workers(with_threads(3));
  std::vector<int> values(64);
  for (int round = 1; round <= 2000; ++round) {
    workers.for_each(values.size(), [&](std::size_t i) { values[i] = round; });
    for (const int value : values) ASSERT_EQ(value, round);
  }
}

TEST(HostWorkersTest, WorkersHelp) {
  HostWorkers workers(with_threads(2));
  meet(workers, 2);
}

/// A team whose workers' sleep can be watched.
class WatchedWorkers {
 public:
  explicit WatchedWorkers(std::size_t threads)
      : workers({.threads = threads, .on_start = [this] {
                   const std::lock_guard lock(mutex_);
                   ids_.push_back(testing::this_thread());
                 }}) {}
  /// True once so many workers sleep for good. Gives up after a time.
  [[nodiscard]] bool fall_asleep(std::ptrdiff_t count) {
    const auto end = std::chrono::steady_clock::now() + 120s;
    for (int looks = 0; looks < 50; std::this_thread::yield()) {
      const std::lock_guard lock(mutex_);
      looks = std::ranges::count_if(ids_, testing::is_asleep) == count ? looks + 1 : 0;
      if (looks == 0 && std::chrono::steady_clock::now() > end) return false;
    }
    return true;
  }

 private:
  std::mutex mutex_;
  std::vector<pid_t> ids_;

 public:
  HostWorkers workers;
};

TEST(HostWorkersTest, WorkersThatSleepAreWoken) {
  WatchedWorkers watched(8);
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(watched.fall_asleep(7));
    meet(watched.workers, 8);
  }
}

TEST(HostWorkersTest, CallReturnsOnlyAfterTheSlowestBody) {
  HostWorkers workers(with_threads(2));
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> entered{0};
    std::atomic<bool> slow_done{false};
    const auto caller = std::this_thread::get_id();
    workers.for_each(2, [&](std::size_t) {
      ++entered;
      while (entered.load() < 2) std::this_thread::yield();
      if (std::this_thread::get_id() != caller) {
        std::this_thread::sleep_for(500us);  // longer than the caller polls
        slow_done = true;
      }
    });
    EXPECT_TRUE(slow_done.load());
  }
}

TEST(HostWorkersTest, FirstExceptionArrivesAndTheRestIsSkipped) {
  HostWorkers workers(with_threads(3));
  constexpr std::size_t kMany = 1'000'000'000;  // minutes of work if the rest is not skipped
  for (int round = 0; round < 50; ++round) {
    std::atomic<std::size_t> begun{0};
    EXPECT_THROW(workers.for_each(kMany,
                                  [&](std::size_t i) {
                                    ++begun;
                                    if (i == 3) throw std::runtime_error("three");
                                  }),
                 std::runtime_error);
    EXPECT_LT(begun.load(), kMany);
    std::atomic<int> calls{0};
    workers.for_each(10, [&](std::size_t) { ++calls; });
    ASSERT_EQ(calls.load(), 10);
  }
}

TEST(HostWorkersTest, ManyBodiesThrowAtOnce) {
  constexpr std::size_t kThreads = 4;
  HostWorkers workers(with_threads(kThreads));
  for (int round = 0; round < 20; ++round) {
    std::atomic<std::size_t> inside{0};
    EXPECT_THROW(workers.for_each(kThreads,
                                  [&](std::size_t) {
                                    ++inside;
                                    while (inside.load() < kThreads) std::this_thread::yield();
                                    throw std::runtime_error("each of them");
                                  }),
                 std::runtime_error);
  }
}

// Workers that are late for one call join the next one without being woken for it.
TEST(HostWorkersTest, CallsInQuickSuccessionAreSeenWhole) {
  HostWorkers workers(with_threads(3));
  std::vector<int> values(2);
  for (int round = 1; round <= 5000; ++round) {
    workers.for_each(values.size(), [&values, round](std::size_t i) { values[i] = round; });
    ASSERT_EQ(values[0] + values[1], 2 * round);
  }
}

TEST(HostWorkersTest, CallersWorkSideBySide) {
  HostWorkers workers(with_threads(3));
  std::atomic<int> calls{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        int mine[8] = {};
        workers.for_each(8, [&](std::size_t i) { ++mine[i]; });
        for (const int once : mine) calls += once;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(calls.load(), 3 * 300 * 8);
}

TEST(HostWorkersTest, ACallerWorksAloneWhileTheOthersAreBusy) {
  HostWorkers workers(with_threads(2));
  std::atomic<int> entered{0};
  std::atomic<bool> leave{false};
  std::thread other([&] {
    workers.for_each(2, [&](std::size_t) {
      ++entered;
      while (!leave.load()) std::this_thread::yield();
    });
  });
  while (entered.load() < 2) std::this_thread::yield();
  int calls = 0;
  workers.for_each(5, [&](std::size_t) { ++calls; });
  EXPECT_EQ(calls, 5);
  leave = true;
  other.join();
}

/// `pieces` of work. Each takes until `go` is set.
class Pieces final : public HostWorkers::Source {
 public:
  explicit Pieces(long pieces, std::size_t workers = 16, std::chrono::nanoseconds polling = {})
      : Source(workers), left_(pieces), polling_(polling) {}
  bool work() noexcept override {
    if (left_.fetch_sub(1) <= 0) return false;
    ++begun;
    while (!go.load()) std::this_thread::yield();
    ++done;
    return true;
  }
  [[nodiscard]] std::chrono::nanoseconds polling() const noexcept override { return polling_; }
  void add(long pieces) { left_ = pieces; }

  std::atomic<int> begun{0};
  std::atomic<int> done{0};
  std::atomic<bool> go{true};

 private:
  std::atomic<long> left_;
  const std::chrono::nanoseconds polling_;
};

TEST(HostWorkersTest, WorkersAskASource) {
  HostWorkers workers(with_threads(3));
  Pieces source(100);
  workers.add(source);
  for (int round = 1; round <= 50; ++round) {
    source.add(10);
    workers.wake(source);
    while (source.done.load() < 10) std::this_thread::yield();
    EXPECT_EQ(source.begun.exchange(0), 10);
    source.done = 0;
  }
  workers.remove(source);
}

TEST(HostWorkersTest, ASourceOrLoopHasAsManyAsItWants) {
  HostWorkers workers(with_threads(8));
  for (const std::size_t wanted : {0u, 1u, 3u}) {
    std::mutex mutex;
    std::size_t inside = 0;
    std::size_t most = 0;
    const auto count = [&](std::size_t) {
      {
        const std::lock_guard lock(mutex);
        most = std::max(most, ++inside);
      }
      std::this_thread::yield();
      const std::lock_guard lock(mutex);
      --inside;
    };
    workers.for_each(2000, count, wanted + 1);
    EXPECT_LE(most, wanted + 1);
    Pieces source(8, wanted);
    source.go = false;
    workers.add(source);
    workers.wake(source);
    while (source.begun.load() < static_cast<int>(wanted)) std::this_thread::yield();
    for (int look = 0; look < 1000; ++look) std::this_thread::yield();
    EXPECT_EQ(source.begun.load(), static_cast<int>(wanted));
    source.go = true;
    workers.remove(source);
  }
}

TEST(HostWorkersTest, NoMoreWorkersPollThanASourceWants) {
  WatchedWorkers watched(4);
  HostWorkers& workers = watched.workers;
  Pieces source(1, 1, 1h);
  Pieces other(1, 1, 1h);
  workers.add(source);
  workers.add(other);
  workers.wake(source);
  while (source.done.load() < 1) std::this_thread::yield();
  ASSERT_TRUE(watched.fall_asleep(2));
  other.go = false;
  other.add(1);
  workers.wake(other);
  while (other.begun.load() < 2) std::this_thread::yield();
  source.add(1);
  workers.wake(source);
  while (source.done.load() < 2) std::this_thread::yield();
  EXPECT_TRUE(watched.fall_asleep(1)) << "one polls, and one is at the other source";
  other.go = true;
  EXPECT_TRUE(watched.fall_asleep(2)) << "one polls for both";
  workers.remove(other);
  workers.remove(source);
}

TEST(HostWorkersTest, AfterLittleWorkThoseWhoHadMoreBeforePollOn) {
  WatchedWorkers watched(4);
  HostWorkers& workers = watched.workers;
  Pieces large(3, 3, 1h);
  Pieces small(1, 1, 1h);
  large.go = false;
  workers.add(large);
  workers.wake(large);
  while (large.begun.load() < 3) std::this_thread::yield();
  large.go = true;
  ASSERT_TRUE(watched.fall_asleep(0));
  workers.add(small);
  workers.wake(small);
  while (small.done.load() < 1) std::this_thread::yield();
  std::this_thread::sleep_for(20ms);
  EXPECT_TRUE(watched.fall_asleep(0));
  workers.remove(small);
  workers.remove(large);
}

TEST(HostWorkersTest, ASourceGoesWhenNobodyIsInIt) {
  HostWorkers workers(with_threads(2));
  Pieces source(1);
  source.go = false;
  workers.add(source);
  workers.wake(source);
  while (source.begun.load() == 0) std::this_thread::yield();
  testing::Background removing([&] { workers.remove(source); });
  removing.wait_until_stuck();
  EXPECT_FALSE(removing.ended());
  source.go = true;
  removing.join();
  EXPECT_EQ(source.done.load(), 1);
  source.add(5);
  workers.wake(source);
  meet(workers, 2);
  EXPECT_EQ(source.begun.load(), 1) << "it is not asked any more";
}

/// Writes late, and tells nobody but whoever removes it.
class LateWriter final : public HostWorkers::Source {
 public:
  LateWriter() : Source(1) {}
  bool work() noexcept override {
    if (asked.exchange(true)) return false;
    for (int i = 0; i < 100; ++i) cpu_pause();
    value = 1;
    return false;
  }
  [[nodiscard]] std::chrono::nanoseconds polling() const noexcept override { return {}; }

  std::atomic<bool> asked{false};
  int value = 0;
};

TEST(HostWorkersTest, WhatASourceWroteIsVisibleOnceItIsRemoved) {
  HostWorkers workers(with_threads(2));
  for (int round = 0; round < 200; ++round) {
    LateWriter source;
    workers.add(source);
    workers.wake(source);
    while (!source.asked.load()) std::this_thread::yield();
    workers.remove(source);
    ASSERT_EQ(source.value, 1);
  }
}

TEST(HostWorkersTest, SourcesAndLoopsTakeTurns) {
  HostWorkers workers(with_threads(2));
  Pieces first(1L << 60);
  Pieces second(1L << 60);
  workers.add(first);
  workers.add(second);
  workers.wake(first);
  while (first.done.load() < 100 || second.done.load() < 100) std::this_thread::yield();
  meet(workers, 2);
  workers.remove(second);
  workers.remove(first);
}

/// A source without work. Finding that out takes until `go` is set.
class Nothing final : public HostWorkers::Source {
 public:
  Nothing() : Source(1) {}
  bool work() noexcept override {
    asked = true;
    while (!go.load()) std::this_thread::yield();
    return false;
  }
  [[nodiscard]] std::chrono::nanoseconds polling() const noexcept override { return {}; }

  std::atomic<bool> asked{false};
  std::atomic<bool> go{false};
};

// The worker misses the second source while the first is removed, and is not called again for it.
TEST(HostWorkersTest, ASourceThatGoesHidesNoOther) {
  HostWorkers workers(with_threads(2));
  Nothing first;
  Pieces second(1);
  workers.add(first);
  workers.add(second);
  workers.wake(second);
  while (!first.asked.load()) std::this_thread::yield();
  testing::Background removing([&] { workers.remove(first); });
  removing.wait_until_stuck();
  first.go = true;
  while (second.done.load() == 0) std::this_thread::yield();
  removing.join();
  workers.remove(second);
}

TEST(HostWorkersTest, ComesAndGoesQuickly) {
  // A worker that misses the order to stop hangs the destructor.
  for (int round = 0; round < 500; ++round) {
    HostWorkers workers(with_threads(3));
    std::atomic<int> calls{0};
    if (round % 2 == 0) workers.for_each(3, [&](std::size_t) { ++calls; });
    ASSERT_EQ(calls.load(), round % 2 == 0 ? 3 : 0);
  }
}

/// True if the whole loop was done in a child, and the child could let go of the workers.
bool loops_in_child(std::unique_ptr<HostWorkers>& workers) {
  return testing::succeeds_in_child([&] {
    std::size_t sum = 0;
    workers->for_each(10, [&](std::size_t i) { sum += i; });
    workers.reset();
    return sum == 45;
  });
}

TEST(HostWorkersTest, OnlyTheCallerWorksInAForkedChild) {
  auto workers = std::make_unique<HostWorkers>(with_threads(3));
  workers->for_each(10, [](std::size_t) {});
  EXPECT_TRUE(loops_in_child(workers));
}

TEST(HostWorkersTest, AChildForkedInMidCallWorksAlone) {
  auto workers = std::make_unique<HostWorkers>(with_threads(2));
  std::atomic<int> inside{0};
  std::atomic<bool> leave{false};
  std::thread other([&] {
    workers->for_each(2, [&](std::size_t) {
      ++inside;
      while (!leave.load()) std::this_thread::yield();
    });
  });
  while (inside.load() < 2) std::this_thread::yield();
  EXPECT_TRUE(loops_in_child(workers));
  leave = true;
  other.join();
}

TEST(HostWorkersOptionsTest, OneThreadNeedsNoWorkers) {
  for (const std::size_t threads : {0u, 1u}) {
    HostWorkers workers({.threads = threads, .on_start = {}});
    EXPECT_EQ(workers.threads(), 1u);
    const auto caller = std::this_thread::get_id();
    workers.for_each(5, [&](std::size_t) { EXPECT_EQ(std::this_thread::get_id(), caller); });
  }
}

TEST(HostWorkersOptionsTest, AbsurdNumbersOfThreadsAreRefused) {
  constexpr std::size_t kMost = HostWorkersOptions::kMostThreads;
  EXPECT_EQ(HostWorkers({.threads = kMost, .on_start = {}}).threads(), kMost);
  for (const std::size_t threads : {kMost + 1, std::size_t{100'000}, SIZE_MAX}) {
    EXPECT_THROW(HostWorkers({.threads = threads, .on_start = {}}), InvalidArgument) << threads;
  }
}

/// While it lives, the system cannot start a thread.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t attributes;
    pthread_getattr_default_np(&attributes);
    pthread_attr_setstacksize(&attributes, std::size_t{1} << 47);  // more than there are addresses
    pthread_setattr_default_np(&attributes);
    pthread_attr_destroy(&attributes);
  }
  ~NoMoreThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;

 private:
  pthread_attr_t before_;
};

TEST(HostWorkersOptionsTest, WorksWithTheThreadsThereAre) {
  const NoMoreThreads no_more;
  HostWorkers workers({.threads = 4, .on_start = {}});
  EXPECT_EQ(workers.threads(), 1u);
  int calls = 0;
  workers.for_each(5, [&](std::size_t) { ++calls; });
  EXPECT_EQ(calls, 5);
}

TEST(HostWorkersOptionsTest, SleepingWorkersWakeToGo) {
  std::atomic<pid_t> worker{0};
  const HostWorkers workers({.threads = 2, .on_start = [&] { worker = testing::this_thread(); }});
  while (worker == 0 || !testing::is_asleep(worker)) std::this_thread::yield();
}

TEST(HostWorkersOptionsTest, StartFunctionRunsInEachNewThread) {
  std::mutex mutex;
  std::set<std::thread::id> started;
  {
    HostWorkers workers({.threads = 4, .on_start = [&] {
                           const std::lock_guard lock(mutex);
                           started.insert(std::this_thread::get_id());
                         }});
  }
  EXPECT_EQ(started.size(), 3u);
  EXPECT_EQ(started.count(std::this_thread::get_id()), 0u);
}

}  // namespace
}  // namespace penstock
