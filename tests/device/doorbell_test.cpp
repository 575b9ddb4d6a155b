#include "device/host/doorbell.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

namespace penstock::testing {
namespace {

using namespace std::chrono_literals;

/// Two threads wait for each other's turns, each on a bell of its own. A ring that a thread misses while it
/// falls asleep leaves both asleep.
TEST(Doorbell, NoRingIsMissedByAThreadThatFallsAsleep) {
  constexpr unsigned kTurns = 20000;
  struct Side {
    alignas(64) std::atomic<unsigned> turn{0};
    alignas(64) Doorbell bell;
  } sides[2];
  const auto play = [&](Side& mine, Side& theirs) {
    for (unsigned turn = 1; turn <= kTurns; ++turn) {
      theirs.turn.store(turn, std::memory_order_relaxed);
      theirs.bell.ring();
      mine.bell.wait([&] { return mine.turn.load(std::memory_order_relaxed) >= turn; }, 0ns);
    }
  };
  auto first = std::async(std::launch::async, [&] { play(sides[0], sides[1]); });
  auto second = std::async(std::launch::async, [&] { play(sides[1], sides[0]); });
  const bool ended = first.wait_for(60s) == std::future_status::ready;
  EXPECT_TRUE(ended) << "both are asleep";
  while (second.wait_for(1ms) != std::future_status::ready) {
    for (Side& side : sides) side.bell.ring();
  }
}

}  // namespace
}  // namespace penstock::testing
