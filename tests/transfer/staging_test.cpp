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

/// Holds both streams of a lane back.
class WireGate {
 public:
  WireGate(const Device& device, const CopyLane& wire)
      : first_(device, wire.streams()[0]), second_(device, wire.streams()[1]) {}
  ~WireGate() { open(); }  // each stream may wait for the other one
  WireGate(const WireGate&) = delete;
  WireGate& operator=(const WireGate&) = delete;

  void open() {
    first_.open();
    second_.open();
  }

 private:
  Gate first_;
  Gate second_;
};

/// Rings of their own, whose chunks are all of kChunk bytes, with a team of their own.
class StagingRingTest : public FaultyEngineTest {
 protected:
  void SetUp() override {
    FaultyEngineTest::SetUp();
    if (IsSkipped()) return;
    slots_ = std::make_shared<Pool>(make_pinned_pool(*faulty_device_, {.budget_bytes = 4 * kChunk}));
    events_ = std::make_shared<EventPool>(*faulty_device_);
    wire_.emplace(*faulty_device_);
    device_memory_ = poisoned_on_device(8 * kChunk);
  }

  void TearDown() override {
    if (!faulty_) return;
    for (const Entry entry : {Entry::event_synchronize, Entry::stream_synchronize, Entry::copy}) {
      faulty_->before(entry, {});
    }
  }

