#include "support/threads.hpp"

#include <penstock/core/host_workers.hpp>
#include <penstock/core/shared_processors.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace penstock {
namespace {

TEST(SharedProcessorsTest, TeamsThatWorkGetEqualParts) {
  SharedProcessors processors(16);
  EXPECT_GE(processors.workers(), HostWorkersOptions::kMostThreads);
  processors.team_begins();
  EXPECT_GE(processors.workers(), HostWorkersOptions::kMostThreads) << "a team alone has all";
  processors.team_begins();
  EXPECT_EQ(processors.workers(), 7u) << "and the thread that they work for";
  processors.team_begins();
  EXPECT_EQ(processors.workers(), 4u);
  processors.team_ends();
  processors.team_ends();
  EXPECT_GE(processors.workers(), HostWorkersOptions::kMostThreads);
}

TEST(SharedProcessorsTest, ProcessesGetEqualParts) {
  SharedProcessors processors(16);
  processors.divide(2);
  EXPECT_EQ(processors.workers(), 7u) << "before a team works, too: the other process may";
  processors.team_begins();
  processors.team_begins();
  EXPECT_EQ(processors.workers(), 3u);
  processors.divide(0);
  EXPECT_EQ(processors.workers(), 7u);
}

TEST(SharedProcessorsTest, HowMuchTheyShareSomeWork) {
  SharedProcessors processors(4);
  processors.divide(8);
  EXPECT_EQ(processors.workers(), SharedProcessors::kLeastWorkers);
}

HostWorkersOptions sharing(const std::shared_ptr<SharedProcessors>& processors, std::size_t threads) {
  return {.threads = threads, .on_start = {}, .processors = processors};
}

/// The most threads that are in one loop of `workers` together.
std::size_t most_together(HostWorkers& workers) {
  std::mutex mutex;
  std::size_t inside = 0;
  std::size_t most = 0;
  workers.for_each(2000, [&](std::size_t) {
    {
      const std::lock_guard lock(mutex);
      most = std::max(most, ++inside);
    }
    std::this_thread::yield();
    const std::lock_guard lock(mutex);
    --inside;
  });
  return most;
}

/// Returns once all workers of this process sleep: from then on they come only if they are called.
void wait_until_workers_sleep() {
  const auto is_awake = [](pid_t thread) {
    return testing::name_of(thread) == "penstock-worker" && !testing::is_asleep(thread);
  };
  for (int asleep = 0; asleep < 50; ++asleep) {
    if (std::ranges::any_of(testing::live_threads(), is_awake)) asleep = 0;
  }
}

/// True once `threads` threads are in one loop together.
bool all_come(HostWorkers& workers, int threads) {
  std::atomic<int> together{0};
  workers.for_each(static_cast<std::size_t>(threads), [&](std::size_t) {
    ++together;
    while (together.load() < threads) std::this_thread::yield();
  });
  return together.load() == threads;
}

TEST(SharedProcessorsTest, ALoopHasFewerWorkersWhileAnotherTeamWorks) {
  const auto processors = std::make_shared<SharedProcessors>(6);
  HostWorkers team(sharing(processors, 6));
  HostWorkers other(sharing(processors, 6));
  EXPECT_TRUE(all_come(team, 6));
  other.work_begins();
  EXPECT_LE(most_together(team), 3u);
  EXPECT_TRUE(all_come(team, 3));
  other.work_ends();
  EXPECT_TRUE(all_come(team, 6));
}

TEST(SharedProcessorsTest, ALoopCountsForOtherTeams) {
  const auto processors = std::make_shared<SharedProcessors>(6);
  HostWorkers team(sharing(processors, 6));
  HostWorkers other(sharing(processors, 6));
  std::atomic<bool> checked{false};
  std::atomic<bool> loops{false};
  std::thread looping([&] {
    team.for_each(2, [&](std::size_t) {
      loops = true;
      while (!checked.load()) std::this_thread::yield();
    });
  });
  while (!loops.load()) std::this_thread::yield();
  EXPECT_LE(most_together(other), 3u);
  checked = true;
  looping.join();
  EXPECT_TRUE(all_come(other, 6)) << "the loop has ended";
}

/// Work that takes until `go` is set.
class HeldWork final : public HostWorkers::Source {
 public:
  HeldWork() : Source(HostWorkersOptions::kMostThreads) {}
  bool work() noexcept override {
    ++begun;
    while (!go.load()) std::this_thread::yield();
    return false;
  }
  [[nodiscard]] std::chrono::nanoseconds polling() const noexcept override { return {}; }

