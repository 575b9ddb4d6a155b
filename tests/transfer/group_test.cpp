#include "support/comes_true.hpp"
#include "support/gate.hpp"
#include "support/wrong_bytes_backend.hpp"
#include "transfer/group_fixture.hpp"

#include <penstock/core/log.hpp>

#include <gmock/gmock.h>

#include <algorithm>
#include <mutex>
#include <random>
#include <thread>

namespace penstock::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class GroupEngineTest : public GroupTest {};
PENSTOCK_GROUP_SUITE(GroupEngineTest);

TEST_P(GroupEngineTest, EveryMemberReceivesEveryByteAndEachByteCrossesOneLink) {
  GroupEngine engine(DeviceGroup(devices_), small_chunks());
  for (const std::size_t bytes : {1, 4095, 65536, 300001, 1500000}) {
    const auto data = random_bytes(bytes, bytes);
    const LockedForAll locked(plain_, data);
    for (const bool pageable : {true, false}) {
      const auto buffers = poisoned_for_all(bytes);
      const std::size_t pulled = copied(CopyDirection::h2d);
      const std::size_t pushed = copied(CopyDirection::d2d);
      const Transfer transfer =
          engine.feed_once(places(buffers), pageable ? data.data() : locked.data(), bytes);
      expect_everywhere(transfer, buffers, data);
      transfer.synchronize();
      EXPECT_TRUE(transfer.query());
      EXPECT_EQ(copied(CopyDirection::h2d) - pulled, bytes);
      EXPECT_EQ(copied(CopyDirection::d2d) - pushed, (size() - 1) * bytes);
      EXPECT_EQ(transfer.path(), pageable ? TransferPath::staged : TransferPath::direct);
      EXPECT_EQ(transfer.bytes(), bytes);
      EXPECT_EQ(transfer.report().threads == 0, !pageable);
    }
  }
}

TEST_P(GroupEngineTest, TheHostMayWaitInPlaceOfStreams) {
  GroupEngine engine(DeviceGroup(devices_), small_chunks());
  const auto data = random_bytes(1000000, 1);
  const auto buffers = poisoned_for_all(data.size());
  engine.feed_once(places(buffers), data.data(), data.size()).synchronize();
  for (std::size_t i = 0; i < size(); ++i) {
    EXPECT_EQ(first_difference(read(i, buffers[i], data.size()), data), -1) << i;
  }
  for (std::size_t i = 0; i < size(); ++i) poison(i, buffers[i]);
  const Transfer asked = engine.feed_once(places(buffers), data.data(), data.size());
  EXPECT_TRUE(comes_true([&] { return asked.query(); }));
  for (std::size_t i = 0; i < size(); ++i) {
    EXPECT_EQ(first_difference(read(i, buffers[i], data.size()), data), -1) << i;
  }
}

TEST_P(GroupEngineTest, TheSourceMayChangeOnceItIsRead) {
  GroupEngine engine(DeviceGroup(devices_), small_chunks());
  const auto data = random_bytes(1000000, 2);
  const LockedForAll locked(plain_, data);
  std::vector<std::byte> pageable = data;
  for (const std::span<std::byte> source : {std::span(pageable), locked.bytes()}) {
    const auto buffers = poisoned_for_all(data.size());
    const Transfer transfer = engine.feed_once(places(buffers), source.data(), source.size());
    transfer.synchronize_source();
    std::ranges::fill(source, kPoison);
    expect_everywhere(transfer, buffers, data);
  }
}

