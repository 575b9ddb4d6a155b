#include "support/bytes.hpp"
#include "support/resources.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/memory/pool.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace penstock {
namespace {

using testing::CountingResource;
using ::testing::HasSubstr;
using testing::HeapResource;
using testing::HookedResource;
using testing::is_filled;

// A pool over counted ordinary memory, without a device's help.
class PoolTest : public ::testing::Test {
 protected:
  Pool make_pool(PoolOptions options) { return Pool(device_, upstream_, options, "test pool"); }

  void TearDown() override { EXPECT_EQ(upstream_->wrong_returns(), 0u); }

  Device device_ = Device::open("host");
  std::shared_ptr<HookedResource> hooks_ = std::make_shared<HookedResource>(std::make_shared<HeapResource>());
  std::shared_ptr<CountingResource> upstream_ = std::make_shared<CountingResource>(hooks_);
  std::mt19937_64 random_{20241};
};

TEST_F(PoolTest, SizesAreExactToTheAlignmentAndStartsAreAligned) {
  for (const std::size_t alignment : {64, 256, 4096}) {
    Pool pool = make_pool({.budget_bytes = 64 * kMiB, .segment_bytes = kMiB, .alignment = alignment});
    std::vector<Buffer> buffers;
    std::size_t requested = 0;
    std::size_t used = 0;
    for (int i = 0; i < 300; ++i) {
      const std::size_t bytes = 1 + random_() % 50'000;
      buffers.push_back(pool.allocate(bytes));
      requested += bytes;
      used += align_up(bytes, alignment);
      EXPECT_EQ(buffers.back().size(), bytes);
      EXPECT_EQ(buffers.back().bytes().size(), bytes);
      EXPECT_EQ(buffers.back().kind(), MemoryKind::pageable);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffers.back().data()) % alignment, 0u);
    }
    const PoolStatistics statistics = pool.statistics();
    EXPECT_EQ(statistics.requested_bytes, requested);
    EXPECT_EQ(statistics.used_bytes, used);
    EXPECT_EQ(statistics.peak_used_bytes, used);
    EXPECT_EQ(statistics.allocations, 300u);
    EXPECT_EQ(statistics.reserved_bytes, upstream_->live_bytes());
    EXPECT_EQ(statistics.upstream_allocations, upstream_->live());
    buffers.clear();
    EXPECT_EQ(pool.statistics().requested_bytes, 0u);
    EXPECT_EQ(pool.statistics().used_bytes, 0u);
    EXPECT_EQ(pool.statistics().peak_used_bytes, used);
  }
  EXPECT_EQ(upstream_->live(), 0u);
}

TEST_F(PoolTest, OptionsThatCannotMeanAnythingAreRefused) {
  for (const std::size_t alignment : {0, 32, 100, 8192}) {
    EXPECT_THROW(make_pool({.budget_bytes = kMiB, .alignment = alignment}), InvalidArgument) << alignment;
  }
  EXPECT_THROW(Pool(device_, nullptr, {}, "none"), InvalidArgument);
}

TEST_F(PoolTest, ZeroBytesGiveAnEmptyBufferAndTouchNothing) {
  Pool pool = make_pool({.budget_bytes = kMiB});
  Buffer none = pool.allocate(0);
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none.data(), nullptr);
  EXPECT_TRUE(pool.allocate_wait(0).empty());
  none.release();
  none.release_after(device_.create_stream());
  EXPECT_EQ(upstream_->attempts(), 0u);
}

TEST_F(PoolTest, LiveBuffersNeverOverlap) {
  struct Held {
    Buffer buffer;
    std::uint8_t pattern;
  };
  Pool pool = make_pool({.budget_bytes = 8 * kMiB, .segment_bytes = 256 * kKiB});
  std::vector<Held> held;
  const auto check = [](const Held& one) { return is_filled(one.buffer.bytes(), std::byte{one.pattern}); };
  for (int step = 0; step < 4000; ++step) {
    if (held.size() < 20 || (held.size() < 120 && random_() % 2 == 0)) {
      const std::size_t bytes = 1 + (random_() % 8 == 0 ? random_() % 300'000 : random_() % 5'000);
      held.push_back({pool.allocate(bytes), static_cast<std::uint8_t>(random_())});
      std::memset(held.back().buffer.data(), held.back().pattern, bytes);
    } else {
      std::swap(held[random_() % held.size()], held.back());
      ASSERT_TRUE(check(held.back())) << "step " << step;
      held.pop_back();
    }
  }
  EXPECT_TRUE(std::ranges::all_of(held, check));
  held.clear();
  EXPECT_EQ(pool.statistics().used_bytes, 0u);
}

