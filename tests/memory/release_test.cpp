#include "devices.hpp"
#include "support/faulty_backend.hpp"
#include "support/resources.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/memory/pool.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace penstock {
namespace {

using testing::CountingResource;
using testing::DeviceTest;
using testing::Entry;
using testing::FaultyBackend;
using testing::Gate;
using testing::HeapResource;
using testing::HookedResource;

constexpr auto kSoon = std::chrono::milliseconds(20);
constexpr auto kNever = std::chrono::seconds(120);

template <typename T>
bool is_waiting(std::future<T>& future) {
  return future.wait_for(kSoon) == std::future_status::timeout;
}

template <typename T>
bool is_over(std::future<T>& future) {
  return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

template <typename T>
bool ends(std::future<T>& future) {
  return future.wait_for(kNever) == std::future_status::ready;
}

// Reuse that waits for a stream. The pool's memory is ordinary, since no work of the device touches it.
// DataTest below moves bytes.
class ReleaseTest : public DeviceTest {
 protected:
  Pool make_pool(std::size_t budget, std::size_t segment) {
    return Pool(device(), upstream_, {.budget_bytes = budget, .segment_bytes = segment}, "test pool");
  }

  std::shared_ptr<HookedResource> hooks_ = std::make_shared<HookedResource>(std::make_shared<HeapResource>());
  std::shared_ptr<CountingResource> upstream_ = std::make_shared<CountingResource>(hooks_);
};

PENSTOCK_DEVICE_SUITE(ReleaseTest);

TEST_P(ReleaseTest, MemoryIsNotHandedOutBeforeTheStreamIsDone) {
  Pool pool = make_pool(kMiB, kMiB);
  const Stream stream = device().create_stream();
  Buffer buffer = pool.allocate(kMiB);
  std::byte* const where = buffer.data();
  Gate gate(device(), stream);
  buffer.release_after(stream);
  EXPECT_TRUE(buffer.empty());
  EXPECT_EQ(pool.statistics().used_bytes, 0u);
  EXPECT_EQ(pool.statistics().requested_bytes, 0u);
  EXPECT_EQ(pool.statistics().pending_bytes, kMiB);
  for (int i = 0; i < 100; ++i) EXPECT_THROW(static_cast<void>(pool.allocate(1)), OutOfMemory);
  gate.open();
  stream.synchronize();
  EXPECT_EQ(pool.allocate(kMiB).data(), where);
  EXPECT_EQ(pool.statistics().pending_bytes, 0u);
  EXPECT_EQ(upstream_->allocations(), 1u);
}

TEST_P(ReleaseTest, WorkEnqueuedAfterTheReleaseIsNotWaitedFor) {
  Pool pool = make_pool(kMiB, kMiB);
  const Stream stream = device().create_stream();
  Buffer buffer = pool.allocate(kMiB);
  buffer.release_after(stream);
  stream.synchronize();
  Gate gate(device(), stream);
  EXPECT_EQ(pool.allocate(kMiB).size(), kMiB);
}

TEST_P(ReleaseTest, OneStreamsReleaseDoesNotHoldUpAnothers) {
  Pool pool = make_pool(2 * kMiB, 2 * kMiB);
  const Stream slow = device().create_stream();
  const Stream quick = device().create_stream();
  Buffer first = pool.allocate(kMiB);
  Buffer second = pool.allocate(kMiB);
  std::byte* const where = second.data();
  Gate gate(device(), slow);
  first.release_after(slow);
  second.release_after(quick);
  quick.synchronize();
  EXPECT_EQ(pool.allocate(kMiB).data(), where);
  EXPECT_EQ(pool.statistics().pending_bytes, kMiB);
}

TEST_P(ReleaseTest, PendingRangesCoalesceWhenTheyAreDone) {
  Pool pool = make_pool(8 * kMiB, 8 * kMiB);
  const Stream a = device().create_stream();
  const Stream b = device().create_stream();
  for (int round = 0; round < 10; ++round) {
    std::vector<Buffer> parts;
    for (int i = 0; i < 8; ++i) parts.push_back(pool.allocate(kMiB));
    for (int i = 0; i < 8; ++i) parts[i * 3 % 8].release_after(i % 2 == 0 ? a : b);
    a.synchronize();
    b.synchronize();
    // A GPU may be done with a stream a little before it tells so of an event.
    EXPECT_EQ(pool.allocate_wait(8 * kMiB).size(), 8 * kMiB);
  }
  EXPECT_EQ(upstream_->allocations(), 1u);
}

TEST_P(ReleaseTest, ASteadyStateNeedsNoNewEvents) {
  const auto backend = std::make_shared<FaultyBackend>(device().shared_backend());
  Pool pool(Device(backend), upstream_, {.budget_bytes = kMiB, .segment_bytes = kMiB}, "test pool");
  const Stream stream = Device(backend).create_stream();
  for (int i = 0; i < 200; ++i) {
    Buffer a = pool.allocate_wait(kMiB / 2);
    Buffer b = pool.allocate_wait(kMiB / 2);
    a.release_after(stream);
    b.release_after(stream);
  }
  EXPECT_LE(backend->calls(Entry::event_create), 2u);
  EXPECT_EQ(backend->calls(Entry::event_record), 400u);
  EXPECT_EQ(upstream_->allocations(), 1u);
}

TEST_P(ReleaseTest, AStreamOfAnotherDeviceMayReleaseToo) {
  Pool pool = make_pool(kMiB, kMiB);
  const Stream own = device().create_stream();
  pool.allocate(kMiB).release_after(own);
  const Device other = Device::open("host");
  const Stream stream = other.create_stream();
  // A GPU that other programs use, too, may be done with a stream a little before it tells so of an event.
  Buffer buffer = pool.allocate_wait(kMiB);
  Gate gate(other, stream);
  buffer.release_after(stream);
  EXPECT_THROW(static_cast<void>(pool.allocate(1)), OutOfMemory);
  gate.open();
  stream.synchronize();
  EXPECT_EQ(pool.allocate(kMiB).size(), kMiB);
}

TEST_P(ReleaseTest, AllocateWaitBlocksUntilThePendingReleaseIsDone) {
  Pool pool = make_pool(kMiB, kMiB);
  const Stream stream = device().create_stream();
  Buffer buffer = pool.allocate(kMiB);
  Gate gate(device(), stream);
  buffer.release_after(stream);
  std::atomic<bool> opened{false};
  auto waiter = std::async(std::launch::async, [&] {
    Buffer got = pool.allocate_wait(kMiB);
    EXPECT_TRUE(opened);
    return got;
  });
  EXPECT_TRUE(is_waiting(waiter));
  opened = true;
  gate.open();
  ASSERT_TRUE(ends(waiter));
  EXPECT_EQ(waiter.get().size(), kMiB);
}

TEST_P(ReleaseTest, AllocateWaitTakesWhicheverReleaseEndsFirst) {
  Pool pool = make_pool(2 * kMiB, 2 * kMiB);
  const Stream never = device().create_stream();
  const Stream later = device().create_stream();
  Buffer first = pool.allocate(kMiB);
  Buffer second = pool.allocate(kMiB);
  std::byte* const where = second.data();
  Gate closed(device(), never);
  Gate gate(device(), later);
  first.release_after(never);
  second.release_after(later);
  auto waiter = std::async(std::launch::async, [&] { return pool.allocate_wait(kMiB); });
  EXPECT_TRUE(is_waiting(waiter));
  gate.open();
  if (!ends(waiter)) ADD_FAILURE() << "waits for the older release alone";
  closed.open();
  EXPECT_EQ(waiter.get().data(), where);
}

TEST_P(ReleaseTest, AllocateWaitTakesABufferThatAnotherThreadLetsGo) {
  Pool pool = make_pool(2 * kMiB, 2 * kMiB);
  const Stream stream = device().create_stream();
  Buffer first = pool.allocate(kMiB);
  Buffer second = pool.allocate(kMiB);
  std::byte* const where = second.data();
  Gate gate(device(), stream);
  first.release_after(stream);
  auto waiter = std::async(std::launch::async, [&] { return pool.allocate_wait(kMiB); });
  EXPECT_TRUE(is_waiting(waiter));
  second.release();
  if (!ends(waiter)) ADD_FAILURE() << "does not see the buffer";
  gate.open();
  EXPECT_EQ(waiter.get().data(), where);
}

TEST_P(ReleaseTest, AllocateWaitDoesNotWaitForWhatCannotServe) {
  Pool pool = make_pool(4 * kMiB, 4 * kMiB);
  const Stream stream = device().create_stream();
  std::vector<Buffer> parts;
  for (int i = 0; i < 4; ++i) parts.push_back(pool.allocate(kMiB));
  EXPECT_THROW(static_cast<void>(pool.allocate_wait(1)), OutOfMemory) << "nothing is pending";
  Gate gate(device(), stream);
  parts[0].release_after(stream);
  parts[2].release_after(stream);
  for (const std::size_t bytes : {2 * kMiB, 5 * kMiB}) {
    auto attempt = std::async(std::launch::async, [&] { return pool.allocate_wait(bytes); });
    if (!ends(attempt)) {
      ADD_FAILURE() << "waits for two ranges that a live buffer keeps apart, or for more than the budget";
      gate.open();
    }
    EXPECT_THROW(attempt.get(), OutOfMemory);
  }
}

TEST_P(ReleaseTest, AllocateWaitGivesWholeSegmentsBackForALargerOne) {
  Pool pool = make_pool(4 * kMiB, 2 * kMiB);
  const Stream stream = device().create_stream();
  Buffer a = pool.allocate(2 * kMiB);
  Buffer b = pool.allocate(2 * kMiB);
  Gate gate(device(), stream);
  a.release_after(stream);
  b.release_after(stream);
  auto waiter = std::async(std::launch::async, [&] { return pool.allocate_wait(3 * kMiB); });
  EXPECT_TRUE(is_waiting(waiter));
  gate.open();
  ASSERT_TRUE(ends(waiter));
  EXPECT_EQ(waiter.get().size(), 3 * kMiB);
  EXPECT_LE(upstream_->peak_bytes(), 4 * kMiB);
}

TEST_P(ReleaseTest, MemoryGoesBackToUpstreamOnlyAfterItsLastWork) {
  std::atomic<bool> opened{false};
  auto pool = std::make_unique<Pool>(make_pool(4 * kMiB, kMiB));
  const Stream stream = device().create_stream();
  Buffer kept = pool->allocate(kMiB);
  Buffer buffer = pool->allocate(kMiB);
  Gate gate(device(), stream);
  buffer.release_after(stream);
  pool.reset();
  hooks_->before_deallocate = [&] { EXPECT_TRUE(opened); };
  auto last = std::async(std::launch::async, [&] { kept.release(); });
  EXPECT_TRUE(is_waiting(last));
  opened = true;
  gate.open();
  ASSERT_TRUE(ends(last));
  EXPECT_EQ(upstream_->live(), 0u);
}

class ReleaseFaultTest : public ReleaseTest {
 protected:
  void SetUp() override {
    ReleaseTest::SetUp();
    if (IsSkipped()) return;
    backend_ = std::make_shared<FaultyBackend>(device().shared_backend());
    faulty_.emplace(backend_);
  }

  Pool make_faulty_pool() {
    return Pool(*faulty_, upstream_, {.budget_bytes = kMiB, .segment_bytes = kMiB}, "test pool");
  }

  std::shared_ptr<FaultyBackend> backend_;
  std::optional<Device> faulty_;
};

PENSTOCK_DEVICE_SUITE(ReleaseFaultTest);

TEST_P(ReleaseFaultTest, AReleaseThatCannotBeMarkedWaitsForItsStream) {
  Pool pool = make_faulty_pool();
  const Stream stream = faulty_->create_stream();
  for (const Entry entry : {Entry::event_create, Entry::event_record}) {
    Buffer buffer = pool.allocate(kMiB);
    backend_->fail(entry);
    std::atomic<bool> opened{false};
    Gate gate(device(), stream);
    auto release = std::async(std::launch::async, [&] {
      EXPECT_THROW(buffer.release_after(stream), DeviceError);
      EXPECT_TRUE(opened);
    });
    EXPECT_TRUE(is_waiting(release));
    opened = true;
    gate.open();
    ASSERT_TRUE(ends(release));
    EXPECT_TRUE(buffer.empty());
    EXPECT_EQ(pool.statistics().pending_bytes, 0u);
    EXPECT_EQ(pool.statistics().used_bytes, 0u);
    EXPECT_EQ(pool.allocate(kMiB).size(), kMiB);
  }
  const std::size_t events = backend_->calls(Entry::event_create);
  pool.allocate(kMiB).release_after(stream);
  EXPECT_EQ(backend_->calls(Entry::event_create), events) << "the event that could not be recorded is kept";
}

TEST_P(ReleaseFaultTest, MemoryThatMayStillBeWrittenIsNeverUsedAgain) {
  const Stream stream = faulty_->create_stream();
  {
    Pool pool = make_faulty_pool();
    Buffer lost = pool.allocate(kMiB / 2);
    backend_->fail(Entry::event_record);
    backend_->fail(Entry::stream_synchronize, 1, 2);
    EXPECT_THROW(lost.release_after(stream), DeviceError);
    EXPECT_EQ(pool.statistics().pending_bytes, kMiB / 2);
    EXPECT_EQ(pool.allocate(kMiB / 2).size(), kMiB / 2);
    EXPECT_THROW(static_cast<void>(pool.allocate(kMiB)), OutOfMemory);
    EXPECT_THROW(static_cast<void>(pool.allocate_wait(kMiB)), OutOfMemory);
  }
  EXPECT_EQ(upstream_->live(), 1u);
}

TEST_P(ReleaseFaultTest, AnEarlierFailureThatComesToLightWhileMarkingLosesNothing) {
  Pool pool = make_faulty_pool();
  const Stream stream = faulty_->create_stream();
  Buffer buffer = pool.allocate(kMiB);
  backend_->fail(Entry::event_record);
  backend_->fail(Entry::stream_synchronize);
  EXPECT_THROW(buffer.release_after(stream), DeviceError);
  EXPECT_EQ(pool.allocate(kMiB).size(), kMiB);
}

TEST_P(ReleaseFaultTest, AReleaseWhoseStateCannotBeAskedFailsWhoNeedsIt) {
  Pool pool = make_faulty_pool();
  const Stream stream = faulty_->create_stream();
  Buffer half = pool.allocate(kMiB / 2);
  half.release_after(stream);
  backend_->fail(Entry::event_query, 1, FaultyBackend::kForever);
  EXPECT_EQ(pool.allocate(kMiB / 2).size(), kMiB / 2) << "served by what is free";
  EXPECT_THROW(static_cast<void>(pool.allocate(kMiB)), DeviceError);
  EXPECT_THROW(static_cast<void>(pool.allocate_wait(kMiB)), DeviceError);
  backend_->heal();
  EXPECT_THROW(static_cast<void>(pool.allocate(2 * kMiB)), OutOfMemory) << "that failure is over";
  EXPECT_EQ(pool.allocate_wait(kMiB).size(), kMiB);
}

TEST_P(ReleaseFaultTest, WhoWaitsLearnsThatAReleaseCannotBeAskedAnyMore) {
  Pool pool = make_faulty_pool();
  const Stream stream = faulty_->create_stream();
  Gate gate(device(), stream);
  pool.allocate(kMiB).release_after(stream);
  auto waiter = std::async(std::launch::async,
                           [&] { EXPECT_THROW(static_cast<void>(pool.allocate_wait(kMiB)), DeviceError); });
  // An attempt to allocate asks fewer times: from here on it is the wait that asks.
  while (backend_->calls(Entry::event_query) < 20 && !is_over(waiter)) std::this_thread::yield();
  backend_->fail(Entry::event_query);
  EXPECT_TRUE(ends(waiter));
  gate.open();
  EXPECT_EQ(pool.allocate_wait(kMiB).size(), kMiB);
}

TEST_P(ReleaseFaultTest, DestructionSwallowsFailures) {
  const Stream stream = faulty_->create_stream();
  for (const std::size_t failures : {1, 2}) {
    {
      Pool pool = make_faulty_pool();
      pool.allocate(kMiB).release_after(stream);
      backend_->fail(Entry::event_synchronize, 1, failures);
    }
    EXPECT_EQ(upstream_->live(), failures - 1) << "kept only where the wait itself failed";
    backend_->heal();
  }
  EXPECT_EQ(backend_->live().events, 0u);
}

// The same with bytes that the device still reads or writes.
class DataTest : public DeviceTest {
 protected:
  static std::vector<std::byte> noise(std::size_t bytes, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::byte> data(bytes);
    std::ranges::generate(data, [&] { return static_cast<std::byte>(random()); });
    return data;
  }
};

PENSTOCK_DEVICE_SUITE(DataTest);

TEST_P(DataTest, ASourceLetGoIsReadBeforeItIsReused) {
  constexpr std::size_t kBytes = 64 * kKiB;
  Pool pinned = make_pinned_pool(device(), {.budget_bytes = 3 * kBytes, .segment_bytes = 3 * kBytes});
  Pool on_device = make_device_pool(device(), {.budget_bytes = 16 * kBytes, .segment_bytes = 16 * kBytes});
  const Stream stream = device().create_stream();
  std::vector<Buffer> arrived;
  std::vector<std::vector<std::byte>> sent;
  for (unsigned i = 0; i < 16; ++i) {
    sent.push_back(noise(kBytes, i));
    Buffer source = pinned.allocate_wait(kBytes);
    std::memcpy(source.data(), sent.back().data(), kBytes);
    arrived.push_back(on_device.allocate(kBytes));
    EXPECT_EQ(arrived.back().kind(), MemoryKind::device);
    stream.copy(arrived.back().data(), source.data(), kBytes, CopyDirection::h2d);
    source.release_after(stream);
  }
  for (unsigned i = 0; i < 16; ++i) {
    Buffer back = pinned.allocate_wait(kBytes);
    std::memset(back.data(), 0xEE, kBytes);
    stream.copy(back.data(), arrived[i].data(), kBytes, CopyDirection::d2h);
    stream.synchronize();
    EXPECT_EQ(std::memcmp(back.data(), sent[i].data(), kBytes), 0) << "buffer " << i;
  }
}

TEST_P(DataTest, ThreadsShareAPinnedPoolThatIsTooSmallForAll) {
  constexpr std::size_t kBytes = 16 * kKiB;
  Pool pinned = make_pinned_pool(device(), {.budget_bytes = 6 * kBytes, .segment_bytes = 6 * kBytes});
  Pool on_device = make_device_pool(device(), {.budget_bytes = 4 * kBytes, .segment_bytes = 4 * kBytes});
  std::atomic<int> wrong{0};
  const auto work = [&](unsigned id) {
    const Stream stream = device().create_stream();
    Buffer there = on_device.allocate(kBytes);
    for (unsigned round = 0; round < 40; ++round) {
      const auto data = noise(kBytes, id * 1000 + round);
      Buffer source = pinned.allocate_wait(kBytes);
      std::memcpy(source.data(), data.data(), kBytes);
      stream.copy(there.data(), source.data(), kBytes, CopyDirection::h2d);
      source.release_after(stream);
      // One buffer a thread is live at a time, and five of six can be pending: the wait always ends.
      Buffer back = pinned.allocate_wait(kBytes);
      stream.copy(back.data(), there.data(), kBytes, CopyDirection::d2h);
      stream.synchronize();
      if (std::memcmp(back.data(), data.data(), kBytes) != 0) ++wrong;
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace penstock
