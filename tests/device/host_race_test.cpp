#include "device/contract_suite.hpp"
#include "support/threads.hpp"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <latch>
#include <thread>

/// The host device shows a forgotten wait. The late mode shows it in the bytes, every time; a build with the
/// thread sanitizer reports it.
namespace penstock::testing {
namespace {

constexpr std::size_t kSlotBytes = 10000;

bool all_are(std::span<const std::byte> bytes, std::byte value) {
  return std::all_of(bytes.begin(), bytes.end(), [&](std::byte byte) { return byte == value; });
}

/// Late devices, without and with modelled links. Those are slow: 10000 bytes take a millisecond and more.
class Late : public ::testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] static bool poisoned(std::span<const std::byte> bytes) {
    return all_are(bytes, std::byte{0xDB});
  }

  const Device device = Device::open("host:memory=16MiB,late=1" + GetParam());
  Backend& backend = device.backend();
  const Stream stream = device.create_stream();
  const Stream consumer = device.create_stream();
  const std::vector<std::byte> bytes = random_bytes(kSlotBytes, 1);
  PinnedBytes source{device, kSlotBytes};
  PinnedBytes result{device, kSlotBytes};
  DeviceBytes slot{device, kSlotBytes};

  [[nodiscard]] std::vector<std::byte> download(const std::byte* from) const {
    std::vector<std::byte> read(kSlotBytes);
    stream.copy(read.data(), from, kSlotBytes, CopyDirection::d2h);
    return read;
  }

  void SetUp() override {
    source.assign(bytes);
    backend.copy(slot.data(), source.data(), kSlotBytes, CopyDirection::h2d, stream.native());
  }
};

TEST_P(Late, ConsumerThatWaitsSeesTheBytes) {
  Event ready = device.create_event();
  ready.record(stream);
  consumer.wait(ready);
  backend.copy(result.data(), slot.data(), kSlotBytes, CopyDirection::d2h, consumer.native());
  consumer.synchronize();
  EXPECT_TRUE(same_bytes(bytes, result.bytes()));
}

TEST_P(Late, AskingAgainAndAgainCountsAsWaiting) {
  Event ready = device.create_event();
  ready.record(stream);
  EXPECT_FALSE(ready.query());
  while (!ready.query()) std::this_thread::yield();
  EXPECT_TRUE(same_bytes(bytes, {slot.data(), kSlotBytes}));
}

TEST_P(Late, AskingTheStreamCountsAsWaitingToo) {
  while (!stream.query()) std::this_thread::yield();
  EXPECT_TRUE(same_bytes(bytes, {slot.data(), kSlotBytes}));
}

TEST_P(Late, DestroyedStreamFinishesUnasked) {
  Event done = device.create_event();
  {
    const Stream doomed = device.create_stream();
    backend.copy(result.data(), source.data(), 0, CopyDirection::h2d, doomed.native());
    Event copied = device.create_event();
    copied.record(stream);
    doomed.wait(copied);
    backend.copy(result.data(), slot.data(), kSlotBytes, CopyDirection::d2h, doomed.native());
    done.record(doomed);
  }
  while (!done.query()) std::this_thread::yield();
  EXPECT_TRUE(same_bytes(bytes, result.bytes()));
}

TEST_P(Late, WorkThatIsRightlyAheadIsNotPoisoned) {
  // The slot's old bytes are not read yet when its next copy is enqueued, in order, on another stream.
  const auto next = random_bytes(kSlotBytes, 4);
  PinnedBytes next_source(device, kSlotBytes);
  PinnedBytes next_result(device, kSlotBytes);
  next_source.assign(next);
  stream.synchronize();
  backend.copy(result.data(), slot.data(), kSlotBytes, CopyDirection::d2h, stream.native());
  Event read = device.create_event();
  read.record(stream);
  consumer.wait(read);
  backend.copy(slot.data(), next_source.data(), kSlotBytes, CopyDirection::h2d, consumer.native());
  backend.copy(next_result.data(), slot.data(), kSlotBytes, CopyDirection::d2h, consumer.native());
  consumer.synchronize();
  EXPECT_TRUE(same_bytes(bytes, result.bytes()));
  EXPECT_TRUE(same_bytes(next, next_result.bytes()));
}

