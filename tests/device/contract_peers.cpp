#include "device/contract_peers.hpp"

#include <algorithm>
#include <latch>
#include <random>

namespace penstock::testing {

namespace {

TEST_P(PeerContract, PeersAreTwoDevicesThatReachEachOther) {
  EXPECT_NE(device(0).info().spec, device(1).info().spec);
  EXPECT_EQ(device(0).info().index, 0);
  EXPECT_EQ(device(1).info().index, 1);
  EXPECT_EQ(device(0).info().backend, device(1).info().backend);
  for (const int i : {0, 1}) {
    EXPECT_TRUE(device(i).can_reach(device(1 - i)));
    EXPECT_TRUE(device(i).can_reach(device(i)));
    device(i).enable_peer(device(1 - i));
    device(i).enable_peer(device(i));
  }
}

TEST_P(PeerContract, CopiesAreReadFromThePeerAndWrittenToIt) {
  for (const std::size_t bytes : {1, 255, 4097, 65536, 1000003}) {
    for (const int from : {0, 1}) {
      for (const int on : {0, 1}) {
        const int to = 1 - from;
        const auto data = random_bytes(bytes, bytes + static_cast<unsigned>(from));
        DeviceBytes source(device(from), bytes);
        DeviceBytes target(device(to), bytes);
        upload(from, source.data(), data);
        upload(to, target.data(), std::vector<std::byte>(bytes, kPoison));
        stream(on).copy(target.data(), source.data(), bytes, CopyDirection::d2d);
        stream(on).synchronize();
        EXPECT_TRUE(same_bytes(data, download(to, target.data(), bytes))) << from << " on " << on;
        EXPECT_TRUE(same_bytes(data, download(from, source.data(), bytes))) << from << " on " << on;
      }
    }
  }
}

TEST_P(PeerContract, CopiesBetweenPeersTouchNothingElse) {
  constexpr std::size_t kRoom = 20000;
  const auto data = random_bytes(kRoom, 1);
  DeviceBytes source(device(1), kRoom);
  DeviceBytes target(device(0), kRoom);
  upload(1, source.data(), data);
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    const std::size_t bytes = random() % 9000;
    const std::size_t from = random() % (kRoom - bytes);
    const std::size_t to = random() % (kRoom - bytes);
    std::vector<std::byte> expected(kRoom, std::byte{0xA5});
    upload(0, target.data(), expected);
    std::memcpy(expected.data() + to, data.data() + from, bytes);
    stream(0).copy(target.data() + to, source.data() + from, bytes, CopyDirection::d2d);
    ASSERT_TRUE(same_bytes(expected, download(0, target.data(), kRoom)))
        << bytes << " from " << from << " to " << to;
  }
}

TEST_P(PeerContract, ADeviceOwnsItsOwnMemoryAlone) {
  DeviceBytes mine(device(0), 1000);
  DeviceBytes theirs(device(1), 1000);
  PinnedBytes pinned(device(0), 1000);
  const std::vector<std::byte> pageable(1000);
  for (const std::size_t at : {0, 999}) {
    EXPECT_TRUE(device(0).owns(mine.data() + at));
    EXPECT_TRUE(device(1).owns(theirs.data() + at));
    EXPECT_FALSE(device(0).owns(theirs.data() + at)) << "a peer's memory";
    EXPECT_FALSE(device(1).owns(mine.data() + at));
    EXPECT_FALSE(device(0).owns(pinned.data() + at));
    EXPECT_FALSE(device(0).owns(pageable.data() + at));
  }
  EXPECT_FALSE(device(0).owns(nullptr));
}

TEST_P(PeerContract, MemoryOfADeviceIsOpenToPeers) {
  for (const int i : {0, 1}) {
    DeviceBytes memory(device(i), 1000);
    for (const int at : {0, 999}) EXPECT_TRUE(device(i).is_open_to_peers(memory.data() + at));
  }
}

TEST_P(PeerContract, CopiesWithinThePeerGoOnThisStreamToo) {
  const auto data = random_bytes(5000, 2);
  DeviceBytes source(device(1), data.size());
  DeviceBytes target(device(1), data.size());
  upload(1, source.data(), data);
  stream(0).copy(target.data(), source.data(), data.size(), CopyDirection::d2d);
  stream(0).synchronize();
  EXPECT_TRUE(same_bytes(data, download(1, target.data(), data.size())));
}

TEST_P(PeerContract, MemoryOfBeforeItWasEnabledIsReachedToo) {
  const auto data = random_bytes(5000, 3);
  const Device first = GetParam().open(0);
  const Device second = GetParam().open(1);
  DeviceBytes source(second, data.size());
  const Stream there = second.create_stream();
  const Stream here = first.create_stream();
  there.copy(source.data(), data.data(), data.size(), CopyDirection::h2d);
  there.synchronize();
  first.enable_peer(second);
  DeviceBytes target(first, data.size());
  std::vector<std::byte> result(data.size(), kPoison);
  here.copy(target.data(), source.data(), data.size(), CopyDirection::d2d);
  here.copy(result.data(), target.data(), data.size(), CopyDirection::d2h);
  EXPECT_TRUE(same_bytes(data, result));
}

TEST_P(PeerContract, AStreamWaitsForAnEventOfThePeer) {
  for (const int producer : {0, 1}) {
    const int consumer = 1 - producer;
    const auto data = random_bytes(100000, 4);
    PinnedBytes source(device(producer), data.size());
    PinnedBytes result(device(consumer), data.size());
    DeviceBytes there(device(producer), data.size());
    DeviceBytes here(device(consumer), data.size());
    Event ready = device(producer).create_event();
    Gate gate(device(producer));
    gate.hold(stream(producer));
    stream(producer).copy(there.data(), source.data(), data.size(), CopyDirection::h2d);
    ready.record(stream(producer));
    stream(consumer).wait(ready);
    stream(consumer).copy(here.data(), there.data(), data.size(), CopyDirection::d2d);
    stream(consumer).copy(result.data(), here.data(), data.size(), CopyDirection::d2h);
    for (int i = 0; i < 10; ++i) EXPECT_FALSE(stream(consumer).query());
    source.assign(data);
    gate.open();
    stream(consumer).synchronize();
    EXPECT_TRUE(ready.query());
    EXPECT_TRUE(same_bytes(data, result.bytes()));
  }
}

TEST_P(PeerContract, WhatThePeerPushedIsThereAfterItsEvent) {
  const auto data = random_bytes(70000, 5);
  PinnedBytes source(device(0), data.size());
  PinnedBytes result(device(1), data.size());
  DeviceBytes here(device(0), data.size());
  DeviceBytes there(device(1), data.size());
  Event pushed = device(0).create_event();
  Gate gate(device(0));
  gate.hold(stream(0));
  stream(0).copy(here.data(), source.data(), data.size(), CopyDirection::h2d);
  stream(0).copy(there.data(), here.data(), data.size(), CopyDirection::d2d);
  pushed.record(stream(0));
  stream(1).wait(pushed);
  stream(1).copy(result.data(), there.data(), data.size(), CopyDirection::d2h);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(stream(1).query());
  source.assign(data);
  gate.open();
  stream(1).synchronize();
  EXPECT_TRUE(same_bytes(data, result.bytes()));
}

TEST_P(PeerContract, StreamsOfPeersAreIndependent) {
  const auto data = random_bytes(3000, 6);
  DeviceBytes there(device(1), data.size());
  DeviceBytes here(device(0), data.size());
  upload(1, there.data(), data);
  PinnedBytes result(device(0), data.size());
  Gate gate(device(1));
  gate.hold(stream(1));
  stream(0).copy(here.data(), there.data(), data.size(), CopyDirection::d2d);
  stream(0).copy(result.data(), here.data(), data.size(), CopyDirection::d2h);
  stream(0).synchronize();
  EXPECT_TRUE(same_bytes(data, result.bytes()));
  EXPECT_FALSE(stream(1).query());
}

TEST_P(PeerContract, EventsAreRecordedOnStreamsOfTheirOwnDeviceOnly) {
  for (const int i : {0, 1}) {
    Event event = device(i).create_event();
    EXPECT_THROW(event.record(stream(1 - i)), DeviceError);
    event.record(stream(i));
    event.synchronize();
    stream(1 - i).wait(event);
    stream(1 - i).synchronize();
  }
}

// Bytes of the host go to device 1, from there to device 0, and back to the host, round by round through the
// same two slots. Device 0 is held back at first, so that nothing but events keeps device 1 from writing over
// a slot.
TEST_P(PeerContract, ARelayReusesItsSlotsInOrder) {
  constexpr std::size_t kRounds = 9;
  constexpr std::size_t kBytes = 50000;
  const auto data = random_bytes(kRounds * kBytes, 7);
  PinnedBytes source(device(1), data.size());
  PinnedBytes result(device(0), data.size());
  DeviceBytes there(device(1), 2 * kBytes);
  DeviceBytes here(device(0), kBytes);
  source.assign(data);
  std::vector<Event> filled;
  std::vector<Event> moved;
  for (std::size_t i = 0; i < kRounds; ++i) {
    filled.push_back(device(1).create_event());
    moved.push_back(device(0).create_event());
  }
  Gate gate(device(0));
  gate.hold(stream(0));
  for (std::size_t i = 0; i < kRounds; ++i) {
    std::byte* const slot = there.data() + i % 2 * kBytes;
    if (i >= 2) stream(1).wait(moved[i - 2]);
    stream(1).copy(slot, source.data() + i * kBytes, kBytes, CopyDirection::h2d);
    filled[i].record(stream(1));
    stream(0).wait(filled[i]);
    stream(0).copy(here.data(), slot, kBytes, CopyDirection::d2d);
    moved[i].record(stream(0));
    stream(0).copy(result.data() + i * kBytes, here.data(), kBytes, CopyDirection::d2h);
  }
  filled[1].synchronize();
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(stream(1).query());
  gate.open();
  stream(0).synchronize();
  EXPECT_TRUE(same_bytes(data, result.bytes()));
}

TEST_P(PeerContract, RandomProgramsOfBothGiveTheBytesOfTheirOrder) {
  constexpr std::size_t kSlots = 6;  // the even ones on device 0
  constexpr std::size_t kBytes = 3000;
  std::vector<Stream> streams;
  for (const int i : {0, 1, 0, 1}) streams.push_back(device(i).create_stream());
  DeviceBytes of_first(device(0), kSlots / 2 * kBytes);
  DeviceBytes of_second(device(1), kSlots / 2 * kBytes);
  const auto slot = [&](std::size_t i) {
    return (i % 2 == 0 ? of_first : of_second).data() + i / 2 * kBytes;
  };
  PinnedBytes inputs(device(0), 16 * kBytes);
  PinnedBytes more_inputs(device(1), 16 * kBytes);
  inputs.assign(random_bytes(inputs.size(), 8));
  more_inputs.assign(random_bytes(inputs.size(), 9));
  std::vector<std::byte> expected(kSlots * kBytes);
  upload(0, of_first.data(), std::vector<std::byte>(of_first.size()));
  upload(1, of_second.data(), std::vector<std::byte>(of_second.size()));
  std::vector<std::vector<Event>> used(kSlots);  // what later users of a slot wait for
  std::mt19937 random(10);
  for (int step = 0; step < 300; ++step) {
    const std::size_t on = random() % streams.size();
    std::size_t to = random() % kSlots;
    const std::size_t from = random() % kSlots;
    const bool between = random() % 2 == 0 && to != from;
    if (!between && to % 2 != on % 2) to = (to + 1) % kSlots;
    for (const std::size_t i : {to, from}) {
      for (const Event& event : used[i]) streams[on].wait(event);
    }
    std::byte* const place = expected.data() + to * kBytes;
    if (between) {
      streams[on].copy(slot(to), slot(from), kBytes, CopyDirection::d2d);
      std::memcpy(place, expected.data() + from * kBytes, kBytes);
    } else {
      const std::byte* const input = (on % 2 == 0 ? inputs : more_inputs).data() + random() % 16 * kBytes;
      streams[on].copy(slot(to), input, kBytes, CopyDirection::h2d);
      std::memcpy(place, input, kBytes);
    }
    for (const std::size_t i : {to, from}) {
      if (i == to) used[i].clear();
      used[i].push_back(streams[on].create_event());
      used[i].back().record(streams[on]);
    }
    if (random() % 4 == 0) streams[on].synchronize();
  }
  for (std::size_t i = 0; i < kSlots; ++i) {
    const int owner = static_cast<int>(i % 2);
    for (const Event& event : used[i]) stream(owner).wait(event);
    EXPECT_TRUE(same_bytes(std::span(expected).subspan(i * kBytes, kBytes), download(owner, slot(i), kBytes)))
        << "slot " << i;
  }
}

TEST_P(PeerContract, ManyThreadsMayEnableAndCopyAtOnce) {
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kBytes = 2000;
  const auto data = random_bytes(kThreads * kBytes, 11);
  DeviceBytes there(device(1), data.size());
  upload(1, there.data(), data);
  const Device again = GetParam().open(0);
  std::vector<std::vector<std::byte>> results(kThreads, std::vector<std::byte>(kBytes, kPoison));
  std::latch together(kThreads);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const Stream mine = again.create_stream();
      DeviceBytes here(again, kBytes);
      together.arrive_and_wait();
      for (int round = 0; round < 20; ++round) {
        again.enable_peer(device(1));
        mine.copy(here.data(), there.data() + t * kBytes, kBytes, CopyDirection::d2d);
        mine.copy(results[t].data(), here.data(), kBytes, CopyDirection::d2h);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t t = 0; t < kThreads; ++t) {
    EXPECT_TRUE(same_bytes(std::span(data).subspan(t * kBytes, kBytes), results[t])) << t;
  }
}

TEST_P(PeerContract, APeerMayCloseAndComeBack) {
  const auto data = random_bytes(5000, 12);
  DeviceBytes here(device(0), data.size());
  close(1);
  upload(0, here.data(), data);
  EXPECT_TRUE(same_bytes(data, download(0, here.data(), data.size())));
  const Device back = GetParam().open(1);
  DeviceBytes there(back, data.size());
  const Stream of_back = back.create_stream();
  device(0).enable_peer(back);
  stream(0).copy(there.data(), here.data(), data.size(), CopyDirection::d2d);
  stream(0).synchronize();
  std::vector<std::byte> result(data.size(), kPoison);
  of_back.copy(result.data(), there.data(), data.size(), CopyDirection::d2h);
  EXPECT_TRUE(same_bytes(data, result));
}

}  // namespace

}  // namespace penstock::testing
