#include "support/threads.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/pause.hpp>
#include <penstock/core/worker_team.hpp>

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

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

class WorkerTeamTest : public ::testing::TestWithParam<std::chrono::microseconds> {
 protected:
  [[nodiscard]] WorkerTeamOptions options(std::size_t threads) const {
    return {.threads = threads, .spin = GetParam(), .on_start = {}};
  }
};

TEST_P(WorkerTeamTest, EachIndexOnce) {
  WorkerTeam team(options(4));
  EXPECT_EQ(team.threads(), 4u);
  for (const std::size_t count : {0u, 1u, 2u, 3u, 4u, 5u, 100u, 1000u}) {
    std::vector<std::atomic<int>> calls(count);
    team.for_each(count, [&](std::size_t i) { ++calls.at(i); });
    for (const auto& one : calls) ASSERT_EQ(one.load(), 1) << count;
  }
}

TEST_P(WorkerTeamTest, WhatBodiesWroteIsVisibleAfterwards) {
  WorkerTeam team(options(3));
  std::vector<int> values(64);
  for (int round = 1; round <= 2000; ++round) {
    team.for_each(values.size(), [&](std::size_t i) { values[i] = round; });
    for (const int value : values) ASSERT_EQ(value, round);
  }
}

TEST_P(WorkerTeamTest, WorkersHelp) {
  WorkerTeam team(options(2));
  std::atomic<int> together{0};
  // Returns only when two threads are inside at once.
  team.for_each(2, [&](std::size_t) {
    ++together;
    while (together.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(together.load(), 2);
}

TEST_P(WorkerTeamTest, AWorkerThatSleepsIsWoken) {
  std::atomic<pid_t> worker{0};
  WorkerTeamOptions waking = options(2);
  waking.on_start = [&] { worker = testing::this_thread(); };
  WorkerTeam team(waking);
  for (int round = 0; round < 3; ++round) {
    for (int asleep = 0; asleep < 50; std::this_thread::yield()) {
      asleep = worker != 0 && testing::is_asleep(worker) ? asleep + 1 : 0;
    }
    std::atomic<int> together{0};
    team.for_each(2, [&](std::size_t) {
      ++together;
      while (together.load() < 2) std::this_thread::yield();
    });
  }
}

TEST_P(WorkerTeamTest, CallReturnsOnlyAfterTheSlowestBody) {
  WorkerTeam team(options(2));
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> entered{0};
    std::atomic<bool> slow_done{false};
    const auto caller = std::this_thread::get_id();
    team.for_each(2, [&](std::size_t) {
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

TEST_P(WorkerTeamTest, FirstExceptionArrivesAndTheRestIsSkipped) {
  WorkerTeam team(options(3));
  constexpr std::size_t kMany = 1'000'000'000;  // minutes of work, were the rest not skipped
  for (int round = 0; round < 50; ++round) {
    std::atomic<std::size_t> begun{0};
    EXPECT_THROW(team.for_each(kMany,
                               [&](std::size_t i) {
                                 ++begun;
                                 if (i == 3) throw std::runtime_error("three");
                               }),
                 std::runtime_error);
    EXPECT_LT(begun.load(), kMany);
    std::atomic<int> calls{0};
    team.for_each(10, [&](std::size_t) { ++calls; });
    ASSERT_EQ(calls.load(), 10);
  }
}

TEST_P(WorkerTeamTest, ManyBodiesThrowAtOnce) {
  constexpr std::size_t kThreads = 4;
  WorkerTeam team(options(kThreads));
  for (int round = 0; round < 20; ++round) {
    std::atomic<std::size_t> inside{0};
    EXPECT_THROW(team.for_each(kThreads,
                               [&](std::size_t) {
                                 ++inside;
                                 while (inside.load() < kThreads) std::this_thread::yield();
                                 throw std::runtime_error("each of them");
                               }),
                 std::runtime_error);
  }
}

// Workers that are late for one call join the next without having been woken for it.
TEST_P(WorkerTeamTest, CallsInQuickSuccessionAreSeenWhole) {
  WorkerTeam team(options(3));
  std::vector<int> values(2);
  for (int round = 1; round <= 5000; ++round) {
    team.for_each(values.size(), [&values, round](std::size_t i) { values[i] = round; });
    ASSERT_EQ(values[0] + values[1], 2 * round);
  }
}

TEST_P(WorkerTeamTest, CallersTakeTurns) {
  WorkerTeam team(options(3));
  std::atomic<int> inside{0};
  std::atomic<int> calls{0};
  std::vector<std::thread> callers;
  std::atomic<bool> mixed{false};
  std::mutex mutex;
  int owner = -1;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&, caller] {
      for (int round = 0; round < 300; ++round) {
        team.for_each(8, [&](std::size_t) {
          {
            const std::lock_guard lock(mutex);
            if (inside.fetch_add(1) == 0) owner = caller;
            if (owner != caller) mixed = true;
          }
          ++calls;
          const std::lock_guard lock(mutex);
          --inside;
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(calls.load(), 3 * 300 * 8);
  EXPECT_FALSE(mixed.load());
}

TEST_P(WorkerTeamTest, TryReturnsAtOnceWhenBusy) {
  WorkerTeam team(options(2));
  std::atomic<bool> entered{false};
  std::atomic<bool> leave{false};
  std::thread other([&] {
    team.for_each(2, [&](std::size_t) {
      entered = true;
      while (!leave.load()) std::this_thread::yield();
    });
  });
  while (!entered.load()) std::this_thread::yield();
  std::atomic<int> calls{0};
  EXPECT_FALSE(team.try_for_each(5, [&](std::size_t) { ++calls; }));
  EXPECT_EQ(calls.load(), 0);
  leave = true;
  other.join();
  EXPECT_TRUE(team.try_for_each(5, [&](std::size_t) { ++calls; }));
  EXPECT_EQ(calls.load(), 5);
}

TEST_P(WorkerTeamTest, ComesAndGoesQuickly) {
  // A worker that misses the order to stop hangs the destructor.
  for (int round = 0; round < 500; ++round) {
    WorkerTeam team(options(3));
    std::atomic<int> calls{0};
    if (round % 2 == 0) team.for_each(3, [&](std::size_t) { ++calls; });
    ASSERT_EQ(calls.load(), round % 2 == 0 ? 3 : 0);
  }
}

TEST_P(WorkerTeamTest, OnlyTheCallerWorksInAForkedChild) {
  auto team = std::make_unique<WorkerTeam>(options(3));
  team->for_each(10, [](std::size_t) {});
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::size_t sum = 0;
    team->for_each(10, [&](std::size_t i) { sum += i; });
    if (!team->try_for_each(10, [&](std::size_t i) { sum += i; })) _exit(2);
    team.reset();
    _exit(sum == 90 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_P(WorkerTeamTest, AChildForkedInMidCallWorksAlone) {
  auto team = std::make_unique<WorkerTeam>(options(2));
  std::atomic<int> inside{0};
  std::atomic<bool> leave{false};
  std::thread other([&] {
    team->for_each(2, [&](std::size_t) {
      ++inside;
      while (!leave.load()) std::this_thread::yield();
    });
  });
  while (inside.load() < 2) std::this_thread::yield();
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);  // what the other thread holds is never let go of here
    std::size_t sum = 0;
    const bool tried = team->try_for_each(10, [&](std::size_t i) { sum += i; });
    team->for_each(10, [&](std::size_t i) { sum += i; });
    team.reset();
    _exit(tried && sum == 90 ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  leave = true;
  other.join();
}

INSTANTIATE_TEST_SUITE_P(Spin, WorkerTeamTest, ::testing::Values(0us, 50us, 5000us),
                         [](const auto& spin) { return "for" + std::to_string(spin.param.count()) + "us"; });

TEST(WorkerTeamOptionsTest, OneThreadNeedsNoWorkers) {
  for (const std::size_t threads : {0u, 1u}) {
    WorkerTeam team({.threads = threads, .spin = 0us, .on_start = {}});
    EXPECT_EQ(team.threads(), 1u);
    const auto caller = std::this_thread::get_id();
    team.for_each(5, [&](std::size_t) { EXPECT_EQ(std::this_thread::get_id(), caller); });
  }
}

TEST(WorkerTeamOptionsTest, AbsurdNumbersOfThreadsAreRefused) {
  constexpr std::size_t kMost = WorkerTeamOptions::kMostThreads;
  EXPECT_EQ(WorkerTeam({.threads = kMost, .spin = 0us, .on_start = {}}).threads(), kMost);
  for (const std::size_t threads : {kMost + 1, std::size_t{100'000}, SIZE_MAX}) {
    EXPECT_THROW(WorkerTeam({.threads = threads, .spin = 0us, .on_start = {}}), InvalidArgument) << threads;
  }
}

/// The system has no thread to give while one lives.
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

TEST(WorkerTeamOptionsTest, WorksWithTheThreadsThereAre) {
  const NoMoreThreads no_more;
  WorkerTeam team({.threads = 4, .spin = 0us, .on_start = {}});
  EXPECT_EQ(team.threads(), 1u);
  int calls = 0;
  team.for_each(5, [&](std::size_t) { ++calls; });
  EXPECT_EQ(calls, 5);
}

TEST(WorkerTeamOptionsTest, SleepingWorkersWakeToGo) {
  std::atomic<pid_t> worker{0};
  const WorkerTeam team({.threads = 2, .spin = 0us, .on_start = [&] { worker = testing::this_thread(); }});
  while (worker == 0 || !testing::is_asleep(worker)) std::this_thread::yield();
}

TEST(WorkerTeamOptionsTest, StartFunctionRunsInEachNewThread) {
  std::mutex mutex;
  std::set<std::thread::id> started;
  {
    WorkerTeam team({.threads = 4, .spin = 0us, .on_start = [&] {
                       const std::lock_guard lock(mutex);
                       started.insert(std::this_thread::get_id());
                     }});
  }
  EXPECT_EQ(started.size(), 3u);
  EXPECT_EQ(started.count(std::this_thread::get_id()), 0u);
}

}  // namespace
}  // namespace penstock
