#include "device/host/work_queue.hpp"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace penstock::testing
