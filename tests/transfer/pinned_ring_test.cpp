#include "support/gate.hpp"
#include "transfer/engine_fixture.hpp"

#include <penstock/transfer/pinned_ring.hpp>

#include <chrono>
#include <future>
#include <latch>
#include <memory>
#include <set>
#include <thread>

namespace penstock::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kSlot = std::size_t{64} << 10;

class PinnedRingTest : public FaultyEngineTest {
 protected:
  void SetUp() override {
    FaultyEngineTest::SetUp();
    if (IsSkipped()) return;
    pool_.emplace(make_pinned_pool(*faulty_device_, {.budget_bytes = 3 * kSlot, .segment_bytes = kSlot}));
    stream_.emplace(faulty_device_->create_stream());
    destination_ = poisoned_on_device(8 * kSlot);
  }

  void copy(PinnedRing::Slot& slot, std::size_t at, const Stream& stream) {
    device_->backend().copy(destination_.data() + at, slot.data(), kSlot, CopyDirection::h2d,
                            stream.native());
  }

  void send(PinnedRing::Slot& slot, std::size_t at, const Stream& stream) {
    copy(slot, at, stream);
    slot.sent(stream);
  }

  std::optional<Pool> pool_;
  std::optional<Stream> stream_;
  Buffer destination_;
};

PENSTOCK_DEVICE_SUITE(PinnedRingTest);
PENSTOCK_SLOW_LINK_SUITE(PinnedRingTest);

template <typename Future>
bool is_waiting(Future& future) {
  return future.wait_for(20ms) == std::future_status::timeout;
}

TEST_P(PinnedRingTest, SlotsComeInTurnAndCarryEveryByte) {
  PinnedRing ring(*faulty_device_, *pool_, 3, kSlot);
  const auto source = random_bytes(8 * kSlot, 1);
  std::vector<std::byte*> used;
  for (std::size_t i = 0; i < 8; ++i) {
    PinnedRing::Slot& slot = ring.next();
    EXPECT_EQ(slot.bytes().size(), kSlot);
    std::memcpy(slot.data(), source.data() + i * kSlot, kSlot);
    send(slot, i * kSlot, *stream_);
    used.push_back(slot.data());
  }
  EXPECT_EQ(std::set(used.begin(), used.end()).size(), 3U);
  for (std::size_t i = 3; i < 8; ++i) EXPECT_EQ(used[i], used[i - 3]);
  EXPECT_EQ(first_difference(read(destination_.data(), 8 * kSlot, *stream_), source), -1);
}

TEST_P(PinnedRingTest, ASlotIsWaitedForUntilItsCopyIsDone) {
  PinnedRing ring(*faulty_device_, *pool_, 1, kSlot);
  const auto source = random_bytes(kSlot, 2);
  Gate gate(*device_, *stream_);
  std::memcpy(ring.next().data(), source.data(), kSlot);
  send(ring[0], 0, *stream_);
  auto next = std::async(std::launch::async, [&] { std::memset(ring.next().data(), 0, kSlot); });
  auto waiter = std::async(std::launch::async, [&] { ring[0].wait(); });
  EXPECT_TRUE(is_waiting(next));
  EXPECT_TRUE(is_waiting(waiter));
  gate.open();
  next.get();
  waiter.get();
  EXPECT_EQ(first_difference(read(destination_.data(), kSlot, *stream_), source), -1);
}

TEST_P(PinnedRingTest, ASlotIsFreeOnceItsCopyIsDone) {
  PinnedRing ring(*faulty_device_, *pool_, 1, kSlot);
  EXPECT_TRUE(ring[0].is_free());
  Gate gate(*device_, *stream_);
  send(ring[0], 0, *stream_);
  EXPECT_FALSE(ring[0].is_free());
  gate.open();
  while (!ring[0].is_free()) std::this_thread::yield();
  faulty_->fail(Entry::event_query);
  send(ring[0], 0, *stream_);
  EXPECT_THROW(static_cast<void>(ring[0].is_free()), DeviceError);
}

