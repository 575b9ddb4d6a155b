#include "core/shared/polled_condition.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

using namespace std::chrono_literals;

namespace penstock {
namespace {

/// Two threads that take turns in counting. `work`: how long each takes for its turn.
void take_turns(int turns, std::chrono::microseconds work) {
  std::mutex mutex;
  PolledCondition odd;
  PolledCondition even;
  int turn = 0;
  const auto count = [&](int first, PolledCondition& own, PolledCondition& other) {
    for (int i = first; i < turns; i += 2) {
      std::unique_lock lock(mutex);
      while (turn != i) own.wait(lock);
      lock.unlock();
      if (work > 0us) std::this_thread::sleep_for(work);
      {
        const std::lock_guard guard(mutex);
        ++turn;
        other.note_change();
      }
      other.notify_one();
    }
  };
  std::thread second([&] { count(1, odd, even); });
  count(0, even, odd);
  second.join();
  EXPECT_EQ(turn, turns);
}

TEST(PolledConditionTest, NoNoticeIsLostWhilePolling) { take_turns(20000, 0us); }

TEST(PolledConditionTest, NoNoticeIsLostWhileAsleep) { take_turns(200, 200us); }

/// A waiter polls for 50 µs at first.
TEST(PolledConditionTest, NoNoticeIsLostAtTheEndOfPolling) {
  for (int round = 0; round < 1500; ++round) {
    std::mutex mutex;
    PolledCondition condition;
    bool go = false;
    std::atomic<bool> waits{false};
    std::thread waiter([&] {
      std::unique_lock lock(mutex);
      waits = true;
      while (!go) condition.wait(lock);
    });
    while (!waits) cpu_pause();
    const auto end = PolledCondition::Clock::now() + std::chrono::nanoseconds(46'000 + 5 * round);
    while (PolledCondition::Clock::now() < end) cpu_pause();
    {
      const std::lock_guard guard(mutex);
      go = true;
      condition.note_change();
    }
    condition.notify_one();
    waiter.join();
  }
}

TEST(PolledConditionTest, EndsAtItsTime) {
  std::mutex mutex;
  PolledCondition condition;
  std::unique_lock lock(mutex);
  for (int i = 0; i < 4; ++i) {  // polling at first, then not any more
    const auto end = PolledCondition::Clock::now() + 2ms;
    while (PolledCondition::Clock::now() < end) condition.wait_until(lock, end);
    EXPECT_TRUE(lock.owns_lock());
  }
}

TEST(PolledConditionTest, ANoticeWakesAll) {
  std::mutex mutex;
  PolledCondition condition;
  bool go = false;
  const auto wait = [&] {
    std::unique_lock lock(mutex);
    while (!go) condition.wait(lock);
  };
  std::thread first(wait);
  std::thread second(wait);
  std::this_thread::sleep_for(5ms);
  {
    const std::lock_guard guard(mutex);
    go = true;
    condition.note_change();
  }
  condition.notify_all();
  first.join();
  second.join();
}

}  // namespace
}  // namespace penstock