TEST_F(PoolTest, FreedNeighboursCoalesceInAnyOrder) {
  Pool pool = make_pool({.budget_bytes = 8 * kMiB, .segment_bytes = 8 * kMiB});
  for (int round = 0; round < 20; ++round) {
    std::vector<Buffer> parts;
    for (int i = 0; i < 8; ++i) parts.push_back(pool.allocate(kMiB));
    EXPECT_THROW(static_cast<void>(pool.allocate(1)), OutOfMemory);
    std::ranges::shuffle(parts, random_);
    while (!parts.empty()) parts.pop_back();
    EXPECT_EQ(pool.allocate(8 * kMiB).size(), 8 * kMiB);
  }
  EXPECT_EQ(upstream_->allocations(), 1u);
}

TEST_F(PoolTest, NothingIsTakenFromUpstreamInASteadyState) {
  Pool pool = make_pool({.budget_bytes = 64 * kMiB, .segment_bytes = 4 * kMiB});
  const auto batch = [&] {
    std::vector<Buffer> buffers;
    for (const std::size_t bytes : {3'000'000, 1'000, 500'000, 64, 999'999}) {
      buffers.push_back(pool.allocate(bytes));
    }
  };
  batch();
  const std::size_t before = upstream_->attempts();
  for (int i = 0; i < 1000; ++i) batch();
  EXPECT_EQ(upstream_->attempts(), before);
}

TEST_F(PoolTest, ARefusalTellsWhatWasAskedUsedAndFree) {
  Pool pool = make_pool({.budget_bytes = 1000 * 256, .segment_bytes = 256});
  const Buffer kept = pool.allocate(300 * 256 - 10);
  try {
    static_cast<void>(pool.allocate(701 * 256));
    FAIL();
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.asked(), 701u * 256);
    EXPECT_EQ(error.used(), 300u * 256);
    EXPECT_EQ(error.free(), 700u * 256);
    EXPECT_THAT(error.what(), HasSubstr("test pool"));
    EXPECT_THAT(error.what(), HasSubstr("Raise the pool's budget"));
  }
  EXPECT_EQ(pool.allocate(700 * 256).size(), 700u * 256);
  EXPECT_EQ(upstream_->peak_bytes(), 1000u * 256);
}

TEST_F(PoolTest, SizesNearTheEndOfTheAddressSpaceAreRefused) {
  Pool pool = make_pool({.budget_bytes = kMiB});
  for (const std::size_t off : {0, 1, 255, 256, 5000}) {
    const std::size_t bytes = std::numeric_limits<std::size_t>::max() - off;
    EXPECT_THROW(static_cast<void>(pool.allocate(bytes)), OutOfMemory);
    EXPECT_THROW(static_cast<void>(pool.allocate_wait(bytes)), OutOfMemory);
    EXPECT_THROW(pool.reserve(bytes), OutOfMemory);
  }
  EXPECT_EQ(upstream_->attempts(), 0u);
}

TEST_F(PoolTest, SegmentsShrinkToWhatTheBudgetLeaves) {
  Pool pool = make_pool({.budget_bytes = 5 * kMiB, .segment_bytes = 4 * kMiB});
  const Buffer a = pool.allocate(4 * kMiB);
  const Buffer b = pool.allocate(kMiB / 2);
  EXPECT_EQ(pool.statistics().reserved_bytes, 5 * kMiB);
  const Buffer c = pool.allocate(kMiB / 2);
  EXPECT_THROW(static_cast<void>(pool.allocate(1)), OutOfMemory);
}

