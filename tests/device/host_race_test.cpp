#include "device/contract_suite.hpp"
#include "support/threads.hpp"

#include <algorithm>
#include <cstdlib>
#include <latch>
#include <thread>

/// The host device shows a forgotten wait. The late mode shows it in the bytes, every time; a build with the
/// thread sanitizer reports it.
namespace penstock::testing {
namespace {

constexpr std::size_t kBytes = 10000;

bool all_are(std::span<const std::byte> bytes, std::byte value) {
  return std::all_of(bytes.begin(), bytes.end(), [&](std::byte byte) { return byte == value; });
}

class Late : public ::testing::Test {
 protected:
  [[nodiscard]] static bool poisoned(std::span<const std::byte> bytes) {
    return all_are(bytes, std::byte{0xDB});
  }

  const Device device = Device::open("host:memory=16MiB,late=1");
  Backend& backend = device.backend();
  const Stream stream = device.create_stream();
  const Stream consumer = device.create_stream();
  const std::vector<std::byte> bytes = random_bytes(kBytes, 1);
  PinnedBytes source{device, kBytes};
  PinnedBytes result{device, kBytes};
  DeviceBytes slot{device, kBytes};

  void SetUp() override {
    source.assign(bytes);
    backend.copy(slot.data(), source.data(), kBytes, CopyDirection::h2d, stream.native());
  }
};

TEST_F(Late, ConsumerThatWaitsSeesTheBytes) {
  Event ready = device.create_event();
  ready.record(stream);
  consumer.wait(ready);
  backend.copy(result.data(), slot.data(), kBytes, CopyDirection::d2h, consumer.native());
  consumer.synchronize();
  EXPECT_TRUE(same_bytes(bytes, result.bytes()));
}

TEST_F(Late, AskingAgainAndAgainCountsAsWaiting) {
  Event ready = device.create_event();
  ready.record(stream);
  EXPECT_FALSE(ready.query());
  while (!ready.query()) std::this_thread::yield();
  EXPECT_TRUE(same_bytes(bytes, {slot.data(), kBytes}));
}

TEST_F(Late, AskingTheStreamCountsAsWaitingToo) {
  while (!stream.query()) std::this_thread::yield();
  EXPECT_TRUE(same_bytes(bytes, {slot.data(), kBytes}));
}

TEST_F(Late, DestroyedStreamFinishesUnasked) {
  Event done = device.create_event();
  {
    const Stream doomed = device.create_stream();
    backend.copy(result.data(), source.data(), 0, CopyDirection::h2d, doomed.native());
    Event copied = device.create_event();
    copied.record(stream);
    doomed.wait(copied);
    backend.copy(result.data(), slot.data(), kBytes, CopyDirection::d2h, doomed.native());
    done.record(doomed);
  }
  while (!done.query()) std::this_thread::yield();
  EXPECT_TRUE(same_bytes(bytes, result.bytes()));
}

TEST_F(Late, WorkThatIsRightlyAheadIsNotPoisoned) {
  // The slot's old bytes are not read yet when its next copy is enqueued, in order, on another stream.
  const auto next = random_bytes(kBytes, 4);
  PinnedBytes next_source(device, kBytes);
  PinnedBytes next_result(device, kBytes);
  next_source.assign(next);
  stream.synchronize();
  backend.copy(result.data(), slot.data(), kBytes, CopyDirection::d2h, stream.native());
  Event read = device.create_event();
  read.record(stream);
  consumer.wait(read);
  backend.copy(slot.data(), next_source.data(), kBytes, CopyDirection::h2d, consumer.native());
  backend.copy(next_result.data(), slot.data(), kBytes, CopyDirection::d2h, consumer.native());
  consumer.synchronize();
  EXPECT_TRUE(same_bytes(bytes, result.bytes()));
  EXPECT_TRUE(same_bytes(next, next_result.bytes()));
}

TEST_F(Late, HeadThatAGatherReadsIsNotPoisoned) {
  stream.synchronize();
  GatherRequest request;
  request.source_rows = 1;
  request.head = slot.data();
  request.head_rows = 1;
  request.row_elements = kBytes;
  request.count = 1;
  request.destination = result.data();
  backend.gather(request, stream.native());
  backend.fill(slot.data(), 0, kBytes, stream.native());
  stream.synchronize();
  EXPECT_TRUE(same_bytes(bytes, result.bytes()));
}

TEST_F(Late, WhatWasNeededOnceStaysNeeded) {
  const StartedThreads threads;
  Event early = device.create_event();
  Gate gate(device);
  {
    // The destructor needs all of the stream's work, since nobody else can need it any more.
    const Stream doomed = device.create_stream();
    gate.hold(doomed);
    early.record(doomed);
  }
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(early.query());
  EXPECT_EQ(threads.get().size(), 1u);
  gate.open();
  EXPECT_TRUE(comes_true([&] { return threads.get().empty(); }));
}

TEST_F(Late, WhatPiecesReadIsNotPoisoned) {
  stream.synchronize();
  PinnedBytes table(device, sizeof(CopyPiece));
  *table.as<CopyPiece>() = {slot.data(), result.data(), kBytes};
  backend.copy_pieces(table.as<CopyPiece>(), 1, stream.native());
  backend.fill(slot.data(), 0, kBytes, stream.native());
  stream.synchronize();
  EXPECT_TRUE(same_bytes(bytes, result.bytes()));
}

TEST_F(Late, RowsThatASplitReadsAreNotPoisoned) {
  stream.synchronize();
  static_assert(kBytes % 16 == 0);
  PinnedBytes tables(device, 64);
  auto* const firsts = reinterpret_cast<std::uint32_t*>(tables.data() + 32);
  *tables.as<RowValue>() = {.destination_stride = 1};
  firsts[0] = 0;
  firsts[1] = 1;
  backend.split_rows({.rows = slot.data(),
                      .row_bytes = 16,
                      .count = kBytes / 16,
                      .destination = result.data(),
                      .values = tables.as<RowValue>(),
                      .firsts = firsts,
                      .value_count = 1},
                     stream.native());
  backend.fill(slot.data(), 0, kBytes, stream.native());
  stream.synchronize();
  for (std::size_t i = 0; i < kBytes / 16; ++i) ASSERT_EQ(result.data()[i], bytes[16 * i]);
}

TEST_F(Late, FreshMemoryOfTheDeviceShowsPoison) {
  const DeviceBytes fresh(device, 64);
  EXPECT_TRUE(poisoned({fresh.data(), 64}));
}

#ifndef PENSTOCK_THREAD_SANITIZER  // these race, and it says so

TEST_F(Late, WhatNothingUsesAnyMoreIsPoisoned) {
  stream.synchronize();
  backend.fill(slot.data(), 0, kBytes, stream.native());
  EXPECT_TRUE(poisoned({slot.data(), kBytes}));
  stream.synchronize();
}

TEST_F(Late, ConsumerThatSkipsTheWaitSeesPoison) {
  backend.copy(result.data(), slot.data(), kBytes, CopyDirection::d2h, consumer.native());
  consumer.synchronize();
  EXPECT_TRUE(poisoned(result.bytes()));
}

TEST_F(Late, WaitingForAnEventOfBeforeTheCopyIsNotEnough) {
  Event early = device.create_event();
  const DeviceBytes other(device, kBytes);
  early.record(stream);
  backend.copy(other.data(), source.data(), kBytes, CopyDirection::h2d, stream.native());
  consumer.wait(early);
  backend.copy(result.data(), other.data(), kBytes, CopyDirection::d2h, consumer.native());
  consumer.synchronize();
  EXPECT_TRUE(poisoned(result.bytes()));
}

TEST_F(Late, HostThatSkipsTheWaitSeesPoison) {
  backend.copy(result.data(), slot.data(), kBytes, CopyDirection::d2h, stream.native());
  EXPECT_TRUE(poisoned(result.bytes()));
  stream.synchronize();
  EXPECT_TRUE(same_bytes(bytes, result.bytes()));
}

TEST_F(Late, SourceReusedTooEarlyShows) {
  source.assign(random_bytes(kBytes, 2));
  backend.copy(result.data(), slot.data(), kBytes, CopyDirection::d2h, stream.native());
  stream.synchronize();
  EXPECT_FALSE(same_bytes(bytes, result.bytes()));
}

TEST_F(Late, SmallPageableSourceIsTakenAtTheCallAndArrivesLate) {
  const DeviceBytes other(device, 100);
  {
    const auto ordinary = random_bytes(100, 3);
    backend.copy(other.data(), ordinary.data(), 100, CopyDirection::h2d, stream.native());
  }
  EXPECT_TRUE(poisoned({other.data(), 100}));
  stream.synchronize();
  EXPECT_TRUE(same_bytes(random_bytes(100, 3), {other.data(), 100}));
}

TEST_F(Late, GatherAndFillAreLateToo) {
  const DeviceBytes filled(device, 64);
  GatherRequest request;
  request.source = source.data();
  request.source_rows = 100;
  request.row_elements = 100;
  request.count = 100;
  request.destination = result.data();
  backend.gather(request, stream.native());
  backend.fill(filled.data(), 0x11, 64, stream.native());
  EXPECT_TRUE(poisoned(result.bytes()));
  EXPECT_TRUE(poisoned({filled.data(), 64}));
  stream.synchronize();
  EXPECT_TRUE(same_bytes(bytes, result.bytes()));
  EXPECT_TRUE(all_are({filled.data(), 64}, std::byte{0x11}));
}

TEST_F(Late, OrdersAreLateToo) {
  OrderRequest request;
  request.run.size = 100;
  request.run.count = 100;
  request.indices = result.as<std::uint64_t>();
  backend.fill_order(request, stream.native());
  EXPECT_TRUE(poisoned(result.bytes().first(800)));
  stream.synchronize();
  for (std::uint64_t i = 0; i < 100; ++i) EXPECT_EQ(result.as<std::uint64_t>()[i], i);
}

TEST_F(Late, PiecesAreLateToo) {
  std::memset(result.data(), 0, kBytes);
  PinnedBytes table(device, sizeof(CopyPiece));
  *table.as<CopyPiece>() = {source.data(), result.data(), kBytes};
  backend.copy_pieces(table.as<CopyPiece>(), 1, stream.native());
  EXPECT_TRUE(all_are(result.bytes(), std::byte{0}));
  stream.synchronize();
  EXPECT_TRUE(same_bytes(bytes, result.bytes()));
}

#else

/// Looks at a byte without the thread sanitizer noticing: neither a race nor an order to it.
[[gnu::noinline]] __attribute__((no_sanitize("thread"))) bool has_arrived(const std::byte* at,
                                                                          std::byte value) {
  return *static_cast<const volatile std::byte*>(at) == value;
}

/// Enqueues a copy, lets it finish without a wait, and reads the destination. Other work on the same stream,
/// before and after, must not hide the race.
void consume(bool wait_first) {
  constexpr std::byte kValue{0x3C};
  const Device device = Device::open("host:memory=16MiB");
  const Stream stream = device.create_stream();
  PinnedBytes pinned(device, kBytes);
  DeviceBytes slot(device, kBytes);
  std::memset(pinned.data(), std::to_integer<int>(kValue), kBytes);
  std::memset(slot.data(), 0, kBytes);
  Event before = device.create_event();
  Event ready = device.create_event();
  before.record(stream);
  before.synchronize();
  device.backend().copy(slot.data(), pinned.data(), kBytes, CopyDirection::h2d, stream.native());
  ready.record(stream);
  while (!has_arrived(slot.data() + kBytes / 2, kValue)) std::this_thread::yield();
  before.record(stream);
  if (wait_first) ready.synchronize();
  volatile auto sink = slot.data()[kBytes / 2];
  static_cast<void>(sink);
  std::exit(0);
}

TEST(HostRaceDeathTest, SanitizerReportsAForgottenWait) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(consume(false), "data race");
}

TEST(HostRaceDeathTest, SanitizerIsContentWithTheWait) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(consume(true), ::testing::ExitedWithCode(0), "");
}

