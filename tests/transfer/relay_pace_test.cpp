#include <penstock/transfer/relay_pace.hpp>

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

namespace penstock::testing {
namespace {

constexpr double kPull = 50e9;
constexpr double kPush = 400e9;

RelayPace undisturbed() {
  RelayPace pace;
  pace.note(kPull, kPush);
  return pace;
}

void note(RelayPace& pace, int chunks, double pull, double push) {
  for (int i = 0; i < chunks; ++i) pace.note(pull, push);
}

TEST(RelayPace, SeesThatTheLinkOrTheWayToTheReceiverIsBusy) {
  for (const auto& [pull, push, busy] : {std::tuple{1.0, 1.0, false},
                                         {0.8, 0.8, false},
                                         {0.5, 1.0, true},
                                         {1.0, 0.5, true},
                                         {0.65, 1.0, true},
                                         {1.0, 0.65, true}}) {
    RelayPace pace = undisturbed();
    note(pace, 3, pull * kPull, push * kPush);
    EXPECT_EQ(pace.is_busy(1, 1), busy) << pull << " " << push;
    pace.note(kPull, kPush);
    EXPECT_FALSE(pace.is_busy(1, 1));
  }
}

TEST(RelayPace, IsNotMovedByTwoSlowChunks) {
  RelayPace pace = undisturbed();
  note(pace, 2, kPull / 10, kPush / 10);
  EXPECT_FALSE(pace.is_busy(1, 1));
  pace.note(kPull / 10, kPush / 10);
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
       {std::tuple{1.0, 1.0, false}, {0.8, 0.8, false}, {0.5, 1.0, true}, {1.0, 0.5, true}}) {
    RelayPace pace(kPull, kPush);
    EXPECT_FALSE(pace.is_busy(1, 1));
    note(pace, 3, pull * kPull, push * kPush);
    EXPECT_EQ(pace.is_busy(1, 1), busy) << pull << " " << push;
  }
}

TEST(ChunkRates, SmallChunksAreExpectedToBeSlower) {
  EXPECT_NEAR(ChunkRates::expected(400e9, 8 << 20), 270e9, 2e9);
  EXPECT_NEAR(ChunkRates::expected(50e9, 8 << 20), 47e9, 0.5e9);
  EXPECT_NEAR(ChunkRates::expected(400e9, 100'000), 10e9, 0.5e9);
  EXPECT_NEAR(ChunkRates::expected(400e9, 8 << 20, 9), 75e9, 1e9) << "in nine copies";
  EXPECT_EQ(ChunkRates::expected(0, 8 << 20), 0);
}

TEST(ChunkRates, ThePaceIsBesideTheMeasuredRate) {
  ChunkRates rates(8);
  EXPECT_EQ(rates.pace(), 1);
  rates.note(4);
  rates.note(4);
  EXPECT_EQ(rates.pace(), 0.5);
}

TEST(RelayPace, TakesAChunkThatTellsNothingForAGoodOne) {
  RelayPace pace = undisturbed();
  note(pace, 3, kPull / 10, kPush / 10);
  pace.note(ChunkRates::kUnknown, ChunkRates::kUnknown);
  EXPECT_FALSE(pace.is_busy(1, 1));
  note(pace, 3, kPull, kPush);
  EXPECT_FALSE(pace.is_busy(1, 1)) << "it is not the best";
}

// Three relays bring 150 GB/s. What two of them leave of 400 is 300.
TEST(RelayPace, ExpectsThatOtherRelaysPushToTheSameReceiver) {
  RelayPace pace = undisturbed();
  note(pace, 3, kPull, 250e9);
  EXPECT_TRUE(pace.is_busy(1, 1));
  EXPECT_FALSE(pace.is_busy(3, 1));
  note(pace, 3, kPull, 200e9);
  EXPECT_TRUE(pace.is_busy(3, 1));
}

// The host is busy, and all links are slow together.
TEST(RelayPace, IsNotBusyIfTheReceiversLinkIsAsSlow) {
  for (const double slow : {0.5, 0.1, 0.001}) {
    RelayPace pace = undisturbed();
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

TEST(ChunkRates, ThePaceFallsWithTheSecondSlowChunkAndRisesWithTheSecondFastOne) {
  ChunkRates rates;
  EXPECT_EQ(rates.pace(), 1);
  std::vector<double> paces;
  for (const double rate : {8, 2, 2, 8, 2, 4, 8, 8, 16}) {
    rates.note(rate);
    paces.push_back(rates.pace());
  }
  EXPECT_EQ(paces, (std::vector<double>{1, 1, 0.25, 0.25, 0.25, 0.5, 0.5, 1, 0.5}));
}

TEST(ChunkRates, AChunkThatTellsNothingSlowsNoPace) {
  ChunkRates rates;
  for (const double rate : {8.0, 2.0, ChunkRates::kUnknown, 2.0, ChunkRates::kUnknown}) rates.note(rate);
  EXPECT_EQ(rates.pace(), 1);
  EXPECT_EQ(rates.best(), 8);
}

}  // namespace
}  // namespace penstock::testing
