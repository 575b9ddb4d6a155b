#include "transfer/staging.hpp"

#include "support/gate.hpp"
#include "support/threads.hpp"
#include "transfer/engine_fixture.hpp"

#include <algorithm>
#include <atomic>
#include <thread>

namespace penstock::testing {
namespace {

constexpr std::size_t kChunk = std::size_t{256} << 10;

/// Rings of their own, whose chunks are all of kChunk bytes, which each of the ring's threads has a part of.
class StagingRingTest : public FaultyEngineTest {
 protected:
  void SetUp() override {
    FaultyEngineTest::SetUp();
    if (IsSkipped()) return;
    slots_ = std::make_shared<Pool>(make_pinned_pool(*faulty_device_, {.budget_bytes = 4 * kChunk}));
    events_ = std::make_shared<EventPool>(*faulty_device_);
    wire_.emplace(faulty_device_->create_stream());
    device_memory_ = poisoned_on_device(8 * kChunk);
  }

  void TearDown() override {
    if (faulty_) faulty_->before(Entry::event_synchronize, {});
  }

  /// One of the `threads` is whoever helps.
  std::unique_ptr<StagingRing> make_ring(CopyDirection direction, unsigned threads, unsigned slots) {
    return std::make_unique<StagingRing>(
        *faulty_device_, slots_, events_, direction, *wire_,
        StagingOptions{.threads = threads,
                       .slots = slots,
                       .chunks = {.smallest = kChunk, .largest = kChunk, .growth = 1},
                       .stores = StoreKind::cached,
                       .spin = std::chrono::microseconds(0)});
  }

  /// To `at` in the device's memory.
  std::shared_ptr<TransferState> send(StagingRing& ring, const std::vector<std::byte>& source,
                                      std::size_t at = 0) {
    const auto state =
        std::make_shared<TransferState>(TransferPath::staged, CopyDirection::h2d, source.size(), 1);
    ring.submit(state, device_memory_.data() + at, source.data(), {nullptr, {}});
    return state;
  }

  /// From the begin of the device's memory.
  std::shared_ptr<TransferState> bring_home(StagingRing& ring, std::vector<std::byte>& destination) {
    const auto state =
        std::make_shared<TransferState>(TransferPath::staged, CopyDirection::d2h, destination.size(), 1);
    ring.submit(state, destination.data(), device_memory_.data(), {nullptr, {}});
    return state;
  }

  /// Sends a chunk through each slot. Who moves the next chunks then waits for those copies first.
  void use_slots(StagingRing& ring, unsigned slots) {
    send(ring, std::vector<std::byte>(slots * kChunk, kPoison))->synchronize();
  }

  /// Threads that wait for a slot's copies stay in `hold`, but for this one.
  void hold_others(Hold& hold) {
    faulty_->before(Entry::event_synchronize, [&hold, me = std::this_thread::get_id()] {
      if (std::this_thread::get_id() != me) hold.stay();
    });
  }

  std::vector<std::byte> arrived(std::size_t bytes, std::size_t at = 0) {
    return read(device_memory_.data() + at, bytes, device_->create_stream());
  }