TEST_F(PoolTest, IdleSegmentsMakeRoomWithinTheBudget) {
  Pool pool = make_pool({.budget_bytes = 8 * kMiB, .segment_bytes = 2 * kMiB});
  std::vector<Buffer> parts;
  for (int i = 0; i < 4; ++i) parts.push_back(pool.allocate(2 * kMiB));
  parts.erase(parts.begin() + 1, parts.end());
  EXPECT_THROW(static_cast<void>(pool.allocate(7 * kMiB)), OutOfMemory);
  EXPECT_EQ(upstream_->live(), 4u) << "a request that cannot be met must not cost the cache";
  EXPECT_EQ(pool.allocate(5 * kMiB).size(), 5 * kMiB);
  EXPECT_LE(upstream_->peak_bytes(), 8 * kMiB);
}

TEST_F(PoolTest, ReservedMemoryServesLaterAllocations) {
  Pool pool = make_pool({.budget_bytes = 32 * kMiB, .segment_bytes = kMiB});
  pool.reserve(10 * kMiB);
  pool.reserve(10 * kMiB);
  pool.reserve(3 * kMiB);
  pool.reserve(0);
  EXPECT_EQ(pool.statistics().reserved_bytes, 10 * kMiB);
  EXPECT_EQ(pool.statistics().used_bytes, 0u);
  const Buffer a = pool.allocate(4 * kMiB);
  const Buffer b = pool.allocate(6 * kMiB);
  EXPECT_EQ(upstream_->allocations(), 1u);
  EXPECT_THROW(pool.reserve(23 * kMiB), OutOfMemory);
  pool.reserve(22 * kMiB);
  EXPECT_EQ(pool.statistics().reserved_bytes, 32 * kMiB);
}

TEST_F(PoolTest, AFailureOfUpstreamLeaksNothingAndTheNextCallWorks) {
  Pool pool = make_pool({.budget_bytes = 64 * kMiB, .segment_bytes = kMiB});
  std::size_t calls = 0;
  hooks_->before_allocate = [&](std::size_t) {
    if (++calls % 3 == 0) throw DeviceError("TEST", "allocate", 1, "Asked for.");
  };
  std::vector<Buffer> buffers;
  std::size_t failures = 0;
  for (int i = 0; i < 30; ++i) {
    try {
      buffers.push_back(pool.allocate(kMiB));
    } catch (const DeviceError&) {
      ++failures;
    }
  }
  EXPECT_EQ(failures, 10u);
  EXPECT_EQ(pool.statistics().reserved_bytes, 20 * kMiB);
  EXPECT_EQ(pool.statistics().used_bytes, 20 * kMiB);
  EXPECT_EQ(pool.statistics().upstream_allocations, 20u);
  EXPECT_EQ(upstream_->live_bytes(), 20 * kMiB);
  buffers.clear();
  EXPECT_EQ(pool.statistics().used_bytes, 0u);
}

TEST_F(PoolTest, WhereUpstreamIsShortTheExactSizeIsAskedForAndIdleSegmentsGoBack) {
  Pool pool = make_pool({.budget_bytes = 64 * kMiB, .segment_bytes = 4 * kMiB});
  hooks_->before_allocate = [&](std::size_t bytes) {
    const std::size_t live = upstream_->live_bytes();
    if (live + bytes > 6 * kMiB) throw OutOfMemory("upstream", bytes, live, 6 * kMiB - live);
  };
  Buffer a = pool.allocate(4 * kMiB);
  Buffer b = pool.allocate(2 * kMiB);
  try {
    static_cast<void>(pool.allocate(kMiB));
    FAIL();
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("upstream"));
    EXPECT_EQ(error.used(), 6 * kMiB);
  }
  b.release();
  a.release();
  const Buffer c = pool.allocate(5 * kMiB);
  EXPECT_EQ(pool.statistics().reserved_bytes, upstream_->live_bytes());
}

TEST_F(PoolTest, ABufferLetGoWhileUpstreamRefusesServesWhoWaits) {
  Pool pool = make_pool({.budget_bytes = kMiB + kMiB / 2, .segment_bytes = kMiB});
  Buffer held = pool.allocate(kMiB / 2);
  const Buffer kept = pool.allocate(kMiB / 2);
  hooks_->before_allocate = [&](std::size_t bytes) {
    held.release();
    throw OutOfMemory("upstream", bytes, 0, 0);
  };
  EXPECT_EQ(pool.allocate_wait(kMiB / 2).size(), kMiB / 2);
}

