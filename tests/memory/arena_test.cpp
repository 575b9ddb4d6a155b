#include "memory/arena.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>

namespace penstock {
namespace {

class ArenaTest : public ::testing::Test {
 protected:
  Arena::Handle take(std::size_t bytes) {
    const Arena::Handle block = arena_.take(bytes);
    EXPECT_NE(block, arena_.end());
    return block;
  }

  std::byte* at(std::size_t offset) { return memory_.data() + offset; }

  std::array<std::byte, 4096> memory_{};
  Arena arena_;
};

TEST_F(ArenaTest, TakesTheSmallestRangeThatFitsAndTheLowestAmongEquals) {
  arena_.add({at(0), 1000});
  const auto a = take(300);
  const auto wall = take(100);
  const auto b = take(200);
  const auto wall2 = take(100);
  EXPECT_EQ(a->first, at(0));
  EXPECT_EQ(b->first, at(400));
  arena_.give(a);
  arena_.give(b);
  EXPECT_EQ(take(200)->first, at(400)) << "200 fit exactly; 300 would too";
  EXPECT_EQ(take(150)->first, at(0)) << "the hole of 300 is as large as the rest at 700, and lower";
  EXPECT_EQ(arena_.largest_free(), 300u);
  EXPECT_EQ(wall->second.bytes(), 100u);
  EXPECT_EQ(wall2->second.bytes(), 100u);
}

TEST_F(ArenaTest, RefusesWhatNoFreeRangeHolds) {
  EXPECT_EQ(arena_.take(1), arena_.end());
  arena_.add({at(0), 256});
  EXPECT_EQ(arena_.take(257), arena_.end());
  const auto all = take(256);
  EXPECT_EQ(arena_.take(1), arena_.end());
  arena_.give(all);
  EXPECT_EQ(take(256)->first, at(0));
}

TEST_F(ArenaTest, CoalescesWithBothNeighboursButNotAcrossSegments) {
  arena_.add({at(0), 300});
  arena_.add({at(300), 300});  // adjoining addresses, another upstream allocation
  const auto a = take(100);
  const auto b = take(100);
  const auto c = take(100);
  arena_.give(a);
  arena_.give(c);
  EXPECT_EQ(arena_.largest_free(), 300u) << "the other segment";
  arena_.give(b);
  EXPECT_EQ(arena_.largest_free(), 300u);
  EXPECT_EQ(arena_.take(301), arena_.end());
  EXPECT_EQ(arena_.idle_bytes(), 600u);
  const auto lower = take(300);
  const auto upper = take(300);
  arena_.give(lower);
  arena_.give(upper);
  EXPECT_EQ(arena_.largest_free(), 300u) << "nor by its first block";
}

TEST_F(ArenaTest, RemovesIdleSegmentsSmallestFirst) {
  arena_.add({at(2000), 1000});
  arena_.add({at(0), 300});
  arena_.add({at(1000), 500});
  const auto used = take(1);
  ASSERT_EQ(used->first, at(0));
  EXPECT_EQ(arena_.idle_bytes(), 1500u);
  EXPECT_EQ(arena_.remove_idle()->data, at(1000));
  const auto behind = take(1);
  arena_.give(used);
  EXPECT_EQ(arena_.idle_bytes(), 1000u) << "another block of the segment is in use";
  arena_.give(behind);
  EXPECT_EQ(arena_.remove_idle()->bytes, 300u);
  EXPECT_EQ(arena_.remove_idle()->bytes, 1000u);
  EXPECT_EQ(arena_.remove_idle(), std::nullopt);
  EXPECT_EQ(arena_.largest_free(), 0u);
}

TEST_F(ArenaTest, KnowsWhatPendingBlocksCouldFree) {
  EXPECT_FALSE(arena_.pending_could_free(1, 0)) << "nothing pends";
  arena_.add({at(0), 400});
  const auto a = take(100);
  const auto b = take(100);
  const auto c = take(100);
  EXPECT_FALSE(arena_.pending_could_free(100, 400)) << "nothing is pending; the rest of 100 is free already";
  arena_.set_use(a, BlockUse::pending);
  arena_.set_use(c, BlockUse::pending);
  EXPECT_TRUE(arena_.pending_could_free(200, 400)) << "c and the rest";
  EXPECT_FALSE(arena_.pending_could_free(201, 400)) << "b lies between";
  EXPECT_FALSE(arena_.pending_could_free(201, 1));
  arena_.set_use(b, BlockUse::lost);
  EXPECT_FALSE(arena_.pending_could_free(201, 400)) << "a lost block never becomes free";
  arena_.set_use(b, BlockUse::pending);
  EXPECT_TRUE(arena_.pending_could_free(400, 1000));
  EXPECT_FALSE(arena_.pending_could_free(401, 401));
  EXPECT_TRUE(arena_.pending_could_free(401, 400)) << "the segment could go back to upstream";
}

}  // namespace
}  // namespace penstock