TEST_P(GroupEngineTest, PiecesLieWhereTheyShouldAndNothingElseIsWritten) {
  GroupEngine engine(DeviceGroup(devices_), small_chunks());
  std::mt19937 random(3);
  for (const bool in_place : {false, true}) {
    for (int round = 0; round < 4; ++round) {
      constexpr std::size_t kRoom = 800000;
      const auto data = random_bytes(kRoom, 10 + static_cast<unsigned>(round));
      const LockedForAll locked(plain_, data);
      const std::byte* const sources = in_place ? locked.data() : data.data();
      std::vector<std::byte> expected(kRoom, kPoison);
      std::vector<GroupPiece> pieces;
      // Far enough apart that what lies between them belongs to others.
      for (std::size_t at = random() % 5000; at + 200000 < kRoom; at += 256 + random() % 5000) {
        const std::size_t bytes = round == 0 ? 0 : random() % (round == 1 ? 200 : 150000);
        const std::size_t from = random() % (kRoom - bytes);
        pieces.push_back({bytes == 0 ? nullptr : sources + from, at, bytes});
        std::memcpy(expected.data() + at, data.data() + from, bytes);
        at += bytes;
      }
      for (std::size_t receiver = 0; receiver <= size(); ++receiver) {
        const auto buffers = poisoned_for_all(kRoom);
        if (receiver == size()) {
          expect_everywhere(engine.feed_once(places(buffers), pieces), buffers, expected);
        } else {
          const Transfer transfer = engine.relay(receiver, buffers[receiver].data(), pieces);
          streams_[receiver].wait(transfer);
          EXPECT_EQ(first_difference(read(receiver, buffers[receiver], kRoom), expected), -1);
        }
      }
    }
  }
}

TEST_P(GroupEngineTest, OneMemberReceivesOverTheLinksOfAll) {
  GroupEngine engine(DeviceGroup(devices_), small_chunks());
  const auto data = random_bytes(2000000, 4);
  const LockedForAll locked(plain_, data);
  for (std::size_t receiver = 0; receiver < size(); ++receiver) {
    for (const bool pageable : {true, false}) {
      const Buffer buffer = poisoned(receiver, data.size());
      const std::size_t pulled = copied(CopyDirection::h2d);
      const std::size_t pushed = copied(CopyDirection::d2d);
      const std::size_t own = faulty_[receiver]->copied_bytes(CopyDirection::h2d);
      const Transfer transfer =
          engine.relay(receiver, buffer.data(), pageable ? data.data() : locked.data(), data.size());
      streams_[receiver].wait(transfer);
      EXPECT_EQ(first_difference(read(receiver, buffer, data.size()), data), -1);
      transfer.synchronize();
      EXPECT_EQ(copied(CopyDirection::h2d) - pulled, data.size());
      EXPECT_EQ(copied(CopyDirection::d2d) - pushed,
                data.size() - (faulty_[receiver]->copied_bytes(CopyDirection::h2d) - own));
    }
  }
}

// The links of all but one take nothing while they are held back. It carries the rest.
TEST_P(GroupEngineTest, ALinkThatIsBusyCarriesLess) {
  constexpr std::size_t kChunk = 64 * 1024;
  constexpr std::size_t kChunks = 40;
  for (const bool relays : {false, true}) {
    GroupEngine engine(DeviceGroup(devices_), small_chunks());
    const auto data = random_bytes(kChunks * kChunk, 5);
    const LockedForAll locked(plain_, data);
    const auto buffers = poisoned_for_all(data.size());
    std::vector<std::unique_ptr<GatedStream>> gates;
    for (std::size_t i = 1; i < size(); ++i) {
      gates.push_back(std::make_unique<GatedStream>(plain_[i]));
      faulty_[i]->hold_back_all(gates.back()->word());
    }
    const std::size_t before = faulty_[0]->copied_bytes(CopyDirection::h2d);
    const std::size_t before_all = copied(CopyDirection::h2d);
    const Transfer transfer = relays ? engine.relay(0, buffers[0].data(), locked.data(), data.size())
                                     : engine.feed_once(places(buffers), locked.data(), data.size());
    const std::size_t most_held = 2 * kChunk * (size() - 1);
    EXPECT_TRUE(comes_true(
        [&] { return faulty_[0]->copied_bytes(CopyDirection::h2d) - before >= data.size() - most_held; }));
    EXPECT_FALSE(copied(CopyDirection::h2d) - before_all >
                     faulty_[0]->copied_bytes(CopyDirection::h2d) - before &&
                 transfer.query());
    for (const auto& gate : gates) gate->open();
    for (std::size_t i = 1; i < size(); ++i) faulty_[i]->hold_back_all(nullptr);
    transfer.synchronize();
    for (std::size_t i = 0; i < (relays ? 1 : size()); ++i) {
      EXPECT_EQ(first_difference(read(i, buffers[i], data.size()), data), -1) << i;
    }
  }
}