#endif

TEST(HostRace, AnEventMayBeRecordedWhileOthersLookAtIt) {
  const Device device = Device::open("host");
  const Stream stream = device.create_stream();
  const Stream waiting = device.create_stream();
  Event event = device.create_event();
  std::latch together(2);
  std::thread looking([&] {
    together.arrive_and_wait();
    for (int i = 0; i < 300; ++i) {
      static_cast<void>(event.query());
      waiting.wait(event);
      event.synchronize();
    }
  });
  together.arrive_and_wait();
  for (int i = 0; i < 300; ++i) event.record(stream);
  looking.join();
  waiting.synchronize();
}

TEST(HostRace, ALookThatFindsTheEndOrdersTheBytes) {
  const Device device = Device::open("host");
  const Stream stream = device.create_stream();
  PinnedBytes source{device, kBytes};
  DeviceBytes slot{device, kBytes};
  Event event = device.create_event();
  for (unsigned round = 0; round < 20; ++round) {
    const auto bytes = random_bytes(kBytes, round);
    source.assign(bytes);
    device.backend().copy(slot.data(), source.data(), kBytes, CopyDirection::h2d, stream.native());
    event.record(stream);
    while (!event.query()) std::this_thread::yield();
    EXPECT_TRUE(same_bytes(bytes, {slot.data(), kBytes}));
  }
}

}  // namespace
}  // namespace penstock::testing
