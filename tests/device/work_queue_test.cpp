#include "device/host/work_queue.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>

namespace penstock::testing {
namespace {

TEST(WorkQueue, BlocksGoRoundAndAreFreedOnce) {
  WorkQueue<int> queue;
  int pushed = 0;
  int popped = 0;
  // The second round needs few of the blocks that come back from the first.
  for (const int items : {1000, 200}) {
    for (int i = 0; i < items; ++i) queue.push(++pushed);
    for (int i = 0; i < items; ++i) EXPECT_EQ(queue.pop(), ++popped);
  }
  EXPECT_EQ(queue.pushed(), 1200u);
}

TEST(WorkQueue, BlocksGoRoundBetweenTwoThreads) {
  constexpr int kItems = 5000;
  WorkQueue<int> queue;
  // Relaxed, so that only the queue orders the threads' accesses to its blocks.
  std::atomic<int> popped{0};
  std::thread consumer([&] {
    for (int item = 1; item <= kItems; ++item) {
      while (queue.pushed() < static_cast<std::uint64_t>(item)) std::this_thread::yield();
      EXPECT_EQ(queue.pop(), item);
      popped.store(item, std::memory_order_relaxed);
    }
  });
  for (int item = 1; item <= kItems; ++item) {
    while (item - popped.load(std::memory_order_relaxed) > 300) std::this_thread::yield();
    queue.push(item);
  }
  consumer.join();
}

}  // namespace
}  // namespace penstock::testing
