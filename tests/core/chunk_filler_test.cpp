#include "core/shared/chunk_filler.hpp"

#include "support/comes_true.hpp"
#include "support/threads.hpp"
#include "transfer/filler.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

namespace penstock::testing {
namespace {

constexpr std::size_t kLargestPart = std::size_t{512} << 10;
constexpr std::chrono::seconds kSoonEnough{20};
constexpr auto kOpenNone = [] {};

/// A filler with a team of its own. This thread owns it.
class ChunkFillerTest : public ::testing::Test {
 protected:
  void make_filler(unsigned threads, const std::shared_ptr<SharedProcessors>& processors = nullptr) {
    workers_ = std::make_shared<HostWorkers>(
        HostWorkersOptions{.threads = 4, .on_start = {}, .processors = processors});
    filler_.emplace(workers_, threads);
  }
  [[nodiscard]] bool is_owner() const { return this_thread() == owner_; }

  const pid_t owner_ = this_thread();
  std::shared_ptr<HostWorkers> workers_;
  std::optional<ChunkFiller> filler_;
};

TEST_F(ChunkFillerTest, EachByteOfEachChunkIsFilledOnce) {
  for (const unsigned threads : {1u, 2u, 4u}) {
    make_filler(threads);
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{65536}, 5 * kLargestPart + 7}) {
      std::vector<std::atomic<unsigned>> filled(bytes);
      std::atomic<std::size_t> calls{0};
      const auto fill = [&](std::size_t from, std::size_t count) {
        ++calls;
        EXPECT_LE(count, kLargestPart);
        for (std::size_t i = 0; i < count; ++i) ++filled[from + i];
      };
      filler_->open(bytes, fill);
      filler_->finish_first(kOpenNone);
      EXPECT_TRUE(std::ranges::all_of(filled, [](const auto& times) { return times == 1; }));
      EXPECT_GE(calls, bytes / kLargestPart);
    }
    filler_.reset();
  }
}

TEST_F(ChunkFillerTest, NobodyWaitsForTheLastPartsOfAChunk) {
  make_filler(2);
  std::atomic<bool> has_worker{false};
  std::atomic<std::size_t> next_parts{0};
  const auto first = [&](std::size_t, std::size_t) {
    if (is_owner()) {
      EXPECT_TRUE(comes_true([&] { return has_worker.load(); }, kSoonEnough));
    } else if (!has_worker.exchange(true)) {
      EXPECT_TRUE(comes_true([&] { return next_parts > 0; }, kSoonEnough)) << "this thread has the last part";
    }
  };
  const auto next = [&](std::size_t, std::size_t) { ++next_parts; };
  filler_->open(4 * kLargestPart, first);
  filler_->finish_first([&] { filler_->open(4 * kLargestPart, next); });
  filler_->finish_first(kOpenNone);
  EXPECT_EQ(next_parts, 4u);
}

TEST_F(ChunkFillerTest, WorkersFillTheNextChunkWhileTheOwnerIsElsewhere) {
  make_filler(2);
  std::atomic<std::size_t> next_parts{0};
  const auto next = [&](std::size_t, std::size_t) { ++next_parts; };
  unsigned asked = 0;
  filler_->open(kLargestPart, [](std::size_t, std::size_t) {});
  filler_->finish_first([&] {
    ++asked;
    filler_->open(4 * kLargestPart, next);
  });
  EXPECT_EQ(asked, 1u);
  EXPECT_TRUE(comes_true([&] { return next_parts == 4; }, kSoonEnough));
  // It is full by now, and the owner may open one all the same.
  filler_->finish_first([&] { ++asked; });
  EXPECT_EQ(asked, 2u);
}

TEST_F(ChunkFillerTest, OpensTheNextChunkBeforeThePartsRunOut) {
  make_filler(2);
  std::atomic<std::size_t> parts{0};
  Hold hold;  // the worker has a part, so that this thread alone goes on
  const auto fill = [&](std::size_t, std::size_t) {
    ++parts;
    if (is_owner()) return hold.wait_for(1);
    hold.stay();
  };
  filler_->open(20 * kLargestPart, fill);
  filler_->finish_first([&] {
    EXPECT_LT(parts, 20u);
    EXPECT_GT(parts, 10u) << "the next chunk is taken from others";
    hold.let_go();
  });
  EXPECT_EQ(parts, 20u);
}

TEST_F(ChunkFillerTest, NoMoreThreadsThanAreAllowedFillAtATime) {
  make_filler(2);
  std::atomic<unsigned> inside{0};
  std::atomic<unsigned> most{0};
  const auto fill = [&](std::size_t, std::size_t) {
    const unsigned now = ++inside;
    if (now > most) most = now;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    --inside;
  };
  filler_->open(20 * kLargestPart, fill);
  filler_->finish_first([&] { filler_->open(20 * kLargestPart, fill); });
  filler_->finish_first(kOpenNone);
  EXPECT_LE(most, 2u);
}

TEST_F(ChunkFillerTest, OneThreadTakesNoChunkBeforeItsTime) {
  make_filler(1);
  filler_->open(4 * kLargestPart, [](std::size_t, std::size_t) {});
  filler_->finish_first([] { ADD_FAILURE() << "nobody would fill it"; });
}

TEST_F(ChunkFillerTest, AnExceptionLeavesTheOtherPartsOutAndNobodyInside) {
  make_filler(4);
  std::atomic<std::size_t> calls{0};
  std::atomic<int> inside{0};
  std::atomic<std::size_t> next_parts{0};
  const auto refuse = [&](std::size_t, std::size_t) {
    ++inside;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --inside;
    if (++calls > 1) throw Refusal("no part");
  };
  filler_->open(1000 * kLargestPart, refuse);
  EXPECT_THROW(filler_->finish_first([] { ADD_FAILURE() << "a chunk was opened after the exception"; }),
               Refusal);
  EXPECT_EQ(inside, 0);
  EXPECT_LT(calls, 20u);
  filler_->open(4 * kLargestPart, [&](std::size_t, std::size_t) { ++next_parts; });
  filler_->finish_first(kOpenNone);
  EXPECT_EQ(next_parts, 4u);
}

TEST_F(ChunkFillerTest, LeavesProcessorsToOtherTeamsBetweenChunks) {
  const auto processors = std::make_shared<SharedProcessors>(8);
  make_filler(4, processors);
  processors->team_begins();  // another one
  const std::size_t alone = processors->workers();
  for (const bool fails : {false, true}) {
    const auto fill = [&](std::size_t, std::size_t) {
      EXPECT_EQ(processors->workers(), 3u);
      if (fails) throw Refusal("no part");
    };
    filler_->open(kLargestPart, fill);
    if (fails) {
      EXPECT_THROW(filler_->finish_first(kOpenNone), Refusal);
    } else {
      filler_->finish_first(kOpenNone);
    }
    EXPECT_EQ(processors->workers(), alone);
  }
}

}  // namespace
}  // namespace penstock::testing
