#include "transfer/packed_copier.hpp"

#include "support/gate.hpp"
#include "support/threads.hpp"
#include "transfer/engine_fixture.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <span>
#include <thread>

namespace penstock::testing {
namespace {

constexpr std::size_t kWindow = std::size_t{64} << 10;

/// Copiers of their own, with small rounds.
class PackedCopierTest : public FaultyEngineTest {
 protected:
  void SetUp() override {
    FaultyEngineTest::SetUp();
    if (IsSkipped()) return;
    rounds_ = std::make_shared<Pool>(make_pinned_pool(*faulty_device_, {.segment_bytes = kWindow}));
    scratch_ = std::make_shared<Pool>(make_device_pool(*faulty_device_, {.segment_bytes = kWindow}));
    events_ = std::make_shared<EventPool>(*faulty_device_);
    streams_.emplace(std::array{faulty_device_->create_stream(), faulty_device_->create_stream()});
    stream_ = &streams_->front();
  }

  std::unique_ptr<PackedCopier> make_copier(unsigned threads = 1) {
    return std::make_unique<PackedCopier>(*faulty_device_, faulty_device_->host_workers(threads), rounds_,
                                          scratch_, events_, *stream_,
                                          PackingOptions{.threads = threads,
                                                         .granule_bytes = kWindow / 4,
                                                         .tuning = {.first_chunk_bytes = kWindow / 2,
                                                                    .largest_chunk_bytes = kWindow / 2,
                                                                    .window_bytes = kWindow}});
  }

  static PackedPlan plan(std::byte* destination, const std::byte* source, std::size_t bytes,
                         CopyDirection direction) {
    const TransferPiece piece{source, destination, bytes};
    return {{&piece, 1}, direction};
  }

  static std::shared_ptr<TransferState> new_state(CopyDirection direction, std::size_t bytes) {
    return std::make_shared<TransferState>(TransferPath::packed, direction, bytes, 1);
  }

  std::shared_ptr<TransferState> bring_home(PackedCopier& copier, std::vector<std::byte>& destination,
                                            const Buffer& source, const Stream* after = nullptr) {
    const auto state = new_state(CopyDirection::d2h, destination.size());
    copier.to_host(state, plan(destination.data(), source.data(), destination.size(), CopyDirection::d2h),
                   mark(after));
    return state;
  }

  std::shared_ptr<TransferState> send(PackedCopier& copier, const Buffer& destination,
                                      const std::vector<std::byte>& source, const Stream* after = nullptr) {
    const auto state = new_state(CopyDirection::h2d, source.size());
    copier.to_device(state, plan(destination.data(), source.data(), source.size(), CopyDirection::h2d),
                     *streams_, mark(after));
    return state;
  }

  EventPool::Handle mark(const Stream* after) const {
    EventPool::Handle event{nullptr, {}};
    if (after != nullptr) {
      event = events_->take();
      event->record(*after);
    }
    return event;
  }