  /// Beside the `workers`, the thread of the ring and whoever helps move bytes.
  std::unique_ptr<StagingRing> make_ring(CopyDirection direction, unsigned workers, unsigned slots,
                                         const std::shared_ptr<SharedProcessors>& processors = nullptr) {
    workers_ = std::make_shared<HostWorkers>(
        HostWorkersOptions{.threads = workers + 1, .on_start = {}, .processors = processors});
    return std::make_unique<StagingRing>(
        *faulty_device_, workers_, slots_, events_, direction, *wire_,
        StagingOptions{.threads = workers + 2,
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
    ring.submit(state, device_memory_.data() + at, const_cast<std::byte*>(source.data()), {nullptr, {}});
    return state;
  }

  /// From the begin of the device's memory.
  std::shared_ptr<TransferState> bring_home(StagingRing& ring, std::vector<std::byte>& destination) {
    const auto state =
        std::make_shared<TransferState>(TransferPath::staged, CopyDirection::d2h, destination.size(), 1);
    ring.submit(state, device_memory_.data(), destination.data(), {nullptr, {}});
    return state;
  }

  /// Has the ring's thread stay in `hold`, at the end of a transfer that failed.
  void occupy_ring_thread(StagingRing& ring, Hold& hold) {
    // Once, since it waits for both streams, and the hold may have gone by then.
    const auto stayed = std::make_shared<std::atomic<bool>>(false);
    faulty_->before(Entry::stream_synchronize, [&hold, stayed] {
      if (this_threads_name() == "penstock-stage" && !stayed->exchange(true)) hold.stay();
    });
    faulty_->fail(Entry::copy);
    occupying_.resize(1);
    static_cast<void>(is_h2d_ ? send(ring, occupying_) : bring_home(ring, occupying_));
    hold.wait_for(1);
  }

  /// Returns once all threads of this name sleep.
  static void wait_until_asleep(const char* name) {
    const auto awake = [&](pid_t thread) { return name_of(thread) == name && !is_asleep(thread); };
    for (int asleep = 0; asleep < 50; ++asleep) {
      if (std::ranges::any_of(live_threads(), awake)) asleep = 0;
    }
  }

  std::vector<std::byte> arrived(std::size_t bytes, std::size_t at = 0) {
    return read(device_memory_.data() + at, bytes, device_->create_stream());
  }

  bool is_h2d_ = true;
  std::shared_ptr<HostWorkers> workers_;
  std::vector<std::byte> occupying_;
  std::shared_ptr<Pool> slots_;
  std::shared_ptr<EventPool> events_;
  std::optional<CopyLane> wire_;
  Buffer device_memory_;
};
PENSTOCK_DEVICE_SUITE(StagingRingTest);

/// A team whose workers are all at something else.
class BusyWorkers {
 public:
  explicit BusyWorkers(HostWorkers& workers)
      : occupying_([this, &workers] {
          workers.for_each(workers.threads(), [this](std::size_t) { hold_.stay(); });
        }) {
    hold_.wait_for(static_cast<unsigned>(workers.threads()));
  }
  ~BusyWorkers() { hold_.let_go(); }
  BusyWorkers(const BusyWorkers&) = delete;
  BusyWorkers& operator=(const BusyWorkers&) = delete;

 private:
  Hold hold_;
  Background occupying_;
};

TEST_P(StagingRingTest, WorkersNeverWaitForTheDevice) {
  std::atomic<unsigned> waited{0};
  for (const Entry entry : {Entry::event_synchronize, Entry::stream_synchronize}) {
    faulty_->before(entry, [&] { waited += this_threads_name() == "penstock-worker" ? 1 : 0; });
  }
  const auto source = random_bytes(8 * kChunk, 1);
  std::vector<std::byte> destination(source.size());
  const auto to = make_ring(CopyDirection::h2d, 2, 2);
  send(*to, source)->synchronize();
  const auto from = make_ring(CopyDirection::d2h, 2, 2);
  bring_home(*from, destination)->synchronize();
  EXPECT_EQ(first_difference(destination, source), -1);
  for (const std::size_t nth : {1u, 2u, 3u}) {
    faulty_->fail(Entry::copy, nth);
    EXPECT_THROW(send(*to, source)->synchronize(), DeviceError);
    faulty_->fail(Entry::copy, nth);
    EXPECT_THROW(bring_home(*from, destination)->synchronize(), DeviceError);
  }
  EXPECT_EQ(waited, 0u);
}

TEST_P(StagingRingTest, LeavesProcessorsToOtherTeamsBetweenTransfers) {
  constexpr std::size_t kAlone = HostWorkersOptions::kMostThreads;
  const auto source = random_bytes(4 * kChunk, 12);  // of which two await the device
  std::vector<std::byte> destination(source.size());
  for (const CopyDirection direction : {CopyDirection::h2d, CopyDirection::d2h}) {
    for (const bool fails : {false, true}) {
      const auto processors = std::make_shared<SharedProcessors>(8);
      processors->team_begins();  // another one
      auto ring = make_ring(direction, 1, 2, processors);
      const auto begin = [&] {
        return direction == CopyDirection::h2d ? send(*ring, source) : bring_home(*ring, destination);
      };
      begin()->synchronize();
      if (fails) faulty_->fail(Entry::copy);
      std::shared_ptr<TransferState> state;
      {
        const WireGate gate(*device_, *wire_);
        state = begin();
        if (!fails) {
          EXPECT_EQ(processors->workers(), 3u);
        }
      }
      if (fails) {
        EXPECT_THROW(state->synchronize(), DeviceError);
      } else {
        state->synchronize();
      }
      ring.reset();
      EXPECT_GE(processors->workers(), kAlone) << copy_direction_name(direction) << fails;
    }
  }
}

TEST_P(StagingRingTest, ASlotThatTheDeviceReadsHoldsUpNoWorker) {
  const auto ring = make_ring(CopyDirection::h2d, 1, 1);
  const auto source = random_bytes(2 * kChunk, 11);
  Hold ring_thread;
  occupy_ring_thread(*ring, ring_thread);
  std::shared_ptr<TransferState> state;
  {
    const WireGate gate(*device_, *wire_);
    state = send(*ring, source);
    while (state->report().copies == 0) std::this_thread::yield();
    const BusyWorkers they_come(*workers_);
  }
  ring_thread.let_go();
  state->synchronize();
  EXPECT_EQ(first_difference(arrived(source.size()), source), -1);
}

TEST_P(StagingRingTest, WorkersMoveBytesWithoutTheRingsThread) {
  const auto ring = make_ring(CopyDirection::h2d, 1, 2);
  const auto source = random_bytes(2 * kChunk, 2);
  Hold ring_thread;
  occupy_ring_thread(*ring, ring_thread);
  wait_until_asleep("penstock-worker");
  const auto state = send(*ring, source);
  while (!state->query()) std::this_thread::yield();
  EXPECT_EQ(first_difference(arrived(source.size()), source), -1);
  ring_thread.let_go();
}

TEST_P(StagingRingTest, WorkersAreWokenForASlotThatIsReady) {
  std::vector<std::byte> destination(2 * kChunk);
  const auto ring = make_ring(CopyDirection::d2h, 1, 2);
  Hold ring_thread;
  std::atomic<unsigned> waits{0};
  std::shared_ptr<TransferState> state;
  {
    const WireGate gate(*device_, *wire_);
    faulty_->before(Entry::event_synchronize, [&] {
      if (this_threads_name() == "penstock-stage" && ++waits == 2) ring_thread.stay();
    });
    state = bring_home(*ring, destination);
    while (waits == 0) std::this_thread::yield();
    wait_until_asleep("penstock-worker");
  }
  while (state->report().host_copy_seconds == 0) std::this_thread::yield();
  ring_thread.let_go();
  state->synchronize();
  EXPECT_EQ(first_difference(destination, arrived(destination.size())), -1);
}

TEST_P(StagingRingTest, TheRingsThreadMovesBytesWithoutWorkers) {
  std::vector<std::byte> destination(3 * kChunk);
  const auto source = random_bytes(destination.size(), 3);
  const auto to = make_ring(CopyDirection::h2d, 1, 2);
  const BusyWorkers without(*workers_);
  auto state = send(*to, source);
  while (!state->query()) std::this_thread::yield();
  const auto from = make_ring(CopyDirection::d2h, 1, 1);
  const BusyWorkers without_these(*workers_);
  state = bring_home(*from, destination);
  while (!state->query()) std::this_thread::yield();
  EXPECT_EQ(first_difference(destination, source), -1);
}

// A worker may be slow to enqueue the first chunk's copy, and the ring's thread quick with the second one's.
TEST_P(StagingRingTest, ItsThreadWaitsForTheOldestSlotFirst) {
  is_h2d_ = false;
  std::vector<std::byte> destination(2 * kChunk);
  const auto ring = make_ring(CopyDirection::d2h, 1, 2);
  Hold ring_thread;
  occupy_ring_thread(*ring, ring_thread);
  Hold worker;
  std::atomic<unsigned> copies{0};
  std::atomic<unsigned> waits{0};
  faulty_->before(Entry::copy, [&] {
    if (++copies == 1) worker.stay();
  });
  faulty_->before(Entry::event_synchronize, [&] { ++waits; });
  const auto state = bring_home(*ring, destination);
  worker.wait_for(1);
  ring_thread.let_go();
  while (state->report().copies == 0) std::this_thread::yield();
  wait_until_asleep("penstock-stage");
  EXPECT_EQ(waits, 0u);
  worker.let_go();
  state->synchronize();
  faulty_->before(Entry::copy, {});
  faulty_->before(Entry::event_synchronize, {});
}

TEST_P(StagingRingTest, ATransferEndsWithItsLastChunk) {
  for (const CopyDirection direction : {CopyDirection::h2d, CopyDirection::d2h}) {
    std::vector<std::byte> bytes = random_bytes(2 * kChunk, 14);
    const auto ring = make_ring(direction, 1, 1);
    Hold second;
    std::atomic<unsigned> copies{0};
    faulty_->before(Entry::copy, [&] {
      if (++copies == 2) second.stay();
    });
    const auto state = direction == CopyDirection::h2d ? send(*ring, bytes) : bring_home(*ring, bytes);
    second.wait_for(1);
    wire_->drain();
    EXPECT_FALSE(state->query());
    second.let_go();
    state->synchronize();
    faulty_->before(Entry::copy, {});
    EXPECT_EQ(first_difference(bytes, arrived(bytes.size())), -1);
  }
}

TEST_P(StagingRingTest, ASlotIsFilledOnceTheDeviceHasReadIt) {
  const auto first = random_bytes(kChunk, 4);
  const auto second = random_bytes(kChunk, 5);
  const auto ring = make_ring(CopyDirection::h2d, 1, 1);
  std::shared_ptr<TransferState> next;
  {
    const WireGate gate(*device_, *wire_);
    send(*ring, first)->synchronize_source();
    Hold ring_thread;
    faulty_->before(Entry::event_synchronize, [&] { ring_thread.stay(); });
    next = send(*ring, second, kChunk);
    ring_thread.wait_for(1);
    EXPECT_EQ(next->report().host_copy_seconds, 0);
    faulty_->before(Entry::event_synchronize, {});
    ring_thread.let_go();
  }
  next->synchronize();
  EXPECT_EQ(first_difference(arrived(kChunk), first), -1);
  EXPECT_EQ(first_difference(arrived(kChunk, kChunk), second), -1);
}

TEST_P(StagingRingTest, ASlotThatIsNotFreeOrCannotBeAskedIsWaitedFor) {
  const auto source = random_bytes(kChunk, 13);
  for (const bool can_be_asked : {true, false}) {
    const auto ring = make_ring(CopyDirection::h2d, 1, 1);
    Hold ring_thread;
    occupy_ring_thread(*ring, ring_thread);
    std::shared_ptr<TransferState> state;
    {
      const WireGate gate(*device_, *wire_);
      send(*ring, source)->synchronize_source();
      if (!can_be_asked) faulty_->fail(Entry::event_query);
      const std::size_t before = faulty_->calls(Entry::event_query);
      state = send(*ring, source, kChunk);
      while (faulty_->calls(Entry::event_query) == before) std::this_thread::yield();
      const BusyWorkers they_have_asked(*workers_);
      EXPECT_EQ(state->report().host_copy_seconds, 0);
    }
    ring_thread.let_go();
    state->synchronize();
    EXPECT_EQ(first_difference(arrived(kChunk, kChunk), source), -1);
  }
}

TEST_P(StagingRingTest, WaitsForWhoeverHelpsBeforeItGoes) {
  auto ring = make_ring(CopyDirection::h2d, 1, 1);
  const auto source = random_bytes(kChunk, 6);
  Hold ring_thread;
  occupy_ring_thread(*ring, ring_thread);
  auto busy = std::make_unique<BusyWorkers>(*workers_);
  const auto state = send(*ring, source);
  Hold helper;
  faulty_->before(Entry::copy, [&] { helper.stay(); });
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

TEST_P(StagingRingTest, WaitsForItsWorkersBeforeItGoes) {
  auto ring = make_ring(CopyDirection::h2d, 1, 1);
  const auto source = random_bytes(kChunk, 7);
  Hold ring_thread;
  occupy_ring_thread(*ring, ring_thread);
  Hold worker;
  faulty_->before(Entry::copy, [&] { worker.stay(); });
  const auto state = send(*ring, source);
  worker.wait_for(1);
  Background going([&] { ring.reset(); });
  going.wait_until_stuck();
  ring_thread.let_go();
  going.wait_until_stuck();
  EXPECT_FALSE(going.ended());
  worker.let_go();
  going.join();
  const BusyWorkers come(*workers_);  // and none of them asks the ring any more
  state->synchronize();
  EXPECT_EQ(first_difference(arrived(kChunk), source), -1);
}

TEST_P(StagingRingTest, CancelsWhatIsNotWithTheDriverWhenItGoes) {
  auto ring = make_ring(CopyDirection::h2d, 1, 1);
  const auto source = random_bytes(3 * kChunk, 8);
  Hold ring_thread;
  Hold worker;
  occupy_ring_thread(*ring, ring_thread);
  faulty_->before(Entry::copy, [&] { worker.stay(); });
  const auto begun = send(*ring, source);
  worker.wait_for(1);
  const auto queued = send(*ring, source, 4 * kChunk);
  Background going([&] { ring.reset(); });
  going.wait_until_stuck();
  ring_thread.let_go();
  worker.let_go();
  going.join();
  EXPECT_THROW((void)begun->query(), Closed);
  EXPECT_THROW((void)queued->query(), Closed);
}

// What the copies of others wait for may be what the helping thread does next.
TEST_P(StagingRingTest, HelpersBeginTheirOwnTransferAlone) {
  for (const CopyDirection direction : {CopyDirection::h2d, CopyDirection::d2h}) {
    is_h2d_ = direction == CopyDirection::h2d;
    auto others = random_bytes(kChunk, 9);
    auto mine = random_bytes(1000, 10);
    const auto ring = make_ring(direction, 1, 2);
    Hold ring_thread;
    occupy_ring_thread(*ring, ring_thread);
    const auto busy = std::make_unique<BusyWorkers>(*workers_);
    const auto other = is_h2d_ ? send(*ring, others) : bring_home(*ring, others);
    const auto state = is_h2d_ ? send(*ring, mine, 4 * kChunk) : bring_home(*ring, mine);
    Background helping([&] { state->help(); });
    helping.wait_until_stuck();
    EXPECT_EQ(other->report().copies, 0u);
    ring_thread.let_go();
    state->synchronize();
    other->synchronize();
  }
}

TEST_P(StagingRingTest, HelpersMoveBytesOfTheirOwnTransferAlone) {
  is_h2d_ = false;
  std::vector<std::byte> others(kChunk);
  std::vector<std::byte> mine(1000);
  const auto ring = make_ring(CopyDirection::d2h, 1, 2);
  Hold ring_thread;
  occupy_ring_thread(*ring, ring_thread);
  Hold worker;
  std::atomic<unsigned> copies{0};
  faulty_->before(Entry::copy, [&] {
    if (++copies == 2) worker.stay();
  });
  std::shared_ptr<TransferState> other;
  std::shared_ptr<TransferState> state;
  {
    const WireGate gate(*device_, *wire_);  // or the worker moves what others fetch before it is held
    other = bring_home(*ring, others);
    state = bring_home(*ring, mine);
    worker.wait_for(1);
  }
  wire_->drain();  // what others fetch has come
  Background helping([&] { state->help(); });
  helping.wait_until_stuck();
  EXPECT_EQ(other->report().host_copy_seconds, 0);
  worker.let_go();
  ring_thread.let_go();
  state->synchronize();
  other->synchronize();
}

TEST_P(StagingRingTest, BytesLeaveASlotAfterTheirCopyIsEnqueued) {
  std::vector<std::byte> destination(kChunk);
  const auto ring = make_ring(CopyDirection::d2h, 1, 1);
  Hold hold;
  faulty_->before(Entry::copy, [&] { hold.stay(); });
  const auto state = bring_home(*ring, destination);
  hold.wait_for(1);
  Background helping([&] { state->help(); });
  helping.wait_until_stuck();
  EXPECT_EQ(state->report().host_copy_seconds, 0);
  hold.let_go();
  state->synchronize();
  EXPECT_EQ(first_difference(destination, arrived(kChunk)), -1);
}

TEST_P(StagingRingTest, HelpersWaitForMoreOfTheirTransfer) {
  const auto source = random_bytes(4 * kChunk, 12);
  const auto ring = make_ring(CopyDirection::h2d, 1, 1);
  const BusyWorkers without(*workers_);
  std::shared_ptr<TransferState> state;
  std::optional<Background> helping;
  Hold ring_thread;
  {
    const WireGate gate(*device_, *wire_);
    faulty_->before(Entry::event_synchronize, [&] {
      if (this_threads_name() == "penstock-stage") ring_thread.stay();
    });
    state = send(*ring, source);
    ring_thread.wait_for(1);
    helping.emplace([&] { state->help(); });
    helping->wait_until_stuck();
    EXPECT_FALSE(helping->ended()) << "more comes once the slot is free";
  }
  ring_thread.let_go();
  state->synchronize();
  helping.reset();
  EXPECT_EQ(first_difference(arrived(source.size()), source), -1);
}

// Fails on HostLate when the ring goes before its copies: they then read what came into its slots after it.
TEST_P(StagingRingTest, ItsSlotsBecomeNobodyElsesBeforeTheyAreRead) {
  const auto source = random_bytes(2 * kChunk, 6);
  {
    const auto ring = make_ring(CopyDirection::h2d, 0, 4);
    send(*ring, source)->synchronize_source();
  }
  const Buffer again = slots_->allocate(4 * kChunk);  // all there is
  std::fill(again.bytes().begin(), again.bytes().end(), kPoison);
  wire_->drain();
  EXPECT_EQ(first_difference(arrived(source.size()), source), -1);
}

TEST_P(StagingRingTest, SleepingThreadsWakeForEachTransfer) {
  const auto ring = make_ring(CopyDirection::h2d, 2, 2);
  for (unsigned i = 0; i < 20; ++i) {
    const auto source = random_bytes(3 * kChunk, i);
    const auto state = send(*ring, source);
    while (!state->query()) std::this_thread::yield();
    EXPECT_EQ(first_difference(arrived(source.size()), source), -1);
  }
}

TEST_P(StagingRingTest, ItsSleepingThreadWakesWithoutWorkers) {
  const auto ring = make_ring(CopyDirection::h2d, 1, 2);
  const BusyWorkers without(*workers_);
  for (unsigned i = 0; i < 3; ++i) {
    const auto source = random_bytes(kChunk, i);
    const auto state = send(*ring, source);
    while (!state->query()) std::this_thread::yield();
    EXPECT_EQ(first_difference(arrived(source.size()), source), -1);
    wait_until_asleep("penstock-stage");
  }
}

TEST_P(StagingRingTest, StartsAgainWhereItCouldNot) {
  const auto source = random_bytes(5 * kChunk, 7);
  for (const std::size_t nth : {1u, 2u, 3u}) {
    const std::size_t before = faulty_->live().events;
    auto ring = make_ring(CopyDirection::h2d, 1, 3);
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
TEST_P(StagingRingTest, TransfersThatFollowEachOtherAreOneSequenceOfChunks) {
  workers_ = faulty_device_->host_workers(1);
  StagingRing ring(*faulty_device_, workers_, slots_, events_, CopyDirection::h2d, *wire_,
                   StagingOptions{.threads = 2,
                                  .slots = 2,
                                  .chunks = {.smallest = 4096, .largest = kChunk, .growth = 2},
                                  .stores = StoreKind::cached,
                                  .spin = std::chrono::microseconds(0)});
  const auto source = random_bytes(4 * kChunk, 3);
  const auto copies_of = [&](int transfers) {
    const std::size_t before = faulty_->calls(Entry::copy);
    WireGate gate(*faulty_device_, *wire_);  // the slots stay full until all transfers are there
    std::vector<std::shared_ptr<TransferState>> sent;
    for (int i = 0; i < transfers; ++i) {
      sent.push_back(send(ring, source));
      while (faulty_->calls(Entry::copy) - before < 2) std::this_thread::yield();
    }
    gate.open();
    for (const auto& state : sent) state->synchronize();
    return faulty_->calls(Entry::copy) - before;
  };
  const std::size_t one = copies_of(1);
  const std::size_t two = copies_of(2);
  // Seven sizes from the smallest on, another large chunk, and seven that halve.
  EXPECT_EQ(one, 15U);
  EXPECT_EQ(two, 20U) << "chunks are neither small nor get smaller between two transfers";
  EXPECT_EQ(copies_of(1), one) << "after a pause, chunks are small again";
  faulty_->fail(Entry::copy, 3);
  EXPECT_THROW(send(ring, source)->synchronize(), DeviceError);
  EXPECT_EQ(copies_of(1), one) << "also after a transfer that failed";
}

TEST_P(StagingRingTest, EndsATransferOnce) {
  const auto ring = make_ring(CopyDirection::h2d, 0, 2);
  faulty_->fail(Entry::copy);
  const std::size_t before = faulty_->calls(Entry::stream_synchronize);
  const auto source = random_bytes(1000, 8);
  const auto failed = send(*ring, source);
  EXPECT_THROW(failed->synchronize(), DeviceError);
  send(*ring, source)->synchronize();
  EXPECT_EQ(faulty_->calls(Entry::stream_synchronize), before + 2) << "once for each stream of the wire";
}

}  // namespace
}  // namespace penstock::testing
