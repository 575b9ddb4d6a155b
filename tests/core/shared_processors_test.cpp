#include <penstock/core/host_workers.hpp>
#include <penstock/core/shared_processors.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>

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
