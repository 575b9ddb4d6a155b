#include "support/comes_true.hpp"
#include "support/gate.hpp"
#include "transfer/filler.hpp"
#include "transfer/group_fixture.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace penstock::testing {
namespace {

class GroupFillTest : public GroupTest {};
PENSTOCK_GROUP_SUITE(GroupFillTest);

TEST_P(GroupFillTest, EveryByteIsAskedForOnceAndArrives) {
  GroupEngine engine(DeviceGroup(devices_), small_chunks());
  for (const std::size_t bytes : {1, 4095, 65536, 300001, 1500000}) {
    const auto data = random_bytes(bytes, bytes);
    for (std::size_t receiver = 0; receiver <= size(); ++receiver) {
      const auto buffers = poisoned_for_all(bytes);
      const bool all = receiver == size();
      Filler filler(data);
      const Transfer transfer =
          all ? engine.feed_once_filled(places(buffers), bytes, filler.function())
              : engine.relay_filled(receiver, buffers[receiver].data(), bytes, filler.function());
      for (std::size_t i = 0; i < size(); ++i) {
        if (!all && i != receiver) continue;
        streams_[i].wait(transfer);
        EXPECT_EQ(first_difference(read(i, buffers[i], bytes), data), -1) << i;
      }
      transfer.synchronize();
      filler.expect_all();
      EXPECT_EQ(transfer.path(), TransferPath::staged);
      EXPECT_EQ(transfer.bytes(), bytes);
      EXPECT_GT(transfer.report().threads, 0u);
    }
  }
}

TEST_P(GroupFillTest, MembersThatDoNotReachEachOtherAskForThemselves) {
  faulty_.back()->fail(Entry::enable_peer, 1);
  GroupEngine engine(DeviceGroup(devices_), small_chunks());
  ASSERT_EQ(engine.group().cliques().size(), 2u);
  const auto data = random_bytes(300000, 1);
  const auto buffers = poisoned_for_all(data.size());
  std::atomic<std::size_t> asked{0};
  const auto fill = [&](std::size_t offset, std::span<std::byte> bytes) {
    std::ranges::copy(std::span(data).subspan(offset, bytes.size()), bytes.begin());
    asked += bytes.size();
  };
  const Transfer transfer = engine.feed_once_filled(places(buffers), data.size(), fill);
  expect_everywhere(transfer, buffers, data);
  transfer.synchronize();
  EXPECT_EQ(asked, 2 * data.size());
}

TEST_P(GroupFillTest, AnExceptionEndsItForAllAndLeavesTheEngineUsable) {
  constexpr std::size_t kBytes = (1 << 20) + 5;
  const auto data = random_bytes(kBytes, 1);
  GroupEngine engine(DeviceGroup(devices_), small_chunks());
  for (std::size_t bad = 0; bad < kBytes; bad += 250'001) {
    const auto buffers = poisoned_for_all(kBytes);
    std::atomic<bool> ended{false};
    const auto refuse = [&](std::size_t offset, std::span<std::byte> bytes) {
      EXPECT_FALSE(ended);
      if (bad - offset < bytes.size()) throw Refusal("no byte");
      std::ranges::fill(bytes, std::byte{1});
    };
    const bool relays = bad % 2 != 0;
    const Transfer transfer = relays ? engine.relay_filled(0, buffers[0].data(), kBytes, refuse)
                                     : engine.feed_once_filled(places(buffers), kBytes, refuse);
    EXPECT_THROW(transfer.synchronize_source(), Refusal);
    ended = true;
    EXPECT_THROW(transfer.synchronize(), Refusal);
    for (std::size_t i = 0; i < size(); ++i) EXPECT_THROW(streams_[i].wait(transfer), Refusal);
    Filler filler(data);
    expect_everywhere(engine.feed_once_filled(places(buffers), kBytes, filler.function()), buffers, data);
  }
}

TEST_P(GroupFillTest, NothingIsFilledAfterAnException) {
  constexpr std::size_t kBytes = 48 << 20;
  constexpr std::size_t kBad = 12 << 20;  // chunks have some 12 parts by then
  constexpr unsigned kThreads = 2;
  GroupEngine engine(DeviceGroup(devices_), {.threads = kThreads, .chunk_bytes = 8 << 20, .slots = 2});
  const auto buffers = poisoned_for_all(kBytes);
  std::atomic<bool> thrown{false};
  std::atomic<std::size_t> later{0};
  const auto refuse = [&](std::size_t offset, std::span<std::byte> bytes) {
    if (kBad - offset < bytes.size()) {
      thrown = true;
      throw Refusal("no byte");
    }
    if (thrown) ++later;
    // After those 500 ms the exception has arrived, also on a busy host.
    std::this_thread::sleep_for(std::chrono::milliseconds(thrown ? 500 : 2));
  };
  EXPECT_THROW(engine.feed_once_filled(places(buffers), kBytes, refuse).synchronize(), Refusal);
  EXPECT_LT(later, kThreads * size())
      << "each other thread may begin a part while the exception is on its way";
}

TEST_P(GroupFillTest, SmallTransfersUseAllSlotsOfALink) {
  const auto data = random_bytes(4096, 3);
  GroupEngine engine(DeviceGroup({devices_[0]}), {.threads = 2, .chunk_bytes = 64 * 1024, .slots = 2});
  GatedStream gate(plain_[0]);
  const auto buffers = poisoned_for_all(2 * data.size());
  std::atomic<std::size_t> asked{0};
  const auto fill = [&](std::size_t offset, std::span<std::byte> bytes) {
    std::ranges::copy(std::span(data).subspan(offset, bytes.size()), bytes.begin());
    asked += bytes.size();
  };
  std::vector<Transfer> transfers;
  for (const std::size_t offset : {std::size_t{0}, data.size()}) {
    GroupFillOptions options;
    options.after.push_back(&gate.stream());
    const std::array place{buffers[0].data() + offset};
    transfers.push_back(engine.feed_once_filled(place, data.size(), fill, options));
    EXPECT_TRUE(comes_true([&] { return asked == offset + data.size(); })) << "while the gate is closed";
  }
  gate.open();
  for (const Transfer& transfer : transfers) transfer.synchronize();
  const auto there = read(0, buffers[0], 2 * data.size());
  EXPECT_EQ(first_difference(std::span(there).first(data.size()), data), -1);
  EXPECT_EQ(first_difference(std::span(there).subspan(data.size()), data), -1);
}

TEST_P(GroupFillTest, ComesAfterTheWorkThatItShall) {
  const auto data = random_bytes(300000, 2);
  for (const bool relays : {false, true}) {
    GroupEngine engine(DeviceGroup(devices_), small_chunks());
    const auto buffers = poisoned_for_all(data.size());
    GatedStream gate(plain_[0]);
    GroupFillOptions options;
    options.after.push_back(&gate.stream());
    if (!relays) options.after.resize(size());
    Filler filler(data);
    const Transfer transfer =
        relays ? engine.relay_filled(0, buffers[0].data(), data.size(), filler.function(), options)
               : engine.feed_once_filled(places(buffers), data.size(), filler.function(), options);
    for (int i = 0; i < 20; ++i) {  // time for one that does not wait
      EXPECT_FALSE(transfer.query());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    gate.open();
    transfer.synchronize();
    EXPECT_EQ(first_difference(read(0, buffers[0], data.size()), data), -1);
  }
}

// A member's threads would have nothing to do while its own thread sends a chunk.
TEST_P(GroupFillTest, TheNextChunkIsFilledWhileOneIsSent) {
  constexpr std::size_t kChunkBytes = 256 * 1024;
  if (devices_[0].host_workers()->threads() < 2) GTEST_SKIP() << "waived: one processor";
  GroupEngine engine(DeviceGroup({devices_[0]}), {.threads = 2, .chunk_bytes = kChunkBytes, .slots = 3});
  std::vector<Buffer> buffer;
  buffer.push_back(poisoned(0, 8 * kChunkBytes));
  Filler filler(random_bytes(buffer[0].size(), 3));
  std::atomic<std::size_t> asked{0};
  const auto fill = [&](std::size_t offset, std::span<std::byte> bytes) {
    filler.fill(offset, bytes);
    asked += bytes.size();
  };
  std::atomic<bool> is_first{true};
  std::atomic<bool> went_on{false};
  faulty_[0]->before(Entry::copy, [&] {
    if (!is_first.exchange(false)) return;
    went_on = comes_true([&] { return asked > kChunkBytes; }, std::chrono::seconds(20));
  });
  engine.feed_once_filled(places(buffer), buffer[0].size(), fill).synchronize();
  faulty_[0]->before(Entry::copy, {});
  EXPECT_TRUE(went_on);
  filler.expect_all();
  EXPECT_EQ(first_difference(read(0, buffer[0], buffer[0].size()), filler.source()), -1);
}

// A member that waited for room would not send what it has filled.
TEST_P(GroupFillTest, TheNextChunkWaitsForRoomAndHoldsUpNone) {
  constexpr std::size_t kChunkBytes = 64 * 1024;
  for (const bool relays : {false, true}) {
    GroupEngine engine(DeviceGroup(devices_), {.threads = 2, .chunk_bytes = kChunkBytes, .slots = 2});
    const auto data = random_bytes(200 * kChunkBytes, 4);
    const auto buffers = poisoned_for_all(data.size());
    Filler filler(data);
    std::vector<std::unique_ptr<GatedStream>> gates;
    std::vector<std::size_t> before;
    for (std::size_t i = 0; i < size(); ++i) {
      gates.push_back(std::make_unique<GatedStream>(plain_[i]));
      faulty_[i]->hold_back_all(gates.back()->word());
      before.push_back(faulty_[i]->copied_bytes(CopyDirection::h2d));
    }
    const Transfer transfer = relays
                                  ? engine.relay_filled(0, buffers[0].data(), data.size(), filler.function())
                                  : engine.feed_once_filled(places(buffers), data.size(), filler.function());
    const auto sent = [&](std::size_t member) {
      return faulty_[member]->copied_bytes(CopyDirection::h2d) - before[member];
    };
    for (std::size_t i = 0; i < size(); ++i) {
      EXPECT_TRUE(comes_true([&] { return sent(i) == 2 * kChunkBytes; }, std::chrono::seconds(20))) << i;
    }
    for (std::size_t i = 0; i < size(); ++i) {
      gates[i]->open();
      faulty_[i]->hold_back_all(nullptr);
    }
    transfer.synchronize();
    filler.expect_all();
    for (std::size_t i = 0; i < (relays ? 1 : size()); ++i) {
      EXPECT_EQ(first_difference(read(i, buffers[i], data.size()), data), -1) << i;
    }
  }
}

TEST_P(GroupFillTest, RefusesWhatHasNoMeaning) {
  GroupEngine engine(DeviceGroup(devices_), small_chunks());
  const auto buffers = poisoned_for_all(1000);
  const auto nothing = [](std::size_t, std::span<std::byte>) {};
  EXPECT_THROW((void)engine.relay_filled(0, buffers[0].data(), 1000, {}), InvalidArgument);
  EXPECT_THROW((void)engine.relay_filled(size(), buffers[0].data(), 1000, nothing), InvalidArgument);
  EXPECT_THROW((void)engine.relay_filled(0, nullptr, 1000, nothing), InvalidArgument);
  EXPECT_THROW((void)engine.feed_once_filled({}, 1000, nothing), InvalidArgument);
  EXPECT_TRUE(engine.relay_filled(0, nullptr, 0, nothing).query());
}

}  // namespace
}  // namespace penstock::testing
