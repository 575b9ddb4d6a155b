#include "support/gate.hpp"
#include "transfer/filler.hpp"
#include "transfer/group_fixture.hpp"

#include <algorithm>
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