  std::shared_ptr<Pool> rounds_;
  std::shared_ptr<Pool> scratch_;
  std::shared_ptr<EventPool> events_;
  std::optional<std::array<Stream, 2>> streams_;
  const Stream* stream_ = nullptr;  ///< to the host
};
PENSTOCK_DEVICE_SUITE(PackedCopierTest);

TEST_P(PackedCopierTest, UnpacksWhatIsQueuedBeforeItGoes) {
  const auto bytes = random_bytes(3 * kWindow, 1);
  const Buffer source = on_device(bytes);
  std::vector<std::vector<std::byte>> destinations(3, std::vector<std::byte>(bytes.size(), kPoison));
  auto copier = make_copier();
  Hold unpacker;
  faulty_->before(Entry::event_synchronize, [&] { unpacker.stay(); });
  std::vector<std::shared_ptr<TransferState>> states;
  for (auto& destination : destinations) states.push_back(bring_home(*copier, destination, source));
  unpacker.wait_for(1);
  Background going([&] { copier.reset(); });
  going.wait_until_stuck();
  unpacker.let_go();
  going.join();
  for (std::size_t i = 0; i < states.size(); ++i) {
    EXPECT_TRUE(states[i]->query());
    EXPECT_EQ(first_difference(destinations[i], bytes), -1);
  }
}

TEST_P(PackedCopierTest, ItsThreadWakesToGo) {
  const auto bytes = random_bytes(kWindow, 10);
  const Buffer source = on_device(bytes);
  std::vector<std::byte> destination(bytes.size());
  auto copier = make_copier();
  std::atomic<pid_t> unpacker{0};
  faulty_->before(Entry::event_synchronize, [&] { unpacker = this_thread(); });
  const auto state = bring_home(*copier, destination, source);
  while (!state->query() || !is_asleep(unpacker)) std::this_thread::yield();
  copier.reset();
  faulty_->before(Entry::event_synchronize, {});
  state->help();  // there is nothing left to do
  EXPECT_EQ(first_difference(destination, bytes), -1);
}

TEST_P(PackedCopierTest, WaitsForWhoeverUnpacksInItBeforeItGoes) {
  const auto bytes = random_bytes(2 * kWindow, 2);
  const Buffer source = on_device(bytes);
  std::vector<std::byte> first(bytes.size());
  std::vector<std::byte> second(bytes.size());
  auto copier = make_copier();
  Hold unpacker;
  Hold helper;
  std::atomic<unsigned> came{0};
  faulty_->before(Entry::event_synchronize, [&] { (came++ == 0 ? unpacker : helper).stay(); });
  bring_home(*copier, first, source);
  unpacker.wait_for(1);
  const auto state = bring_home(*copier, second, source);
  Background helping([&] { state->help(); });
  helper.wait_for(1);
  Background going([&] { copier.reset(); });
  going.wait_until_stuck();
  faulty_->before(Entry::event_synchronize, {});
  unpacker.let_go();
  going.wait_until_stuck();
  EXPECT_FALSE(going.ended());
  helper.let_go();
  going.join();
  helping.join();
  EXPECT_TRUE(state->query());
  EXPECT_EQ(first_difference(first, bytes), -1);
  EXPECT_EQ(first_difference(second, bytes), -1);
}

TEST_P(PackedCopierTest, ArrivalInPinnedMemoryIsNotTheEnd) {
  const auto bytes = random_bytes(kWindow, 11);
  const Buffer source = on_device(bytes);
  std::vector<std::byte> destination(bytes.size(), kPoison);
  const auto copier = make_copier();
  Hold unpacker;
  faulty_->before(Entry::event_synchronize, [&] { unpacker.stay(); });
  const auto state = bring_home(*copier, destination, source);
  stream_->synchronize();
  unpacker.wait_for(1);
  EXPECT_FALSE(state->query());
  unpacker.let_go();
  state->synchronize();
  faulty_->before(Entry::event_synchronize, {});
  EXPECT_EQ(first_difference(destination, bytes), -1);
}

TEST_P(PackedCopierTest, CancelledTransfersMakeNoMoreRounds) {
  const auto bytes = random_bytes(4 * kWindow, 3);
  const Buffer source = on_device(bytes);
  std::vector<std::byte> destination(bytes.size(), kPoison);
  const auto copier = make_copier();
  GatedStream gate(*device_);
  const auto state = bring_home(*copier, destination, source, &gate.stream());
  EXPECT_TRUE(state->on_cancel());
  gate.open();
  EXPECT_THROW(state->synchronize(), Closed);
  EXPECT_EQ(faulty_->copied_bytes(CopyDirection::d2h), kWindow);
  EXPECT_TRUE(std::all_of(destination.begin() + kWindow, destination.end(),
                          [](std::byte byte) { return byte == kPoison; }));
}

TEST_P(PackedCopierTest, WhatIsWithTheDriverRunsToItsEnd) {
  const auto bytes = random_bytes(kWindow, 4);
  const Buffer source = on_device(bytes);
  std::vector<std::byte> destination(bytes.size(), kPoison);
  const auto copier = make_copier();
  GatedStream gate(*device_);
  const auto state = bring_home(*copier, destination, source, &gate.stream());
  EXPECT_FALSE(state->on_cancel());
  gate.open();
  state->synchronize();
  EXPECT_EQ(first_difference(destination, bytes), -1);
}

TEST_P(PackedCopierTest, CancelSaysHowTheTransferEnds) {
  const auto bytes = random_bytes(6 * kWindow, 8);
  const Buffer source = on_device(bytes);
  const auto copier = make_copier();
  for (std::size_t i = 0; i < 24; ++i) {
    std::vector<std::byte> destination(bytes.size(), kPoison);
    const auto state = bring_home(*copier, destination, source);
    while (state->report().copies < i % 12) std::this_thread::yield();
    bool cancelled = false;
    const bool will_be = state->on_cancel();
    try {
      state->synchronize();
      EXPECT_EQ(first_difference(destination, bytes), -1);
    } catch (const Closed&) {
      cancelled = true;
    }
    EXPECT_EQ(cancelled, will_be);
  }
}

TEST_P(PackedCopierTest, ATransferThatFailedKeepsItsMemoryWhileCopiesArrive) {
  const Buffer source = poisoned_on_device(kWindow);
  std::vector<std::byte> destination(source.size());
  const auto copier = make_copier();
  std::size_t used = 0;
  faulty_->before(Entry::stream_synchronize, [&] { used = rounds_->statistics().used_bytes; });
  faulty_->fail(Entry::copy, 2);
  const auto state = bring_home(*copier, destination, source);
  EXPECT_THROW(state->synchronize(), DeviceError);
  EXPECT_EQ(used, kWindow);
  EXPECT_EQ(rounds_->statistics().used_bytes, 0u);
  faulty_->before(Entry::stream_synchronize, {});
}

TEST_P(PackedCopierTest, MemoryThatCannotBeMarkedStaysOutOfUse) {
  const auto source = random_bytes(kWindow, 9);
  const Buffer device = poisoned_on_device(source.size());
  const auto copier = make_copier();
  faulty_->fail(Entry::event_record, 1, FaultyBackend::kForever);
  faulty_->fail(Entry::stream_synchronize, 1, FaultyBackend::kForever);
  const auto state = send(*copier, device, source);
  faulty_->heal();
  EXPECT_THROW(state->synchronize(), DeviceError);
  EXPECT_EQ(rounds_->statistics().pending_bytes, kWindow);
  stream_->synchronize();
}

// Hangs if the copier waits for rounds that only the caller releases.
TEST_P(PackedCopierTest, HeldBackTransfersReturnWithAllTheirRoundsEnqueued) {
  const auto source = random_bytes(10 * kWindow, 5);
  const Buffer device = poisoned_on_device(source.size());
  const auto copier = make_copier();
  GatedStream gate(*device_);
  const auto state = send(*copier, device, source, &gate.stream());
  EXPECT_FALSE(state->query());
  gate.open();
  state->synchronize();
  EXPECT_EQ(first_difference(read(device), source), -1);
}

TEST_P(PackedCopierTest, LargeTransfersMakeDoWithLittlePinnedMemory) {
  const auto source = random_bytes(40 * kWindow, 6);
  const Buffer device = poisoned_on_device(source.size());
  const auto copier = make_copier();
  const auto state = send(*copier, device, source);
  EXPECT_LE(rounds_->statistics().reserved_bytes, 4 * kWindow);
  state->synchronize();
  EXPECT_EQ(first_difference(read(device), source), -1);
}

TEST_P(PackedCopierTest, RoundsTakeTurns) {
  const auto source = random_bytes(5 * kWindow, 12);
  const Buffer device = poisoned_on_device(source.size());
  const auto copier = make_copier();
  faulty_->note_copies();
  send(*copier, device, source)->synchronize();
  EXPECT_EQ(faulty_->in_a_row(), std::vector<std::size_t>(5, kWindow));
  EXPECT_EQ(first_difference(read(device), source), -1);
}

TEST_P(PackedCopierTest, ARoundBeginsOnceTheOneBeforeIsDone) {
  const auto source = random_bytes(3 * kWindow, 13);
  for (const std::size_t held : {2U, 4U}) {  // the last copy of a round, on each stream
    const Buffer device = poisoned_on_device(source.size());
    const auto copier = make_copier();
    GatedStream gate(*device_);
    std::size_t copies = 0;
    faulty_->before(Entry::copy, [&] {
      if (++copies == held) faulty_->hold_back_next_copy(gate.word());
    });
    const auto state = send(*copier, device, source);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(state->query());
    const std::size_t next = held / 2 * kWindow;
    const auto there = read(device.data() + next, kWindow, device_->create_stream());
    EXPECT_EQ(first_difference(there, std::span(source).subspan(next, kWindow)), 0);
    gate.open();
    state->synchronize();
    faulty_->before(Entry::copy, {});
    EXPECT_EQ(first_difference(read(device), source), -1);
  }
}

TEST_P(PackedCopierTest, AFailedRoundIsTheEndOnceBothStreamsHaveDrained) {
  const auto source = random_bytes(3 * kWindow, 14);
  const auto copier = make_copier();
  // The copy before the one that fails is held back: of an earlier round, and of the same on each stream.
  for (const auto& [fails, tells_late] : {std::pair{3U, false}, {4U, false}, {6U, false}, {6U, true}}) {
    const Buffer device = poisoned_on_device(source.size());
    GatedStream gate(*device_);
    std::size_t copies = 0;
    faulty_->before(Entry::copy, [&] {
      if (++copies == fails - 1) faulty_->hold_back_next_copy(gate.word());
    });
    faulty_->fail(Entry::copy, fails);
    // The first wait of the host may only report a failure of earlier work.
    if (tells_late) faulty_->fail(Entry::stream_synchronize, 2);
    std::thread opens([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      gate.open();
    });
    const auto state = send(*copier, device, source);
    const std::size_t before = (fails - 2) * kWindow / 2;
    const auto there = read(device.data() + before, kWindow / 2, device_->create_stream());
    EXPECT_EQ(first_difference(there, std::span(source).subspan(before, kWindow / 2)), -1);
    EXPECT_THROW(state->synchronize(), DeviceError);
    opens.join();
    faulty_->before(Entry::copy, {});
  }
}

TEST_P(PackedCopierTest, PacksAloneWhileTheWorkersAreBusy) {
  const auto source = random_bytes(std::size_t{1} << 20, 7);
  const Buffer first = poisoned_on_device(source.size());
  const Buffer second = poisoned_on_device(source.size());
  const auto copier = make_copier(2);
  Hold workers;
  faulty_->before(Entry::copy, [&, me = std::this_thread::get_id()] {
    if (std::this_thread::get_id() != me) workers.stay();
  });
  Background other([&] { send(*copier, first, source)->synchronize(); });
  workers.wait_for(2);  // who sends and who helps, as neither is free to help here then
  send(*copier, second, source)->synchronize();
  EXPECT_EQ(first_difference(read(second), source), -1);
  workers.let_go();
  other.join();
  faulty_->before(Entry::copy, {});
  EXPECT_EQ(first_difference(read(first), source), -1);
}

}  // namespace
}  // namespace penstock::testing