TEST_P(GroupEngineTest, WaitsForTheWorkThatItComesAfter) {
  const auto data = random_bytes(500000, 6);
  const LockedForAll locked(plain_, data);
  for (std::size_t held = 0; held < size(); ++held) {
    for (const bool relays : {false, true}) {
      GroupEngine engine(DeviceGroup(devices_), small_chunks());
      const auto buffers = poisoned_for_all(data.size());
      const LockedForAll seen({plain_[held]}, data.size());
      GatedStream gate(plain_[held]);
      // The destination is still read by earlier work.
      gate.stream().copy(seen.data(), buffers[held].data(), data.size(), CopyDirection::d2h);
      GroupCopyOptions options;
      for (std::size_t i = 0; i < (relays ? 1 : size()); ++i) {
        options.after.push_back(relays || i == held ? &gate.stream() : nullptr);
      }
      const Transfer transfer =
          relays ? engine.relay(held, buffers[held].data(), locked.data(), data.size(), options)
                 : engine.feed_once(places(buffers), locked.data(), data.size(), options);
      // Time for a transfer that does not wait.
      for (int i = 0; i < 50 && !transfer.query(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      EXPECT_FALSE(transfer.query());
      gate.open();
      transfer.synchronize();
      EXPECT_EQ(first_difference(read(held, buffers[held], data.size()), data), -1);
      const std::vector<std::byte> poison(data.size(), kPoison);
      EXPECT_EQ(first_difference(seen.bytes(), poison), -1) << "was overwritten";
    }
  }
}

TEST_P(GroupEngineTest, ATransferDoesNotWaitForALaterOneThatIsHeldBack) {
  GroupEngine engine(DeviceGroup(devices_), small_chunks());
  const auto data = random_bytes(300000, 7);
  const LockedForAll locked(plain_, data);
  const auto first = poisoned_for_all(data.size());
  const auto second = poisoned_for_all(data.size());
  GatedStream gate(plain_[0]);
  GroupCopyOptions held;
  held.after.resize(size());
  held.after[0] = &gate.stream();
  const Transfer done = engine.feed_once(places(first), locked.data(), data.size());
  const Transfer waiting = engine.feed_once(places(second), locked.data(), data.size(), held);
  done.synchronize();
  EXPECT_FALSE(waiting.query());
  gate.open();
  expect_everywhere(waiting, second, data);
  expect_everywhere(done, first, data);
}

TEST_P(GroupEngineTest, ManyThreadsMayAskAtOnce) {
  GroupEngine engine(DeviceGroup(devices_), small_chunks());
  std::vector<std::thread> threads;
  std::mutex mutex;  // of the fixture's streams
  for (unsigned t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (unsigned round = 0; round < 4; ++round) {
        const auto data = random_bytes(200000 + t * 1000 + round, 100 * t + round);
        std::unique_lock lock(mutex);
        const auto buffers = poisoned_for_all(data.size());
        lock.unlock();
        const bool relays = (t + round) % 2 == 0;
        const std::size_t receiver = round % size();
        const Transfer transfer =
            relays ? engine.relay(receiver, buffers[receiver].data(), data.data(), data.size())
                   : engine.feed_once(places(buffers), data.data(), data.size());
        transfer.synchronize();
        lock.lock();
        for (std::size_t i = 0; i < size(); ++i) {
          if (relays && i != receiver) continue;
          EXPECT_EQ(first_difference(read(i, buffers[i], data.size()), data), -1);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(GroupEngineTest, ATransferOfNothingIsDone) {
  GroupEngine engine(DeviceGroup(devices_), small_chunks());
  const std::vector<std::byte*> none(size());
  EXPECT_TRUE(engine.feed_once(none, nullptr, 0).query());
  EXPECT_TRUE(engine.relay(0, none[0], std::span<const GroupPiece>()).query());
}

TEST_P(GroupEngineTest, OneMemberIsAGroup) {
  GroupEngine engine(DeviceGroup({devices_[1]}), small_chunks());
  const auto data = random_bytes(300000, 8);
  const Buffer buffer = poisoned(1, data.size());
  std::byte* const place = buffer.data();
  const Transfer transfer = engine.feed_once({&place, 1}, data.data(), data.size());
  streams_[1].wait(transfer);
  EXPECT_EQ(first_difference(read(1, buffer, data.size()), data), -1);
}

TEST_P(GroupEngineTest, RefusesWhatHasNoMeaning) {
  const auto refusal = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  const DeviceGroup group(devices_);
  EXPECT_THAT(refusal([&] { GroupEngine(group, {.slots = 1}); }), HasSubstr("2 to 64"));
  EXPECT_THAT(refusal([&] { GroupEngine(group, {.chunk_bytes = 100}); }), HasSubstr("4096"));
  EXPECT_THAT(refusal([&] { GroupEngine(group, {.profiles = std::vector<LinkProfile>(1)}); }),
              HasSubstr("one for each"));
  GroupEngine engine(group, small_chunks());
  const auto data = random_bytes(1000, 9);
  const auto buffers = poisoned_for_all(data.size());
  auto all = places(buffers);
  const auto feed = [&](const GroupCopyOptions& options = {}) {
    return refusal([&] { (void)engine.feed_once(all, data.data(), data.size(), options); });
  };
  EXPECT_THAT(feed({.after = {&streams_[0]}}), HasSubstr("one for each"));
  all.pop_back();
  EXPECT_THAT(feed(), HasSubstr("one for each"));
  all.push_back(nullptr);
  EXPECT_THAT(feed(), AllOf(HasSubstr(plain_.back().info().spec), HasSubstr("null")));
  std::vector<std::byte> host(data.size());
  all.back() = host.data();
  EXPECT_THAT(feed(), HasSubstr("not memory of that device"));
  all = places(buffers);
  std::swap(all.front(), all.back());
  EXPECT_THAT(feed(), HasSubstr("not memory of that device"));
  EXPECT_THAT(refusal([&] { (void)engine.relay(size(), buffers[0].data(), data.data(), data.size()); }),
              HasSubstr("not in a group"));
  EXPECT_THAT(refusal([&] { (void)engine.relay(0, buffers[0].data(), buffers[0].data(), 10); }),
              HasSubstr("memory of the host"));
  EXPECT_THAT(refusal([&] { (void)engine.relay(0, buffers[0].data(), nullptr, 10); }), HasSubstr("null"));
  const GroupPiece overlapping[] = {{data.data(), 0, 100}, {data.data(), 99, 100}};
  EXPECT_THAT(refusal([&] { (void)engine.relay(0, buffers[0].data(), overlapping); }), HasSubstr("overlap"));
}

/// What the library's log says while it lives.
class Said {
 public:
  Said() {
    set_log_sink([this](std::string_view line) {
      const std::lock_guard lock(mutex_);
      text_ += line;
    });
  }
  ~Said() { set_log_sink({}); }
  [[nodiscard]] std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

TEST_P(GroupEngineTest, AMemberWhoseMemoryIsClosedToTheOthersPullsAllForItself) {
  GroupEngine engine(DeviceGroup(devices_), small_chunks());
  const auto data = random_bytes(1000000, 2);
  faulty_[1]->open_to_peers(false);
  const Said said;
  for (int round = 0; round < 2; ++round) {
    const auto buffers = poisoned_for_all(data.size());
    const std::vector<std::size_t> before = engine.carried();
    const Transfer transfer = engine.feed_once(places(buffers), data.data(), data.size());
    expect_everywhere(transfer, buffers, data);
    const std::vector<std::size_t> after = engine.carried();
    EXPECT_EQ(after[1] - before[1], data.size());
    EXPECT_EQ(std::accumulate(after.begin(), after.end(), std::size_t{0}) -
                  std::accumulate(before.begin(), before.end(), std::size_t{0}),
              2 * data.size())
        << "the others still share";
  }
  {
    const auto buffers = poisoned_for_all(data.size());
    std::atomic<std::size_t> asked{0};
    const Transfer transfer = engine.feed_once_filled(
        places(buffers), data.size(), [&](std::size_t offset, std::span<std::byte> bytes) {
          asked += bytes.size();
          std::copy_n(data.data() + offset, bytes.size(), bytes.data());
        });
    expect_everywhere(transfer, buffers, data);
    EXPECT_EQ(asked, 2 * data.size());
  }
  for (const std::size_t receiver : {0u, 1u}) {
    const Buffer there = poisoned(receiver, data.size());
    const std::size_t before = engine.carried()[1];
    const std::size_t pushed = copied(CopyDirection::d2d);
    const Transfer transfer = engine.relay(receiver, there.data(), data.data(), data.size());
    streams_[receiver].wait(transfer);
    EXPECT_EQ(first_difference(read(receiver, there, data.size()), data), -1);
    if (receiver == 1) {
      EXPECT_EQ(engine.carried()[1] - before, data.size());
      EXPECT_EQ(copied(CopyDirection::d2d), pushed);
    }
  }
  faulty_[1]->open_to_peers(true);
  const std::string text = said.text();
  EXPECT_THAT(text, AllOf(HasSubstr(plain_[1].info().spec), HasSubstr("expandable_segments")));
  EXPECT_EQ(text.find("expandable_segments"), text.rfind("expandable_segments")) << "once";
}

TEST_P(GroupEngineTest, MembersThatDoNotReachEachOtherPullForThemselves) {
  // The first and the last do not.
  faulty_.back()->fail(Entry::enable_peer, 1);
  const Said said;
  GroupEngine engine(DeviceGroup(devices_), small_chunks());
  EXPECT_THAT(said.text(), AllOf(HasSubstr("do not reach"), HasSubstr(plain_.back().info().spec)));
  ASSERT_EQ(engine.group().cliques().size(), 2u);
  const auto data = random_bytes(700000, 10);
  const auto buffers = poisoned_for_all(data.size());
  const std::size_t pulled = copied(CopyDirection::h2d);
  const std::size_t pushed = copied(CopyDirection::d2d);
  const Transfer transfer = engine.feed_once(places(buffers), data.data(), data.size());
  expect_everywhere(transfer, buffers, data);
  transfer.synchronize();
  EXPECT_EQ(copied(CopyDirection::h2d) - pulled, 2 * data.size());
  EXPECT_EQ(copied(CopyDirection::d2d) - pushed, (size() - 2) * data.size());
  const std::size_t last = faulty_.back()->copied_bytes(CopyDirection::h2d);
  engine.relay(0, buffers[0].data(), data.data(), data.size()).synchronize();
  EXPECT_EQ(faulty_.back()->copied_bytes(CopyDirection::h2d), last) << "it cannot push";
}

TEST_P(GroupEngineTest, IfBytesOfAnotherArriveWrongMembersPullForThemselves) {
  // What the first writes to the last is lost.
  const auto first = std::make_shared<WrongBytesBackend>(faulty_.front());
  first->harms_d2d = [&](const void* destination, const void* /*source*/) {
    return plain_.back().owns(destination) ? WrongBytesBackend::Harm::drop : WrongBytesBackend::Harm::none;
  };
  devices_.front() = Device(first);
  const Said said;
  GroupEngine engine(DeviceGroup(devices_), small_chunks());
  EXPECT_THAT(said.text(), AllOf(HasSubstr("arrived wrong"), HasSubstr(plain_.back().info().spec)));
  const auto data = random_bytes(700000, 10);
  const auto buffers = poisoned_for_all(data.size());
  const std::size_t pulled = copied(CopyDirection::h2d);
  const Transfer transfer = engine.feed_once(places(buffers), data.data(), data.size());
  expect_everywhere(transfer, buffers, data);
  transfer.synchronize();
  EXPECT_EQ(copied(CopyDirection::h2d) - pulled, 2 * data.size());
  const Buffer relayed = poisoned(size() - 1, data.size());
  const std::size_t carried = faulty_.front()->copied_bytes(CopyDirection::h2d);
  engine.relay(size() - 1, relayed.data(), data.data(), data.size()).synchronize();
  EXPECT_EQ(first_difference(read(size() - 1, relayed, data.size()), data), -1);
  EXPECT_EQ(faulty_.front()->copied_bytes(CopyDirection::h2d), carried) << "it cannot push";
}

TEST_P(GroupEngineTest, AMemberWithoutMemoryForSlotsSitsOut) {
  const auto data = random_bytes(700000, 11);
  const auto exhaust = [] { throw OutOfMemory("a test's memory", 1, 1, 0); };
  const Said said;
  for (const bool relays : {false, true}) {
    GroupEngine engine(DeviceGroup(devices_), small_chunks());
    const auto buffers = poisoned_for_all(data.size());
    FaultyBackend& poor = *faulty_.back();
    if (relays) poor.fail(Entry::device_allocate, 1, FaultyBackend::kForever, exhaust);
    poor.fail(Entry::host_register, 1, FaultyBackend::kForever, exhaust);
    poor.fail(Entry::host_allocate, 1, FaultyBackend::kForever, exhaust);
    const std::size_t before = poor.copied_bytes(CopyDirection::h2d);
    const std::size_t said_before = said.text().size();
    // The others' slots do not hold all chunks, so there is one for it.
    std::vector<std::unique_ptr<GatedStream>> gates;
    for (std::size_t i = 0; i + 1 < size(); ++i) {
      gates.push_back(std::make_unique<GatedStream>(plain_[i]));
      faulty_[i]->hold_back_all(gates.back()->word());
    }
    const Transfer transfer = relays ? engine.relay(0, buffers[0].data(), data.data(), data.size())
                                     : engine.feed_once(places(buffers), data.data(), data.size());
    EXPECT_TRUE(comes_true([&] { return said.text().size() > said_before; }));
    for (const auto& gate : gates) gate->open();
    for (std::size_t i = 0; i + 1 < size(); ++i) faulty_[i]->hold_back_all(nullptr);
    transfer.synchronize();
    for (std::size_t i = 0; i < (relays ? 1 : size()); ++i) {
      EXPECT_EQ(first_difference(read(i, buffers[i], data.size()), data), -1) << i;
    }
    EXPECT_EQ(poor.copied_bytes(CopyDirection::h2d), before);
    poor.heal();
    engine.relay(0, buffers[0].data(), data.data(), data.size()).synchronize();
  }
  EXPECT_THAT(said.text(), AllOf(HasSubstr("carries nothing"), HasSubstr(plain_.back().info().spec)));
  // If none has any, the transfer says so.
  GroupEngine engine(DeviceGroup(devices_), small_chunks());
  const auto buffers = poisoned_for_all(data.size());
  for (const auto& poor : faulty_) {
    poor->fail(Entry::host_register, 1, FaultyBackend::kForever, exhaust);
    poor->fail(Entry::host_allocate, 1, FaultyBackend::kForever, exhaust);
  }
  EXPECT_THROW(engine.feed_once(places(buffers), data.data(), data.size()).synchronize(), OutOfMemory);
  for (const auto& poor : faulty_) poor->heal();
  expect_everywhere(engine.feed_once(places(buffers), data.data(), data.size()), buffers, data);
}

}  // namespace
}  // namespace penstock::testing
