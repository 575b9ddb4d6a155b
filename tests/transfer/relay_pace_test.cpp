#include "transfer/shared/relay_pace.hpp"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

namespace penstock::testing {
namespace {

constexpr double kPull = 50e9;
constexpr double kPush = 400e9;

constexpr ChunkSize kJudgedChunk{.bytes = std::size_t{8} << 20};

void note(RelayPace& pace, int chunks, double pull, double push) {
  for (int i = 0; i < chunks; ++i) {
    pace.pull.note(pull, kJudgedChunk);
    pace.push.note(push, kJudgedChunk);
  }
}

RelayPace undisturbed(bool pushes_cross_host = false) {
  RelayPace pace{.pull = ChunkRates(), .push = ChunkRates(), .pushes_cross_host = pushes_cross_host};
  note(pace, 1, kPull, kPush);
  return pace;
}

TEST(RelayPace, SeesThatTheLinkOrTheWayToTheReceiverIsBusy) {
  for (const auto& [pull, push, busy] : {std::tuple{1.0, 1.0, false},
                                         {0.75, 0.85, false},
                                         {0.5, 1.0, true},
                                         {1.0, 0.5, true},
                                         {0.65, 1.0, true},
                                         {1.0, 0.75, true}}) {
    RelayPace pace = undisturbed();
    note(pace, 3, pull * kPull, push * kPush);
    EXPECT_EQ(pace.is_busy(1, 1), busy) << pull << " " << push;
    note(pace, 1, kPull, kPush);
    EXPECT_FALSE(pace.is_busy(1, 1));
  }
}

TEST(RelayPace, PushesThatCrossTheHostMayBeAsSlowAsLinks) {
  for (const auto& [push, busy] : {std::pair{0.75, false}, {0.65, true}}) {
    RelayPace pace = undisturbed(/*pushes_cross_host=*/true);
    note(pace, 3, kPull, push * kPush);
    EXPECT_EQ(pace.is_busy(1, 1), busy) << push;
  }
}

TEST(RelayPace, IsNotMovedByTwoSlowChunks) {
  RelayPace pace = undisturbed();
  note(pace, 2, kPull / 10, kPush / 10);
  EXPECT_FALSE(pace.is_busy(1, 1));
  note(pace, 1, kPull / 10, kPush / 10);
  EXPECT_TRUE(pace.is_busy(1, 1));
}

TEST(RelayPace, KnowsNothingBeforeItsFirstChunks) {
  RelayPace pace;
  EXPECT_FALSE(pace.is_busy(1, 1));
  note(pace, 3, kPull, kPush);
  EXPECT_FALSE(pace.is_busy(1, 1));
}

TEST(RelayPace, ComparesItsFirstChunksWithTheMeasuredRates) {
  for (const auto& [pull, push, busy] :
       {std::tuple{1.0, 1.0, false}, {0.75, 0.85, false}, {0.5, 1.0, true}, {1.0, 0.5, true}}) {
    RelayPace pace{.pull = ChunkRates(kPull), .push = ChunkRates(kPush), .pushes_cross_host = false};
    EXPECT_FALSE(pace.is_busy(1, 1));
    note(pace, 3, pull * pace.pull.expected(kJudgedChunk), push * pace.push.expected(kJudgedChunk));
    EXPECT_EQ(pace.is_busy(1, 1), busy) << pull << " " << push;
  }
}

TEST(ChunkRates, SmallChunksAreExpectedToBeSlower) {
  const auto expected = [](double rate, ChunkSize size) { return ChunkRates(rate).expected(size); };
  EXPECT_NEAR(expected(400e9, {8 << 20}), 270e9, 2e9);
  EXPECT_NEAR(expected(50e9, {8 << 20}), 47e9, 0.5e9);
  EXPECT_NEAR(expected(400e9, {100'000}), 10e9, 0.5e9);
  EXPECT_NEAR(expected(400e9, {8 << 20, 9}), 75e9, 1e9) << "in nine copies";
  EXPECT_EQ(expected(0, {8 << 20}), 0);
  EXPECT_NEAR(ChunkRates(400e9).expected({8 << 20}, 200e9), 161e9, 1e9) << "others take half";
  EXPECT_EQ(ChunkRates(400e9).expected({8 << 20}, 500e9), 0) << "others take all";
}

TEST(ChunkRates, AChunkIsComparedWithTheBestOneByTheirSizes) {
  ChunkRates rates;
  rates.note(270e9, kJudgedChunk);
  EXPECT_NEAR(rates.expected(kJudgedChunk), 270e9, 1) << "its latency is part of its rate";
  EXPECT_NEAR(rates.expected({16 << 20}), 270e9, 1) << "at least";
  EXPECT_NEAR(rates.expected({1 << 20}), 83e9, 1e9);
  EXPECT_NEAR(rates.expected({8 << 20, 2}), 204e9, 1e9);
  for (int i = 0; i < 3; ++i) rates.note(83e9, {1 << 20});
  EXPECT_FALSE(rates.is_below(0.9));
  EXPECT_NEAR(rates.pace(), 1, 0.01);
  for (int i = 0; i < 3; ++i) rates.note(50e9, {1 << 20});
  EXPECT_TRUE(rates.is_below(0.7));
  EXPECT_FALSE(rates.is_below(0.5));
  EXPECT_NEAR(rates.pace(), 0.6, 0.01);
  rates.note(300e9, {1 << 20});
  EXPECT_NEAR(rates.expected(kJudgedChunk), 300e9, 1) << "a small one was faster";
}

TEST(ChunkRates, IsFastIfItIsKnownNotToBeSlowByMuch) {
  ChunkRates rates;
  EXPECT_FALSE(rates.is_fast(8, kJudgedChunk)) << "nothing is known";
  rates.note(8, kJudgedChunk);
  EXPECT_TRUE(rates.is_fast(6, kJudgedChunk));
  EXPECT_FALSE(rates.is_fast(5, kJudgedChunk));
}

TEST(ChunkRates, ThePaceIsBesideTheMeasuredRate) {
  ChunkRates rates(8);
  EXPECT_EQ(rates.pace(), 1);
  rates.note(4, kJudgedChunk);
  rates.note(4, kJudgedChunk);
  EXPECT_NEAR(rates.pace(), 0.5, 1e-6);
}

TEST(RelayPace, TakesAChunkThatTellsNothingForAGoodOne) {
  RelayPace pace = undisturbed();
  note(pace, 3, kPull / 10, kPush / 10);
  note(pace, 1, ChunkRates::kUnknown, ChunkRates::kUnknown);
  EXPECT_FALSE(pace.is_busy(1, 1));
  note(pace, 3, kPull, kPush);
  EXPECT_FALSE(pace.is_busy(1, 1)) << "it is not the best";
}

// Three relays bring 150 GB/s. What two of them leave of 400 is 300.
TEST(RelayPace, ExpectsThatOtherRelaysPushToTheSameReceiver) {
  RelayPace pace = undisturbed();
  note(pace, 3, kPull, 260e9);
  EXPECT_TRUE(pace.is_busy(1, 1));
  EXPECT_FALSE(pace.is_busy(3, 1));
  note(pace, 3, kPull, 200e9);
  EXPECT_TRUE(pace.is_busy(3, 1));
}

// The host is busy, and all links are slow together.
TEST(RelayPace, IsNotBusyIfTheReceiversLinkIsAsSlow) {
  for (const double slow : {0.5, 0.1, 0.001}) {
    RelayPace pace = undisturbed(/*pushes_cross_host=*/true);
    note(pace, 3, slow * kPull, slow * kPush);
    EXPECT_FALSE(pace.is_busy(1, slow));
    EXPECT_FALSE(pace.is_busy(1, slow / 0.75)) << "they differ by some percent";
    EXPECT_TRUE(pace.is_busy(1, 2 * slow));
    note(pace, 3, slow * kPull / 2, slow * kPush);
    EXPECT_TRUE(pace.is_busy(1, slow)) << "others use the link, too";
    note(pace, 3, slow * kPull, slow * kPush / 2);
    EXPECT_TRUE(pace.is_busy(1, slow)) << "others use the way to the receiver, too";
  }
}

// A collective of GPUs uses their wires, while the host is busy.
TEST(RelayPace, PushesThatDoNotCrossTheHostAreNotSlowWithIt) {
  RelayPace pace = undisturbed();
  note(pace, 3, kPull / 2, kPush);
  EXPECT_FALSE(pace.is_busy(1, 0.5));
  note(pace, 3, kPull / 2, 0.75 * kPush);
  EXPECT_TRUE(pace.is_busy(1, 0.5));
}

TEST(ChunkRates, ThePaceFallsWithTheSecondSlowChunkAndRisesWithTheSecondFastOne) {
  ChunkRates rates;
  EXPECT_EQ(rates.pace(), 1);
  std::vector<double> paces;
  for (const double rate : {8, 2, 2, 8, 2, 4, 8, 8, 16}) {
    rates.note(rate, kJudgedChunk);
    paces.push_back(rates.pace());
  }
  EXPECT_EQ(paces, (std::vector<double>{1, 1, 0.25, 0.25, 0.25, 0.5, 0.5, 1, 0.5}));
}

TEST(ChunkRates, AChunkThatTellsNothingSlowsNoPace) {
  ChunkRates rates;
  for (const double rate : {8.0, 2.0, ChunkRates::kUnknown, 2.0, ChunkRates::kUnknown})
    rates.note(rate, kJudgedChunk);
  EXPECT_EQ(rates.pace(), 1);
  EXPECT_EQ(rates.best(), 8);
}

}  // namespace
}  // namespace penstock::testing