  std::shared_ptr<Pool> slots_;
  std::shared_ptr<EventPool> events_;
  std::optional<Stream> wire_;
  Buffer device_memory_;
};
PENSTOCK_DEVICE_SUITE(StagingRingTest);

TEST_P(StagingRingTest, WaitsForItsHelpersWhenItGoes) {
  auto ring = make_ring(CopyDirection::h2d, 2, 1);
  use_slots(*ring, 1);
  const auto source = random_bytes(kChunk, 1);
  Hold ring_thread;
  Hold helper;
  std::atomic<unsigned> came{0};
  faulty_->before(Entry::event_synchronize, [&] { (came++ == 0 ? ring_thread : helper).stay(); });
  const auto state = send(*ring, source);
  ring_thread.wait_for(1);
  Background helping([&] { state->help(); });
  helper.wait_for(1);
  Background going([&] { ring.reset(); });
  going.wait_until_stuck();
  ring_thread.let_go();
  going.wait_until_stuck();
  EXPECT_FALSE(going.ended());
  helper.let_go();
  going.join();
  helping.join();
  state->synchronize();
  EXPECT_EQ(first_difference(arrived(kChunk), source), -1);
}

// The helper held here has told of the slot that it closed, and not yet that it leaves.
TEST_P(StagingRingTest, HearsOfTheLastHelperWhenItGoes) {
  auto ring = make_ring(CopyDirection::h2d, 2, 1);
  use_slots(*ring, 1);
  const auto source = random_bytes(kChunk, 10);
  Hold ring_thread;
  Hold helper;
  Hold end;
  std::atomic<unsigned> came{0};
  std::atomic<pid_t> moving{0};
  faulty_->before(Entry::event_synchronize, [&] {
    if (came++ != 0) return helper.stay();
    ring_thread.stay();
    moving = this_thread();
  });
  faulty_->fail(Entry::copy);
  const auto state = send(*ring, source);
  ring_thread.wait_for(1);
  Background helping([&] { state->help(); });
  helper.wait_for(1);
  faulty_->before(Entry::stream_synchronize, [&, it = helping.id()] {
    if (std::this_thread::get_id() == it) end.stay();
  });
  ring_thread.let_go();
  // Its part of the slot is moved when it sleeps again, so that the helper closes the slot.
  for (int asleep = 0; asleep < 100; std::this_thread::yield()) {
    asleep = moving != 0 && is_asleep(moving) ? asleep + 1 : 0;
  }
  Background going([&] { ring.reset(); });
  going.wait_until_stuck();
  helper.let_go();
  end.wait_for(1);
  going.wait_until_stuck();
  end.let_go();
  going.join();
  helping.join();
  EXPECT_THROW(state->synchronize(), DeviceError);
  faulty_->before(Entry::stream_synchronize, {});
}

TEST_P(StagingRingTest, TakesNoHelpersWhileItGoes) {
  auto ring = make_ring(CopyDirection::h2d, 2, 1);
  use_slots(*ring, 1);
  const auto source = random_bytes(kChunk, 2);
  Hold hold;
  hold_others(hold);
  const auto state = send(*ring, source);
  hold.wait_for(1);
  Background going([&] { ring.reset(); });
  going.wait_until_stuck();
  state->help();
  EXPECT_EQ(state->report().host_copy_seconds, 0) << "the other half of the chunk is left alone";
  hold.let_go();
  going.join();
  state->synchronize();
  EXPECT_EQ(first_difference(arrived(kChunk), source), -1);
}

TEST_P(StagingRingTest, CancelsWhatIsNotWithTheDriverWhenItGoes) {
  auto ring = make_ring(CopyDirection::h2d, 2, 1);
  use_slots(*ring, 1);
  const auto source = random_bytes(3 * kChunk, 3);
  Hold hold;
  hold_others(hold);
  const auto begun = send(*ring, source);
  const auto queued = send(*ring, source, 4 * kChunk);
  hold.wait_for(1);
  Background going([&] { ring.reset(); });
  going.wait_until_stuck();
  hold.let_go();
  going.join();
  EXPECT_THROW((void)begun->query(), Closed);
  EXPECT_THROW((void)queued->query(), Closed);
}

// What the copies of others wait for may be what the helping thread does next.
TEST_P(StagingRingTest, HelpersMoveBytesOfTheirOwnTransferAlone) {
  const auto source = random_bytes(3 * kChunk, 4);
  const auto mine = random_bytes(1000, 5);
  const auto ring = make_ring(CopyDirection::h2d, 3, 2);
  use_slots(*ring, 2);
  Hold hold;
  hold_others(hold);
  const auto state = send(*ring, mine, 4 * kChunk);
  hold.wait_for(1);
  const auto other = send(*ring, source);
  hold.wait_for(2);
  state->help();
  EXPECT_EQ(other->report().host_copy_seconds, 0);
  hold.let_go();
  state->synchronize();
  other->synchronize();
  EXPECT_EQ(first_difference(arrived(mine.size(), 4 * kChunk), mine), -1);
  EXPECT_EQ(first_difference(arrived(source.size()), source), -1);
}

TEST_P(StagingRingTest, HelpersFetchForTheirOwnTransferAlone) {
  std::vector<std::byte> mine(1000);
  std::vector<std::byte> others(kChunk);
  const auto ring = make_ring(CopyDirection::d2h, 2, 2);
  Hold hold;
  hold_others(hold);
  const auto state = bring_home(*ring, mine);
  hold.wait_for(1);
  const auto other = bring_home(*ring, others);
  state->help();
  EXPECT_EQ(other->report().copies, 0u);
  hold.let_go();
  state->synchronize();
  other->synchronize();
}

TEST_P(StagingRingTest, BytesLeaveASlotAfterTheirCopyIsEnqueued) {
  std::vector<std::byte> destination(kChunk);
  const auto ring = make_ring(CopyDirection::d2h, 2, 1);
  Hold hold;
  faulty_->before(Entry::copy, [&] { hold.stay(); });
  const auto state = bring_home(*ring, destination);
  hold.wait_for(1);
  state->help();
  EXPECT_EQ(state->report().host_copy_seconds, 0);
  hold.let_go();
  state->synchronize();
  EXPECT_EQ(first_difference(destination, arrived(kChunk)), -1);
  faulty_->before(Entry::copy, {});
}

// Fails on HostLate when the ring goes before its copies: they then read what came into its slots after it.
TEST_P(StagingRingTest, ItsSlotsBecomeNobodyElsesBeforeTheyAreRead) {
  const auto source = random_bytes(2 * kChunk, 6);
  {
    const auto ring = make_ring(CopyDirection::h2d, 1, 4);
    send(*ring, source)->synchronize_source();
  }
  const Buffer again = slots_->allocate(4 * kChunk);  // all there is
  std::fill(again.bytes().begin(), again.bytes().end(), kPoison);
  wire_->synchronize();
  EXPECT_EQ(first_difference(arrived(source.size()), source), -1);
}

TEST_P(StagingRingTest, SleepingThreadsWakeForEachTransfer) {
  const auto ring = make_ring(CopyDirection::h2d, 3, 2);
  for (unsigned i = 0; i < 20; ++i) {
    const auto source = random_bytes(3 * kChunk, i);
    const auto state = send(*ring, source);
    while (!state->query()) std::this_thread::yield();
    EXPECT_EQ(first_difference(arrived(source.size()), source), -1);
  }
}

TEST_P(StagingRingTest, StartsAgainWhereItCouldNot) {
  const auto source = random_bytes(5 * kChunk, 7);
  for (const std::size_t nth : {1u, 2u, 3u}) {
    const std::size_t before = faulty_->live().events;
    auto ring = make_ring(CopyDirection::h2d, 2, 3);
    faulty_->fail(Entry::event_create, nth);
    EXPECT_THROW(send(*ring, source), DeviceError);
    send(*ring, source)->synchronize();
    EXPECT_EQ(first_difference(arrived(source.size()), source), -1);
    EXPECT_EQ(faulty_->live().events, before + 3 + 1) << "one for each slot, and one for the end";
    ring.reset();
    events_ = std::make_shared<EventPool>(*faulty_device_);
    EXPECT_EQ(faulty_->live().events, before);
  }
}

// Whoever finds that nothing is left of a transfer ends it: its last mover, and whoever looks for more of it.
TEST_P(StagingRingTest, EndsATransferOnce) {
  const auto ring = make_ring(CopyDirection::h2d, 1, 2);
  faulty_->fail(Entry::copy);
  const std::size_t before = faulty_->calls(Entry::stream_synchronize);
  const auto source = random_bytes(1000, 8);
  const auto failed = send(*ring, source);
  EXPECT_THROW(failed->synchronize(), DeviceError);
  send(*ring, source)->synchronize();
  EXPECT_EQ(faulty_->calls(Entry::stream_synchronize), before + 1);
}

}  // namespace
}  // namespace penstock::testing