  std::atomic<std::size_t> begun{0};
  std::atomic<bool> go{false};
};

TEST(SharedProcessorsTest, ATeamsSourcesHaveItsPartTogether) {
  const auto processors = std::make_shared<SharedProcessors>(8);
  HostWorkers team(sharing(processors, 8));
  processors->team_begins();
  processors->team_begins();  // two others: 3 workers each, of which the team has 7
  HeldWork one;
  HeldWork other;
  for (HeldWork* work : {&one, &other}) {
    team.add(*work);
    team.wake(*work);
  }
  while (one.begun + other.begun < 3) std::this_thread::yield();
  for (int look = 0; look < 2000; ++look) {
    team.wake(other);
    std::this_thread::yield();
  }
  EXPECT_EQ(one.begun + other.begun, 3u);
  one.go = other.go = true;
  team.remove(one);
  team.remove(other);
}

TEST(SharedProcessorsTest, WorkersLeaveALoopOnceAnotherTeamWorks) {
  const auto processors = std::make_shared<SharedProcessors>(6);
  HostWorkers team(sharing(processors, 6));
  HostWorkers other(sharing(processors, 6));
  std::mutex mutex;
  std::size_t inside = 0;
  std::size_t most = 0;
  std::atomic<int> together{0};
  std::atomic<bool> begun{false};
  team.for_each(2000, [&](std::size_t i) {
    if (i < 6) {  // all six come
      ++together;
      while (together.load() < 6) std::this_thread::yield();
      if (i == 0) {
        other.work_begins();
        begun = true;
      }
      while (!begun.load()) std::this_thread::yield();
      return;
    }
    {
      const std::lock_guard lock(mutex);
      most = std::max(most, ++inside);
    }
    std::this_thread::yield();
    const std::lock_guard lock(mutex);
    --inside;
  });
  other.work_ends();
  EXPECT_LE(most, 3u);
}

TEST(SharedProcessorsTest, ALoopGetsWorkersOnceAnotherTeamIsDone) {
  const auto processors = std::make_shared<SharedProcessors>(6);
  HostWorkers team(sharing(processors, 6));
  HostWorkers other(sharing(processors, 6));
  other.work_begins();
  wait_until_workers_sleep();
  std::atomic<int> together{0};
  const auto caller = std::this_thread::get_id();
  bool is_done = false;
  team.for_each(100, [&](std::size_t) {
    if (std::this_thread::get_id() == caller) {
      if (!std::exchange(is_done, true)) return other.work_ends();
    } else {
      ++together;
    }
    while (together.load() < 5) std::this_thread::yield();
  });
  EXPECT_GE(together.load(), 5);
}

TEST(SharedProcessorsTest, WorksOfATeamCountOnce) {
  const auto processors = std::make_shared<SharedProcessors>(16);
  HostWorkers team(sharing(processors, 2));
  team.work_begins();
  team.work_begins();
  EXPECT_GE(processors->workers(), HostWorkersOptions::kMostThreads);
  team.work_ends();
  processors->team_begins();
  EXPECT_EQ(processors->workers(), 7u) << "one work has not ended";
  team.work_ends();
  EXPECT_GE(processors->workers(), HostWorkersOptions::kMostThreads);
}

}  // namespace
}  // namespace penstock