TEST_P(PinnedRingTest, AMarkOfSomebodyElseCountsUntilTheNext) {
  PinnedRing ring(*faulty_device_, *pool_, 1, kSlot);
  const auto mark = std::make_shared<Event>(faulty_device_->create_event());
  {
    Gate gate(*device_, *stream_);
    mark->record(*stream_);
    ring[0].sent(mark);
    auto next = std::async(std::launch::async, [&] { static_cast<void>(ring.next_in_naps()); });
    EXPECT_TRUE(is_waiting(next));
    gate.open();
    next.get();
  }
  {
    Gate gate(*device_, *stream_);
    faulty_->fail(Entry::event_record);
    faulty_->fail(Entry::stream_synchronize);
    EXPECT_THROW(send(ring[0], 0, *stream_), DeviceError);
    EXPECT_FALSE(ring[0].is_free()) << "it could be neither marked nor waited for";
    gate.open();
    stream_->synchronize();
    EXPECT_TRUE(ring[0].is_free()) << "the stream has nothing to do";
  }
  ring[0].sent(mark);
  EXPECT_TRUE(ring[0].is_free()) << "what it marks is done";
  Gate gate(*device_, *stream_);
  send(ring[0], 0, *stream_);
  EXPECT_FALSE(ring[0].is_free());
}

TEST_P(PinnedRingTest, NapsEndOnceTheDeviceIsDone) {
  PinnedRing ring(*faulty_device_, *pool_, 1, kSlot);
  Gate gate(*device_, *stream_);
  Event copied = faulty_device_->create_event();
  copy(ring.next_in_naps(), 0, *stream_);
  copied.record(*stream_);
  ring[0].sent(*stream_);
  auto next = std::async(std::launch::async, [&] { return &ring.next_in_naps(); });
  EXPECT_TRUE(is_waiting(next));
  gate.open();
  EXPECT_EQ(next.get(), &ring[0]);
  EXPECT_TRUE(copied.query());
  send(ring[0], 0, *stream_);
  faulty_->fail(Entry::event_query);
  EXPECT_THROW(static_cast<void>(ring.next_in_naps()), DeviceError);
  EXPECT_EQ(&ring.next_in_naps(), &ring[0]);
}

TEST_P(PinnedRingTest, MemoryStaysUntilItsCopyIsDone) {
  std::optional<PinnedRing> ring(std::in_place, *faulty_device_, *pool_, 3, kSlot);
  Gate gate(*device_, *stream_);
  const auto source = random_bytes(kSlot, 3);
  std::memcpy(ring->next().data(), source.data(), kSlot);
  send((*ring)[0], 0, *stream_);
  auto end = std::async(std::launch::async, [&] {
    ring.reset();
    for (int i = 0; i < 3; ++i) std::memset(pool_->allocate(kSlot).data(), 0, kSlot);
  });
  EXPECT_TRUE(is_waiting(end));
  gate.open();
  end.get();
  EXPECT_EQ(first_difference(read(destination_.data(), kSlot, *stream_), source), -1);
  EXPECT_EQ(pool_->statistics().used_bytes, 0U);
}

TEST_P(PinnedRingTest, ACopyThatCannotBeMarkedIsWaitedFor) {
  PinnedRing ring(*faulty_device_, *pool_, 1, kSlot);
  Gate gate(*device_, *stream_);
  faulty_->fail(Entry::event_record);
  auto sent =
      std::async(std::launch::async, [&] { EXPECT_THROW(send(ring.next(), 0, *stream_), DeviceError); });
  EXPECT_TRUE(is_waiting(sent));
  gate.open();
  sent.get();
  const std::size_t waits = faulty_->calls(Entry::event_synchronize);
  static_cast<void>(ring.next());
  EXPECT_EQ(faulty_->calls(Entry::event_synchronize), waits) << "nothing is under way any more";
}