TEST_F(PoolTest, UpstreamIsNotAskedAgainForWhatItRefused) {
  Pool pool = make_pool({.budget_bytes = kMiB, .segment_bytes = kMiB});
  hooks_->before_allocate = [](std::size_t bytes) { throw OutOfMemory("upstream", bytes, 0, 0); };
  EXPECT_THROW(static_cast<void>(pool.allocate(kMiB)), OutOfMemory);
  EXPECT_EQ(upstream_->attempts(), 1u);
}

TEST_F(PoolTest, AReservationWaitsForAnAllocationThatGrows) {
  Pool pool = make_pool({.budget_bytes = kMiB, .segment_bytes = kMiB});
  std::promise<void> entered;
  hooks_->before_allocate = [&](std::size_t) {
    if (upstream_->attempts() != 1) return;
    entered.set_value();
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(10);
    while (upstream_->attempts() == 1 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  };
  auto allocation = std::async(std::launch::async, [&] { return pool.allocate(kMiB); });
  entered.get_future().wait();
  EXPECT_THROW(pool.reserve(kMiB), OutOfMemory);
  EXPECT_EQ(allocation.get().size(), kMiB);
  EXPECT_EQ(upstream_->peak_bytes(), kMiB);
}

TEST_F(PoolTest, ThePoolMayGoBeforeItsBuffers) {
  auto pool = std::make_unique<Pool>(make_pool({.budget_bytes = 8 * kMiB, .segment_bytes = kMiB}));
  Buffer a = pool->allocate(1000);
  Buffer b = pool->allocate(2 * kMiB);
  pool.reset();
  EXPECT_EQ(upstream_->live(), 2u);
  std::memset(a.data(), 1, a.size());
  std::memset(b.data(), 2, b.size());
  a.release();
  EXPECT_EQ(upstream_->live(), 2u);
  b.release_after(device_.create_stream());
  EXPECT_EQ(upstream_->live(), 0u);
}

TEST_F(PoolTest, BuffersMove) {
  Pool pool = make_pool({.budget_bytes = kMiB, .segment_bytes = kMiB});
  Buffer a = pool.allocate(1000);
  std::byte* const where = a.data();
  Buffer b = std::move(a);
  EXPECT_TRUE(a.empty());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(a.data(), nullptr);
  EXPECT_EQ(b.data(), where);
  Buffer c = pool.allocate(500);
  c = std::move(b);
  EXPECT_EQ(c.data(), where);
  EXPECT_EQ(pool.statistics().requested_bytes, 1000u) << "what c held before went back";
  Buffer& itself = c;
  c = std::move(itself);
  EXPECT_EQ(c.data(), where);
  c.release();
  EXPECT_TRUE(c.empty());
  c.release();
  EXPECT_EQ(pool.statistics().used_bytes, 0u);
}

TEST_F(PoolTest, ThreadsThatFindNoMemoryShareOneSegment) {
  Pool pool = make_pool({.budget_bytes = 16 * kMiB, .segment_bytes = 16 * kMiB});
  std::promise<void> all_came;
  const std::shared_future<void> go = all_came.get_future().share();
  std::atomic<int> came{0};
  hooks_->before_allocate = [&](std::size_t) { go.wait(); };
  std::vector<std::thread> threads;
  std::vector<Buffer> buffers(8);
  for (Buffer& buffer : buffers) {
    threads.emplace_back([&] {
      if (++came == 8) all_came.set_value();
      buffer = pool.allocate(2 * kMiB);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(upstream_->attempts(), 1u);
  EXPECT_EQ(pool.statistics().used_bytes, 16 * kMiB);
}

/// Waits until two threads are in a function of a test, or for long if they never are.
class Both {
 public:
  bool meet() {
    std::unique_lock lock(mutex_);
    ++inside_;
    changed_.notify_all();
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return inside_ >= 2; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int inside_ = 0;
};

TEST_F(PoolTest, UpstreamIsAskedForSeveralLargeSegmentsAtOnce) {
  Pool pool = make_pool({.budget_bytes = 16 * kMiB, .segment_bytes = kMiB});
  Both both;
  std::atomic<int> met{0};
  hooks_->before_allocate = [&](std::size_t) { met += both.meet() ? 1 : 0; };
  auto other = std::async(std::launch::async, [&] { return pool.allocate(4 * kMiB); });
  const Buffer one = pool.allocate(4 * kMiB);
  EXPECT_EQ(other.get().size(), 4 * kMiB);
  EXPECT_EQ(met, 2);
  EXPECT_EQ(pool.statistics().reserved_bytes, 8 * kMiB);
  EXPECT_EQ(upstream_->live_bytes(), 8 * kMiB);
}

TEST_F(PoolTest, WhatUpstreamIsAskedForCountsInTheBudget) {
  Pool pool = make_pool({.budget_bytes = 6 * kMiB, .segment_bytes = kMiB});
  std::promise<void> entered;
  std::promise<void> leave;
  hooks_->before_allocate = [&](std::size_t bytes) {
    if (upstream_->attempts() > 1) return;
    entered.set_value();
    leave.get_future().wait();
    throw OutOfMemory("upstream", bytes, 0, 0);
  };
  auto fails = std::async(std::launch::async, [&] { return pool.allocate(4 * kMiB); });
  entered.get_future().wait();
  EXPECT_THROW(static_cast<void>(pool.allocate(4 * kMiB)), OutOfMemory);
  const Buffer small = pool.allocate(2 * kMiB);
  leave.set_value();
  EXPECT_THROW(static_cast<void>(fails.get()), OutOfMemory);
  const Buffer large = pool.allocate(4 * kMiB);
  EXPECT_EQ(upstream_->peak_bytes(), 6 * kMiB);
}

TEST_F(PoolTest, CachedMemoryIsServedWhileUpstreamIsBusy) {
  Pool pool = make_pool({.budget_bytes = 16 * kMiB, .segment_bytes = kMiB});
  pool.reserve(kMiB);
  std::promise<void> entered;
  std::promise<void> leave;
  hooks_->before_allocate = [&](std::size_t) {
    entered.set_value();
    leave.get_future().wait();
  };
  auto large = std::async(std::launch::async, [&] { return pool.allocate(8 * kMiB); });
  entered.get_future().wait();
  auto small = std::async(std::launch::async, [&] {
    Buffer buffer = pool.allocate(1000);
    buffer.release();
    return pool.statistics().reserved_bytes;
  });
  EXPECT_EQ(small.wait_for(std::chrono::seconds(120)), std::future_status::ready);
  leave.set_value();
  EXPECT_EQ(small.get(), kMiB);
  EXPECT_EQ(large.get().size(), 8 * kMiB);
}

TEST_F(PoolTest, ThreadsMayHammerIt) {
  {
    Pool pool = make_pool({.budget_bytes = 4 * kMiB, .segment_bytes = 128 * kKiB});
    std::atomic<int> damaged{0};
    const auto hammer = [&](unsigned seed) {
      std::mt19937 random(seed);
      const Stream stream = device_.create_stream();
      std::vector<Buffer> held;
      const auto intact = [](const Buffer& buffer) { return is_filled(buffer.bytes(), buffer.data()[0]); };
      for (int step = 0; step < 1500; ++step) {
        if (held.size() < 12) {
          try {
            held.push_back(pool.allocate(1 + random() % 40'000));
            std::memset(held.back().data(), static_cast<int>(random() % 256), held.back().size());
          } catch (const OutOfMemory&) {
          }
        }
        if (held.size() >= 12 || random() % 3 == 0) {
          if (held.empty()) continue;
          std::swap(held[random() % held.size()], held.back());
          if (!intact(held.back())) ++damaged;
          if (random() % 2 == 0) held.back().release_after(stream);
          held.pop_back();
        }
        EXPECT_LE(pool.statistics().reserved_bytes, 4 * kMiB);
      }
    };
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 4; ++i) threads.emplace_back(hammer, i);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(damaged, 0);
    EXPECT_EQ(pool.statistics().used_bytes, 0u);
  }
  EXPECT_LE(upstream_->peak_bytes(), 4 * kMiB);
  EXPECT_EQ(upstream_->live(), 0u);
}

}  // namespace
}  // namespace penstock
