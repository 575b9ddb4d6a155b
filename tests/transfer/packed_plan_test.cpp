#include "transfer/packed_plan.hpp"

#include "support/bytes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace penstock::testing {
namespace {

// Plans look only at addresses, so any memory serves as the device's.
class PackedPlanTest : public ::testing::Test {
 protected:
  PackedPlanTest() {
    for (std::size_t i = 0; i < kPieces; ++i) {
      const std::size_t bytes = i == 3 ? 9000 : 100 + 7 * i;
      pieces_.push_back({host_.data() + at(i), device_.data() + 2 * at(i), bytes});
    }
  }

  static constexpr std::size_t kPieces = 12;
  static constexpr std::size_t at(std::size_t i) { return i * 10000; }

  std::vector<std::byte> host_ = random_bytes(kPieces * 10000, 1);
  std::vector<std::byte> device_ = std::vector<std::byte>(2 * kPieces * 10000, kPoison);
  std::vector<TransferPiece> pieces_;
};

TEST_F(PackedPlanTest, RoundsEndBetweenPiecesAndHoldOneAtLeast) {
  const PackedPlan plan(pieces_, CopyDirection::h2d);
  ASSERT_EQ(plan.device_side(), PackedPlan::DeviceSide::scatter);
  std::vector<std::size_t> ends;
  std::size_t rounds = 0;
  for (std::size_t begin = 0; begin < plan.image_bytes() && rounds <= kPieces; ++rounds) {
    const ImageRange round = plan.round(begin, 500);
    ASSERT_EQ(round.begin, begin);
    ASSERT_GT(round.end, begin);
    begin = round.end;
    ends.push_back(round.end);
  }
  EXPECT_EQ(ends.back(), plan.image_bytes());
  ends.pop_back();
  for (const std::size_t end : ends) {
    bool between = false;
    for (std::size_t i = 0; i < kPieces; ++i) between |= plan.offset(i) == end;
    EXPECT_TRUE(between) << end;
  }
}

TEST_F(PackedPlanTest, APieceAtTheEndMayBeLargerThanTheWindow) {
  std::swap(pieces_[3].bytes, pieces_.back().bytes);
  const PackedPlan plan(pieces_, CopyDirection::h2d);
  const ImageRange round = plan.round(plan.offset(kPieces - 1), 500);
  EXPECT_EQ(round.end, plan.image_bytes());
}

TEST_F(PackedPlanTest, PacksAndUnpacksWithinTheRangeAlone) {
  constexpr std::size_t kMargin = 10000;
  const PackedPlan plan(pieces_, CopyDirection::h2d);
  std::vector<std::byte> whole(plan.image_bytes());
  plan.pack({0, whole.size()}, whole.data(), StoreKind::cached);
  std::vector<TransferPiece> home;
  std::vector<std::byte> back(host_.size(), kPoison);
  for (std::size_t i = 0; i < kPieces; ++i) {
    home.push_back({pieces_[i].destination, back.data() + at(i), pieces_[i].bytes});
  }
  const PackedPlan reverse(home, CopyDirection::d2h);
  for (const ImageRange range : {ImageRange{0, 50}, {50, 333}, {333, 4000}, {4000, 4096}}) {
    std::vector<std::byte> image(range.bytes() + kMargin, kPoison);
    plan.pack(range, image.data(), StoreKind::cached);
    EXPECT_TRUE(
        std::all_of(image.end() - kMargin, image.end(), [](std::byte byte) { return byte == kPoison; }));
    const std::vector<std::byte> before = back;
    reverse.unpack(range, whole.data() + range.begin, StoreKind::cached);
    for (std::size_t i = 0; i < kPieces; ++i) {
      for (std::size_t b = 0; b < pieces_[i].bytes; ++b) {
        const std::size_t offset = plan.offset(i) + b;
        const bool inside = offset >= range.begin && offset < range.end;
        ASSERT_EQ(back[at(i) + b], inside ? host_[at(i) + b] : before[at(i) + b]) << i << ' ' << b;
      }
    }
  }
}

}  // namespace
}  // namespace penstock::testing