TEST_P(Late, HeadThatAGatherReadsIsNotPoisoned) {
  stream.synchronize();
  GatherRequest request;
  request.source_rows = 1;
  request.head = slot.data();
  request.head_rows = 1;
  request.row_elements = kSlotBytes;
  request.count = 1;
  request.destination = result.data();
  backend.gather(request, stream.native());
  backend.fill(slot.data(), 0, kSlotBytes, stream.native());
  stream.synchronize();
  EXPECT_TRUE(same_bytes(bytes, result.bytes()));
}

TEST_P(Late, WhatWasNeededOnceStaysNeeded) {
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

TEST_P(Late, WhatPiecesReadIsNotPoisoned) {
  stream.synchronize();
  PinnedBytes table(device, sizeof(CopyPiece));
  *table.as<CopyPiece>() = {slot.data(), result.data(), kSlotBytes};
  backend.copy_pieces(table.as<CopyPiece>(), 1, stream.native());
  backend.fill(slot.data(), 0, kSlotBytes, stream.native());
  stream.synchronize();
  EXPECT_TRUE(same_bytes(bytes, result.bytes()));
}

TEST_P(Late, RowsThatASplitReadsAreNotPoisoned) {
  stream.synchronize();
  static_assert(kSlotBytes % 16 == 0);
  PinnedBytes tables(device, 64);
  auto* const firsts = reinterpret_cast<std::uint32_t*>(tables.data() + 32);
  *tables.as<RowValue>() = {.destination_stride = 1};
  firsts[0] = 0;
  firsts[1] = 1;
  backend.split_rows({.rows = slot.data(),
                      .row_bytes = 16,
                      .count = kSlotBytes / 16,
                      .destination = result.data(),
                      .values = tables.as<RowValue>(),
                      .firsts = firsts,
                      .value_count = 1},
                     stream.native());
  backend.fill(slot.data(), 0, kSlotBytes, stream.native());
  stream.synchronize();
  for (std::size_t i = 0; i < kSlotBytes / 16; ++i) ASSERT_EQ(result.data()[i], bytes[16 * i]);
}

TEST_P(Late, WhatAPeerRightlyReadsIsNotPoisoned) {
  // The device reads the slot, and then the peer writes it anew.
  const Device peer = Device::open("host:1,memory=16MiB,late=1" + GetParam());
  const Stream of_peer = peer.create_stream();
  peer.enable_peer(device);
  const auto next = random_bytes(kSlotBytes, 5);
  DeviceBytes there(peer, kSlotBytes);
  PinnedBytes next_source(peer, kSlotBytes);
  next_source.assign(next);
  stream.synchronize();
  of_peer.copy(there.data(), next_source.data(), kSlotBytes, CopyDirection::h2d);
  stream.copy(result.data(), slot.data(), kSlotBytes, CopyDirection::d2h);
  Event read = device.create_event();
  read.record(stream);
  of_peer.wait(read);
  of_peer.copy(slot.data(), there.data(), kSlotBytes, CopyDirection::d2d);
  of_peer.synchronize();
  EXPECT_TRUE(same_bytes(bytes, result.bytes()));
  EXPECT_TRUE(same_bytes(next, download(slot.data())));
}

TEST_P(Late, WorkAheadStaysKnownWhenAnotherDeviceCloses) {
  stream.synchronize();
  stream.copy(result.data(), slot.data(), kSlotBytes, CopyDirection::d2h);
  static_cast<void>(Device::open("host:1,memory=1MiB,late=1"));
  stream.fill(slot.data(), 0, kSlotBytes);
  stream.synchronize();
  EXPECT_TRUE(same_bytes(bytes, result.bytes()));
}

TEST_P(Late, FreshMemoryOfTheDeviceShowsPoison) {
  const DeviceBytes fresh(device, 64);
  EXPECT_TRUE(poisoned({fresh.data(), 64}));
}

#ifndef PENSTOCK_THREAD_SANITIZER  // these race, and it says so

TEST_P(Late, WhatNothingUsesAnyMoreIsPoisoned) {
  stream.synchronize();
  backend.fill(slot.data(), 0, kSlotBytes, stream.native());
  EXPECT_TRUE(poisoned({slot.data(), kSlotBytes}));
  stream.synchronize();
}

TEST_P(Late, ConsumerThatSkipsTheWaitSeesPoison) {
  backend.copy(result.data(), slot.data(), kSlotBytes, CopyDirection::d2h, consumer.native());
  consumer.synchronize();
  EXPECT_TRUE(poisoned(result.bytes()));
}

TEST_P(Late, PeerThatSkipsTheWaitSeesPoison) {
  const Device peer = Device::open("host:1,memory=16MiB,late=1" + GetParam());
  const Stream of_peer = peer.create_stream();
  peer.enable_peer(device);
  DeviceBytes there(peer, kSlotBytes);
  PinnedBytes there_result(peer, kSlotBytes);
  of_peer.copy(there.data(), slot.data(), kSlotBytes, CopyDirection::d2d);
  EXPECT_TRUE(poisoned({there.data(), kSlotBytes}));
  of_peer.copy(there_result.data(), there.data(), kSlotBytes, CopyDirection::d2h);
  of_peer.synchronize();
  EXPECT_TRUE(poisoned(there_result.bytes()));
  stream.synchronize();
}

TEST_P(Late, WaitingForAnEventOfBeforeTheCopyIsNotEnough) {
  Event early = device.create_event();
  const DeviceBytes other(device, kSlotBytes);
  early.record(stream);
  backend.copy(other.data(), source.data(), kSlotBytes, CopyDirection::h2d, stream.native());
  consumer.wait(early);
  backend.copy(result.data(), other.data(), kSlotBytes, CopyDirection::d2h, consumer.native());
  consumer.synchronize();
  EXPECT_TRUE(poisoned(result.bytes()));
}

TEST_P(Late, HostThatSkipsTheWaitSeesPoison) {
  backend.copy(result.data(), slot.data(), kSlotBytes, CopyDirection::d2h, stream.native());
  EXPECT_TRUE(poisoned(result.bytes()));
  stream.synchronize();
  EXPECT_TRUE(same_bytes(bytes, result.bytes()));
}

TEST_P(Late, SourceReusedTooEarlyShows) {
  source.assign(random_bytes(kSlotBytes, 2));
  backend.copy(result.data(), slot.data(), kSlotBytes, CopyDirection::d2h, stream.native());
  stream.synchronize();
  EXPECT_FALSE(same_bytes(bytes, result.bytes()));
}

TEST_P(Late, SmallPageableSourceIsTakenAtTheCallAndArrivesLate) {
  const DeviceBytes other(device, 100);
  {
    const auto ordinary = random_bytes(100, 3);
    backend.copy(other.data(), ordinary.data(), 100, CopyDirection::h2d, stream.native());
  }
  EXPECT_TRUE(poisoned({other.data(), 100}));
  stream.synchronize();
  EXPECT_TRUE(same_bytes(random_bytes(100, 3), {other.data(), 100}));
}

TEST_P(Late, GatherAndFillAreLateToo) {
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

TEST_P(Late, OrdersAreLateToo) {
  OrderRequest request;
  request.run.size = 100;
  request.run.count = 100;
  request.indices = result.as<std::uint64_t>();
  backend.fill_order(request, stream.native());
  EXPECT_TRUE(poisoned(result.bytes().first(800)));
  stream.synchronize();
  for (std::uint64_t i = 0; i < 100; ++i) EXPECT_EQ(result.as<std::uint64_t>()[i], i);
}

TEST_P(Late, PiecesAreLateToo) {
  std::memset(result.data(), 0, kSlotBytes);
  PinnedBytes table(device, sizeof(CopyPiece));
  *table.as<CopyPiece>() = {source.data(), result.data(), kSlotBytes};
  backend.copy_pieces(table.as<CopyPiece>(), 1, stream.native());
  EXPECT_TRUE(all_are(result.bytes(), std::byte{0}));
  stream.synchronize();
  EXPECT_TRUE(same_bytes(bytes, result.bytes()));
}

/// Devices whose links take 20 ms for `kSlotBytes`, and that are not late. A forgotten wait shows while the
/// link is busy.
class SlowLink : public ::testing::Test {
 protected:
  static constexpr std::byte kOld{0xA5};
  static constexpr std::size_t kEarly = kSlotBytes * 6 / 10;

  SlowLink() {
    first.enable_peer(second);
    source.assign(bytes);
    EXPECT_NE(bytes[kEarly], kOld);
  }

  /// Calls `scenario` until `busy` is still at work when that returns, and expects that it then `shows` the
  /// forgotten wait. A loaded machine may need several tries. One of them may end between the last byte and
  /// the end of the work, and show nothing.
  static void expect_shown(const Stream& busy, const std::function<void()>& scenario,
                           const std::function<bool()>& shows) {
    bool is_shown = false;
    for (int tries = 0, in_time = 0; tries < 200 && in_time < 2 && !is_shown; ++tries) {
      scenario();
      if (!busy.query()) {
        ++in_time;
        is_shown = shows();
      }
      busy.synchronize();
    }
    EXPECT_TRUE(is_shown);
  }

  /// What lies at `at` while a copy to there is under way: after its early part has come, which `byte` is of.
  [[nodiscard]] static std::vector<std::byte> look(const std::byte* at, std::size_t byte) {
    const volatile std::byte* const early = at + byte;
    EXPECT_TRUE(comes_true([&] { return *early != kOld; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return {at, at + kSlotBytes};
  }

  [[nodiscard]] ::testing::AssertionResult is_right(std::span<const std::byte> part, std::size_t at) const {
    return same_bytes(std::span(bytes).subspan(at, part.size()), part);
  }

  const Device first = Device::open("host:0,memory=16MiB,link=0.0005,peer=0.0005");
  const Device second = Device::open("host:1,memory=16MiB,link=0.0005,peer=0.0005");
  const Stream stream = first.create_stream();
  const Stream consumer = first.create_stream();
  const Stream there = second.create_stream();
  const std::vector<std::byte> bytes = random_bytes(kSlotBytes, 1);
  PinnedBytes source{first, kSlotBytes};
  PinnedBytes result{first, kSlotBytes};
  DeviceBytes slot{first, kSlotBytes};
  DeviceBytes other{second, kSlotBytes};
};

TEST_F(SlowLink, HostThatSkipsTheWaitSeesOldBytes) {
  std::vector<std::byte> seen;
  expect_shown(
      stream,
      [&] {
        std::memset(slot.data(), std::to_integer<int>(kOld), kSlotBytes);
        stream.copy(slot.data(), source.data(), kSlotBytes, CopyDirection::h2d);
        seen = look(slot.data(), kEarly);
      },
      [&] { return !is_right(seen, 0); });
  EXPECT_TRUE(is_right({slot.data(), kSlotBytes}, 0));
  expect_shown(
      stream,
      [&] {
        std::memset(result.data(), std::to_integer<int>(kOld), kSlotBytes);
        stream.copy(result.data(), slot.data(), kSlotBytes, CopyDirection::d2h);
        seen = look(result.data(), kEarly);
      },
      [&] { return !is_right(seen, 0); });
  EXPECT_TRUE(is_right(result.bytes(), 0));
}

TEST_F(SlowLink, ConsumerThatSkipsTheWaitSeesOldBytes) {
  constexpr std::size_t kPart = kSlotBytes / 4;
  expect_shown(
      stream,
      [&] {
        std::memset(slot.data(), std::to_integer<int>(kOld), kSlotBytes);
        stream.copy(slot.data(), source.data(), kSlotBytes, CopyDirection::h2d);
        consumer.copy(result.data(), slot.data(), kPart, CopyDirection::d2h);
        consumer.synchronize();
      },
      [&] { return !is_right(result.bytes().first(kPart), 0); });
}

TEST_F(SlowLink, PeerThatSkipsTheWaitSeesOldBytes) {
  constexpr std::size_t kPart = kSlotBytes / 4;
  expect_shown(
      there,
      [&] {
        std::memset(other.data(), std::to_integer<int>(kOld), kSlotBytes);
        there.copy(other.data(), bytes.data(), kSlotBytes, CopyDirection::h2d);
        stream.copy(slot.data(), other.data(), kPart, CopyDirection::d2d);
        stream.synchronize();
      },
      [&] { return !is_right({slot.data(), kPart}, 0); });
}

TEST_F(SlowLink, ConsumerOfWhatCameFromThePeerMustWaitToo) {
  constexpr std::size_t kPart = kSlotBytes / 2;
  std::memcpy(other.data(), bytes.data(), kSlotBytes);
  expect_shown(
      stream,
      [&] {
        std::memset(slot.data(), std::to_integer<int>(kOld), kSlotBytes);
        stream.copy(slot.data(), other.data(), kSlotBytes, CopyDirection::d2d);
        consumer.copy(result.data(), slot.data() + kPart / 2, kPart, CopyDirection::d2h);
        consumer.synchronize();
      },
      [&] { return !is_right(result.bytes().first(kPart), kPart / 2); });
  EXPECT_TRUE(is_right({slot.data(), kSlotBytes}, 0));
}

TEST_F(SlowLink, GatheredRowsAndPiecesThatAreNotWaitedForAreOld) {
  PinnedBytes table(first, 2 * sizeof(CopyPiece));
  table.as<CopyPiece>()[0] = {source.data(), slot.data(), kSlotBytes / 2};
  table.as<CopyPiece>()[1] = {source.data() + kSlotBytes / 2, slot.data() + kSlotBytes / 2, kSlotBytes / 2};
  const auto pieces = [&] { stream.copy_pieces(table.as<CopyPiece>(), 2); };
  const auto gather = [&] {
    stream.gather({.source = source.data(),
                   .source_rows = 10,
                   .row_elements = kSlotBytes / 10,
                   .count = 10,
                   .destination = slot.data()});
  };
  for (const auto& work : {std::function<void()>(pieces), std::function<void()>(gather)}) {
    std::vector<std::byte> seen;
    expect_shown(
        stream,
        [&] {
          std::memset(slot.data(), std::to_integer<int>(kOld), kSlotBytes);
          work();
          seen = look(slot.data(), kEarly);
        },
        [&] { return !is_right(seen, 0); });
    EXPECT_TRUE(is_right({slot.data(), kSlotBytes}, 0));
  }
}

TEST_F(SlowLink, SourceReusedTooEarlyShows) {
  expect_shown(
      stream,
      [&] {
        source.assign(bytes);
        stream.copy(slot.data(), source.data(), kSlotBytes, CopyDirection::h2d);
        std::memset(source.data(), std::to_integer<int>(kOld), kSlotBytes);
      },
      [&] {
        stream.synchronize();
        return !is_right({slot.data(), kSlotBytes}, 0);
      });
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
  PinnedBytes pinned(device, kSlotBytes);
  DeviceBytes slot(device, kSlotBytes);
  std::memset(pinned.data(), std::to_integer<int>(kValue), kSlotBytes);
  std::memset(slot.data(), 0, kSlotBytes);
  Event before = device.create_event();
  Event ready = device.create_event();
  before.record(stream);
  before.synchronize();
  device.backend().copy(slot.data(), pinned.data(), kSlotBytes, CopyDirection::h2d, stream.native());
  ready.record(stream);
  while (!has_arrived(slot.data() + kSlotBytes / 2, kValue)) std::this_thread::yield();
  before.record(stream);
  if (wait_first) ready.synchronize();
  volatile auto sink = slot.data()[kSlotBytes / 2];
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

INSTANTIATE_TEST_SUITE_P(, Late, ::testing::Values("", ",link=0.01,latency=200,peer=0.01"),
                         [](const auto& each) { return each.param.empty() ? "Plain" : "SlowLink"; });

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
  PinnedBytes source{device, kSlotBytes};
  DeviceBytes slot{device, kSlotBytes};
  Event event = device.create_event();
  for (unsigned round = 0; round < 20; ++round) {
    const auto bytes = random_bytes(kSlotBytes, round);
    source.assign(bytes);
    device.backend().copy(slot.data(), source.data(), kSlotBytes, CopyDirection::h2d, stream.native());
    event.record(stream);
    while (!event.query()) std::this_thread::yield();
    EXPECT_TRUE(same_bytes(bytes, {slot.data(), kSlotBytes}));
  }
}

}  // namespace
}  // namespace penstock::testing
