#include "doctor/recorder/activity_buffers.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace penstock::recorder {
namespace {

TEST(ActivityBuffers, AreReadInTheOrderInWhichTheyWereFilled) {
  ActivityBuffers buffers;
  EXPECT_EQ(buffers.next().buffer, nullptr);
  std::uint8_t* const first = buffers.take();
  std::uint8_t* const second = buffers.take();
  EXPECT_TRUE(buffers.keep({first, 10}));
  EXPECT_TRUE(buffers.keep({second, 20}));
  EXPECT_EQ(buffers.next().buffer, first);
  const ActivityBuffers::Full last = buffers.next();
  EXPECT_EQ(last.buffer, second);
  EXPECT_EQ(last.valid_bytes, 20U);
  EXPECT_EQ(buffers.next().buffer, nullptr);
  buffers.give_back(first);
  buffers.give_back(second);
}

TEST(ActivityBuffers, AreUsedAgain) {
  ActivityBuffers buffers;
  std::uint8_t* const buffer = buffers.take();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer) % 64, 0U);
  buffers.give_back(buffer);
  EXPECT_EQ(buffers.take(), buffer);
  EXPECT_NE(buffers.take(), buffer);
}

TEST(ActivityBuffers, NoMoreWaitThanThereIsRoomFor) {
  ActivityBuffers buffers;
  std::uint8_t bytes[2];
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < ActivityBuffers::kMostFull; ++i) ASSERT_TRUE(buffers.keep({bytes, i}));
    EXPECT_FALSE(buffers.keep({bytes + 1, 0}));
    for (std::size_t i = 0; i < ActivityBuffers::kMostFull; ++i) ASSERT_EQ(buffers.next().valid_bytes, i);
    EXPECT_EQ(buffers.next().buffer, nullptr);
  }
}

TEST(ActivityBuffers, NoMoreAreKeptThanThereIsRoomFor) {
  ActivityBuffers buffers;
  std::vector<std::uint8_t*> taken;
  for (std::size_t i = 0; i < 2 * ActivityBuffers::kMostFree; ++i) taken.push_back(buffers.take());
  for (std::uint8_t* const buffer : taken) buffers.give_back(buffer);
  EXPECT_EQ(buffers.take(), taken[ActivityBuffers::kMostFree - 1]);
}

}  // namespace
}  // namespace penstock::recorder