TEST_P(PinnedRingTest, ACopyThatCanBeNeitherMarkedNorWaitedForKeepsItsSlot) {
  PinnedRing ring(*faulty_device_, *pool_, 1, kSlot);
  Gate gate(*device_, *stream_);
  faulty_->fail(Entry::event_record);
  faulty_->fail(Entry::stream_synchronize, 1, 2);
  EXPECT_THROW(send(ring.next(), 0, *stream_), DeviceError);
  EXPECT_THROW(static_cast<void>(ring.next()), DeviceError) << "it may still be read";
  EXPECT_FALSE(ring[0].is_free());
  auto next = std::async(std::launch::async, [&] { return &ring.next(); });
  EXPECT_TRUE(is_waiting(next));
  gate.open();
  EXPECT_EQ(next.get(), &ring[0]) << "the same slot, once its stream is done";
  send(ring[0], 0, *stream_);
  stream_->synchronize();
  Gate later(*device_, *stream_);
  auto waiter = std::async(std::launch::async, [&] { ring[0].wait(); });
  EXPECT_EQ(waiter.wait_for(120s), std::future_status::ready) << "for its own copy, not for the stream";
  later.open();
}

TEST_P(PinnedRingTest, MemoryThatMayStillBeReadIsNeverUsedAgain) {
  for (const bool marked : {true, false}) {
    Gate gate(*device_, *stream_);
    Pool pool = make_pinned_pool(*device_, {.budget_bytes = kSlot, .segment_bytes = kSlot});
    {
      PinnedRing ring(*faulty_device_, pool, 1, kSlot);
      if (!marked) {
        faulty_->fail(Entry::event_record);
        faulty_->fail(Entry::stream_synchronize);
        EXPECT_THROW(send(ring.next(), 0, *stream_), DeviceError);
      } else {
        send(ring.next(), 0, *stream_);
        faulty_->fail(Entry::event_synchronize, 1, 2);
      }
    }
    EXPECT_EQ(pool.statistics().used_bytes, kSlot);
    EXPECT_THROW(static_cast<void>(pool.allocate(kSlot)), OutOfMemory);
    faulty_->heal();
  }
}

TEST_P(PinnedRingTest, AnEarlierFailureThatComesToLightAtTheEndLosesNothing) {
  {
    PinnedRing ring(*faulty_device_, *pool_, 2, kSlot);
    send(ring.next(), 0, *stream_);
    faulty_->fail(Entry::event_synchronize);
  }
  EXPECT_EQ(pool_->statistics().used_bytes, 0U);
}

TEST_P(PinnedRingTest, AFailedWaitIsToldAndAskedAgain) {
  PinnedRing ring(*faulty_device_, *pool_, 2, kSlot);
  PinnedRing::Slot& first = ring.next();
  send(first, 0, *stream_);
  send(ring.next(), kSlot, *stream_);
  faulty_->fail(Entry::event_synchronize);
  EXPECT_THROW(static_cast<void>(ring.next()), DeviceError);
  EXPECT_EQ(&ring.next(), &first);
}

TEST_P(PinnedRingTest, SeveralThreadsMayWaitForASlot) {
  PinnedRing ring(*faulty_device_, *pool_, 1, kSlot);
  for (int round = 0; round < 50; ++round) {
    const auto source = random_bytes(kSlot, static_cast<unsigned>(round));
    std::memcpy(ring.next().data(), source.data(), kSlot);
    send(ring[0], 0, *stream_);
    std::latch together(3);
    std::vector<std::thread> threads;
    for (std::size_t part = 0; part < 3; ++part) {
      threads.emplace_back([&, part] {
        together.arrive_and_wait();
        ring[0].wait();
        std::memset(ring[0].data() + part * (kSlot / 4), 0, kSlot / 4);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(first_difference(read(destination_.data(), kSlot, *stream_), source), -1);
  }
}

TEST_P(PinnedRingTest, WithoutMemoryForAllSlotsThereIsNone) {
  EXPECT_THROW(PinnedRing(*faulty_device_, *pool_, 4, kSlot), OutOfMemory);
  EXPECT_EQ(pool_->statistics().used_bytes, 0U);
  const PinnedRing ring(*faulty_device_, *pool_, 3, kSlot);
  EXPECT_EQ(ring.size(), 3U);
}

}  // namespace
}  // namespace penstock::testing
