#include "run/piece_mover.hpp"

#include "support/threads.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <vector>

namespace penstock::run {
namespace {

using penstock::testing::this_thread;

constexpr std::size_t kPieces = 100;

class PieceMoverTest : public ::testing::TestWithParam<unsigned> {
 protected:
  void run(FunctionRef<std::size_t(std::size_t)> step, FunctionRef<void(std::size_t)> move) {
    mover_.run(kPieces, 3, step, move);
  }

  PieceMover mover_{std::make_shared<HostWorkers>(HostWorkersOptions{.threads = GetParam(), .on_start = {}})};
};

INSTANTIATE_TEST_SUITE_P(Threads, PieceMoverTest, ::testing::Values(1u, 2u, 5u),
                         ::testing::PrintToStringParamName());

TEST_P(PieceMoverTest, MovesEachPieceOnceAndNoneBeforeItIsReady) {
  for (int turn = 0; turn < 50; ++turn) {
    std::vector<int> times(kPieces);
    std::atomic<std::size_t> ready{0};
    std::size_t last = 0;
    const auto step = [&](std::size_t moved) {
      EXPECT_LE(moved, ready);
      EXPECT_LE(last, moved);
      for (std::size_t i = last; i < moved; ++i) EXPECT_EQ(times[i], 1);
      last = moved;
      // The next ones are ready once all are moved.
      if (moved == ready) ready = std::min(kPieces, ready + 7);
      return ready.load();
    };
    run(step, [&](std::size_t piece) {
      EXPECT_LT(piece, ready);
      ++times[piece];
    });
    EXPECT_EQ(last, kPieces);
    EXPECT_EQ(std::ranges::count(times, 1), static_cast<std::ptrdiff_t>(kPieces));
  }
}

TEST_P(PieceMoverTest, OnlyTheOwnerSteps) {
  const pid_t owner = this_thread();
  run(
      [&](std::size_t) {
        EXPECT_EQ(this_thread(), owner);
        return kPieces;
      },
      [](std::size_t) {});
}

TEST_P(PieceMoverTest, AfterAFailedStepNobodyMovesAndTheNextRunIsWhole) {
  for (int turn = 0; turn < 20; ++turn) {
    std::atomic<std::size_t> begun{0}, ended{0};
    const auto step = [&](std::size_t moved) -> std::size_t {
      if (moved > 3) throw std::runtime_error("the device");
      return 10;
    };
    EXPECT_THROW(run(step,
                     [&](std::size_t) {
                       ++begun;
                       std::this_thread::sleep_for(std::chrono::microseconds(100));
                       ++ended;
                     }),
                 std::runtime_error);
    EXPECT_EQ(begun, ended);
    std::atomic<std::size_t> moved{0};
    run([](std::size_t) { return kPieces; }, [&](std::size_t) { ++moved; });
    EXPECT_EQ(moved, kPieces);
  }
}

}  // namespace
}  // namespace penstock::run
