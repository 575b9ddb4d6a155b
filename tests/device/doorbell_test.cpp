#include "device/host/doorbell.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>
#include <vector>

namespace penstock::testing {
namespace {

using namespace std::chrono_literals;

TEST(Doorbell, OneRingWakesAllWhoSleep) {
  constexpr unsigned kThreads = 3;
  constexpr unsigned kRounds = 200;
  Doorbell bell;
  std::atomic<unsigned> arrived{0};
  std::atomic<unsigned> round{0};
  std::vector<std::future<void>> threads;
  for (unsigned i = 0; i < kThreads; ++i) {
    threads.push_back(std::async(std::launch::async, [&] {
      for (unsigned r = 1; r <= kRounds; ++r) {
        arrived.fetch_add(1, std::memory_order_relaxed);
        bell.wait([&] { return round.load(std::memory_order_relaxed) >= r; }, 0ns);
      }
    }));
  }
  bool all_came = true;
  for (unsigned r = 1; r <= kRounds && all_came; ++r) {
    all_came = spin_until([&] { return arrived.load(std::memory_order_relaxed) == r * kThreads; }, 10s);
    spin_until([] { return false; }, 20us);  // so that most of them sleep
    round.store(all_came ? r : kRounds, std::memory_order_relaxed);
    bell.ring();
  }
  EXPECT_TRUE(all_came) << "somebody still sleeps";
  for (const auto& thread : threads) {
    const bool ended = thread.wait_for(10s) == std::future_status::ready;
    EXPECT_TRUE(ended) << "somebody still sleeps";
    while (thread.wait_for(1ms) != std::future_status::ready) bell.ring();
  }
}

}  // namespace
}  // namespace penstock::testing
