#include "fake_driver/fake_cuda_controls.hpp"
#include "support/fork.hpp"
#include "support/gate.hpp"
#include "transfer/group_fixture.hpp"

#include <penstock/core/log.hpp>

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

namespace penstock::testing {
namespace {

class GroupFaultTest : public GroupTest {
 protected:
  [[nodiscard]] std::vector<LiveHandles> live() const {
    std::vector<LiveHandles> all;
    for (const auto& one : faulty_) all.push_back(one->live());
    return all;
  }

  /// Copies of the other members wait on the device until the gates are opened.
  [[nodiscard]] std::vector<std::unique_ptr<GatedStream>> hold_back_all_but(std::size_t member) {
    std::vector<std::unique_ptr<GatedStream>> gates;
    for (std::size_t i = 0; i < size(); ++i) {
      if (i == member) continue;
      gates.push_back(std::make_unique<GatedStream>(plain_[i]));
      faulty_[i]->hold_back_all(gates.back()->word());
    }
    return gates;
  }
};
PENSTOCK_GROUP_SUITE(GroupFaultTest);

TEST_P(GroupFaultTest, AFailureOfOneMemberReachesAllWhoAskAndLeavesNothingBehind) {
  const auto data = random_bytes(1000000, 1);
  const LockedForAll locked(plain_, data);
  for (std::size_t broken = 0; broken < size(); ++broken) {
    for (const Entry entry :
         {Entry::copy, Entry::event_record, Entry::stream_wait_event, Entry::event_create}) {
      for (const std::size_t nth : {1u, 2u, 3u}) {
        const auto buffers = poisoned_for_all(data.size());
        {
          GroupEngine engine(DeviceGroup(devices_), small_chunks());
          const bool relays = nth == 2;
          const std::byte* const source = nth == 3 ? locked.data() : data.data();
          // The others' links are held back until it has failed, so that they cannot take all chunks.
          const auto gates = hold_back_all_but(broken);
          const std::size_t failing = faulty_[broken]->calls(entry) + nth;
          // The events of its slots are made before it has a chunk. The others could do without it, so they
          // fail, too.
          const bool at_slots = entry == Entry::event_create && nth < 3;
          for (std::size_t i = 0; i < size(); ++i) {
            if (at_slots || i == broken) faulty_[i]->fail(entry, nth, FaultyBackend::kForever);
          }
          const Transfer transfer = relays ? engine.relay(0, buffers[0].data(), source, data.size())
                                           : engine.feed_once(places(buffers), source, data.size());
          while (!at_slots && faulty_[broken]->calls(entry) < failing) std::this_thread::yield();
          for (const auto& gate : gates) gate->open();
          EXPECT_THROW(transfer.synchronize(), DeviceError) << static_cast<int>(entry) << " " << nth;
          for (std::size_t i = 0; i < size(); ++i) {
            EXPECT_THROW(streams_[i].wait(transfer), DeviceError);
            faulty_[i]->hold_back_all(nullptr);
          }
          EXPECT_THROW((void)transfer.query(), DeviceError);
          EXPECT_THROW(transfer.synchronize_source(), DeviceError);
          EXPECT_FALSE(transfer.cancel());
          // The engine is as good as before.
          for (const auto& one : faulty_) one->heal();
          expect_everywhere(engine.feed_once(places(buffers), source, data.size()), buffers, data);
        }
        EXPECT_EQ(live(), std::vector<LiveHandles>(size()));
      }
    }
  }
}

// A transfer fails once no device touches its ends any more.
TEST_P(GroupFaultTest, ATransferFailsOnceTheOthersHaveDrained) {
  const auto data = random_bytes(2000000, 2);
  const LockedForAll locked(plain_, data);
  for (std::size_t broken = 0; broken < size(); ++broken) {
    for (const std::size_t nth : {1u, 2u}) {  // a copy over the link, and one to another member
      GroupEngine engine(DeviceGroup(devices_), small_chunks());
      const auto buffers = poisoned_for_all(data.size());
      const auto gates = hold_back_all_but(broken);
      std::vector<std::size_t> before;
      for (const auto& one : faulty_) before.push_back(one->calls(Entry::copy));
      // It fails when each of the others has a chunk on its link.
      const auto wait_for_others = [&] {
        for (std::size_t i = 0; i < size(); ++i) {
          while (i != broken && faulty_[i]->calls(Entry::copy) < before[i] + size())
            std::this_thread::yield();
        }
      };
      faulty_[broken]->before(Entry::copy, wait_for_others);
      faulty_[broken]->fail(Entry::copy, nth);
      const Transfer transfer = engine.feed_once(places(buffers), locked.data(), data.size());
      while (faulty_[broken]->calls(Entry::copy) < before[broken] + nth) std::this_thread::yield();
      wait_for_others();
      // Time for one that does not wait.
      for (int i = 0; i < 20; ++i) {
        EXPECT_NO_THROW(EXPECT_FALSE(transfer.query()));
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      for (const auto& gate : gates) gate->open();
      EXPECT_THROW(transfer.synchronize(), DeviceError);
      for (const auto& one : faulty_) {
        one->heal();
        one->before(Entry::copy, {});
        one->hold_back_all(nullptr);
      }
      for (std::size_t i = 0; i < size(); ++i) poison(i, buffers[i]);
      const std::vector<std::byte> poison(data.size(), kPoison);
      for (std::size_t i = 0; i < size(); ++i) {
        EXPECT_EQ(first_difference(read(i, buffers[i], data.size()), poison), -1) << i;
      }
    }
  }
}

TEST_P(GroupFaultTest, AFailureWhileWaitingIsTheTransfers) {
  const auto data = random_bytes(20000, 3);  // one chunk, of one member
  for (const bool asks : {false, true}) {
    const auto buffers = poisoned_for_all(data.size());
    // Nobody has waited for its copies: it does when it goes.
    GroupEngine engine(DeviceGroup(devices_), small_chunks());
    const Transfer transfer = engine.feed_once(places(buffers), data.data(), data.size());
    transfer.synchronize_source();
    for (const auto& one : faulty_) {
      one->fail(asks ? Entry::event_query : Entry::event_synchronize, 1, FaultyBackend::kForever);
    }
    if (asks) {
      EXPECT_THROW((void)transfer.query(), DeviceError);
    } else {
      EXPECT_THROW(transfer.synchronize(), DeviceError);
    }
    for (const auto& one : faulty_) one->heal();
    EXPECT_THROW((void)transfer.query(), DeviceError);
    EXPECT_THROW(streams_[0].wait(transfer), DeviceError);
  }
}

TEST_P(GroupFaultTest, AFailureIsToldOnceTheOthersAreDone) {
  GroupEngine engine(DeviceGroup(devices_), small_chunks());
  const auto data = random_bytes(1000000, 8);
  const LockedForAll locked(plain_, data);
  const auto buffers = poisoned_for_all(data.size());
  for (const Entry entry : {Entry::event_query, Entry::event_synchronize}) {
    const auto gates = hold_back_all_but(0);
    const std::size_t before = faulty_[1]->calls(Entry::copy);
    // Both have chunks to carry.
    faulty_[0]->before(Entry::copy, [&] {
      while (faulty_[1]->calls(Entry::copy) == before) std::this_thread::yield();
    });
    const Transfer transfer = engine.feed_once(places(buffers), locked.data(), data.size());
    // Submitted: from now on only those who ask call the device.
    const Stream stream = plain_[0].create_stream();
    stream.wait(transfer);
    faulty_[0]->fail(entry, 1, FaultyBackend::kForever);
    std::atomic<bool> told{false};
    std::thread asker([&] {
      try {
        if (entry == Entry::event_query) {
          static_cast<void>(transfer.query());
        } else {
          transfer.synchronize();
        }
      } catch (const DeviceError&) {
        told = true;
      }
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // time for one that does not wait
    EXPECT_FALSE(told);
    for (const auto& gate : gates) gate->open();
    asker.join();
    EXPECT_TRUE(told);
    EXPECT_THROW((void)transfer.query(), DeviceError);
    for (const auto& one : faulty_) {
      one->heal();
      one->before(Entry::copy, {});
      one->hold_back_all(nullptr);
    }
  }
}

TEST_P(GroupFaultTest, CancelledTransfersStopAndSaySo) {
  const auto data = random_bytes(2000000, 4);
  const LockedForAll locked(plain_, data);
  GroupEngine engine(DeviceGroup(devices_), small_chunks());
  const auto buffers = poisoned_for_all(data.size());
  std::vector<std::unique_ptr<GatedStream>> gates;
  GroupCopyOptions options;
  for (std::size_t i = 0; i < size(); ++i) {
    gates.push_back(std::make_unique<GatedStream>(plain_[i]));
    options.after.push_back(&gates.back()->stream());
  }
  const std::size_t before = copied(CopyDirection::h2d);
  const Transfer transfer = engine.feed_once(places(buffers), locked.data(), data.size(), options);
  EXPECT_TRUE(transfer.cancel());
  EXPECT_FALSE(transfer.cancel());
  for (const auto& gate : gates) gate->open();
  EXPECT_THROW(transfer.synchronize(), Closed);
  EXPECT_THROW((void)transfer.query(), Closed);
  EXPECT_LE(copied(CopyDirection::h2d) - before, 2 * 64 * 1024 * size())
      << "more than the links had room for";
  expect_everywhere(engine.feed_once(places(buffers), locked.data(), data.size()), buffers, data);
  const Transfer done = engine.feed_once(places(buffers), locked.data(), data.size());
  done.synchronize();
  EXPECT_FALSE(done.cancel());
}

TEST_P(GroupFaultTest, ATransferThatIsTakenWholeIsNotCancelled) {
  const auto data = random_bytes(20000, 9);  // one chunk
  GroupEngine engine(DeviceGroup(devices_), small_chunks());
  const auto buffers = poisoned_for_all(data.size());
  std::promise<Transfer> asked;
  const std::shared_future<Transfer> answer = asked.get_future().share();
  std::atomic<bool> cancelled{false};
  // Whoever has taken the chunk asks before it is sent.
  for (const auto& one : faulty_) {
    one->before(Entry::copy, [&] {
      if (answer.get().cancel()) cancelled = true;
    });
  }
  const Transfer transfer = engine.feed_once(places(buffers), data.data(), data.size());
  asked.set_value(transfer);
  transfer.synchronize();
  EXPECT_FALSE(cancelled);
  for (const auto& one : faulty_) one->before(Entry::copy, {});
  expect_everywhere(transfer, buffers, data);
}

TEST_P(GroupFaultTest, HandlesOutliveTheEngineWhichCancelsWhatNoLinkHas) {
  const auto data = random_bytes(2000000, 5);
  const LockedForAll locked(plain_, data);
  const auto buffers = poisoned_for_all(data.size());
  const auto others = poisoned_for_all(data.size());
  Transfer done;
  Transfer cut;
  {
    GroupEngine engine(DeviceGroup(devices_), small_chunks());
    done = engine.feed_once(places(buffers), locked.data(), data.size());
    done.synchronize_source();
    std::vector<std::unique_ptr<GatedStream>> gates;
    GroupCopyOptions options;
    for (std::size_t i = 0; i < size(); ++i) {
      gates.push_back(std::make_unique<GatedStream>(plain_[i]));
      options.after.push_back(&gates.back()->stream());
    }
    cut = engine.feed_once(places(others), locked.data(), data.size(), options);
    const Transfer waiting = engine.feed_once(places(others), locked.data(), data.size(), options);
    EXPECT_TRUE(waiting.cancel());
    for (const auto& gate : gates) gate->open();
    // The engine's destructor cancels it, unless it has gone through meanwhile.
  }
  expect_everywhere(done, buffers, data);
  EXPECT_FALSE(cut.cancel());
  try {
    cut.synchronize();
    expect_everywhere(cut, others, data);
  } catch (const Closed&) {
  }
  done = Transfer();
  cut = Transfer();
  EXPECT_EQ(live(), std::vector<LiveHandles>(size()));
}

TEST_P(GroupFaultTest, AForkedChildIsToldAndLeavesCleanly) {
  auto engine = std::make_unique<GroupEngine>(DeviceGroup(devices_), small_chunks());
  const auto data = random_bytes(300000, 6);
  const auto buffers = poisoned_for_all(data.size());
  EXPECT_TRUE(succeeds_in_child([&] {
    const bool told =
        says_forked([&] { (void)engine->feed_once(places(buffers), data.data(), data.size()); });
    engine.reset();
    return told;
  }));
  expect_everywhere(engine->feed_once(places(buffers), data.data(), data.size()), buffers, data);
}

TEST(GroupOfGpus, MemoryThatIsMappedForOneGpuIsNotWrittenByOthers) {
  FakeCuda fake(PENSTOCK_FAKE_DRIVER);
  const auto data = random_bytes(3000000, 8);
  std::vector<Device> devices;
  std::vector<Buffer> buffers;
  std::vector<std::byte*> places;
  for (const char* spec : {"cuda:0", "cuda:1"}) {
    devices.push_back(Device::open(spec, {.driver_library = PENSTOCK_FAKE_DRIVER}));
    buffers.push_back(make_device_pool(devices.back()).allocate(data.size()));
    places.push_back(buffers.back().data());
  }
  GroupEngine engine(DeviceGroup(devices), small_chunks());
  fake.close_memory();
  EXPECT_NO_THROW(engine.feed_once(places, data.data(), data.size()).synchronize());
  EXPECT_NO_THROW(engine.relay(1, places[1], data.data(), data.size()).synchronize());
  EXPECT_EQ(engine.carried(), (std::vector<std::size_t>{data.size(), 2 * data.size()}));
}

TEST(GroupOfGpus, AFailureOnAGpuIsEverybodys) {
  constexpr int kIllegalAddress = 700;
  FakeCuda fake(PENSTOCK_FAKE_DRIVER);
  const auto data = random_bytes(3000000, 7);
  for (const char* const function : {"cuMemcpyHtoDAsync", "cuMemcpyDtoDAsync"}) {
    for (const bool asks : {false, true}) {
      {
        std::vector<Device> devices;
        for (const char* spec : {"cuda:0", "cuda:1"}) {
          devices.push_back(Device::open(spec, {.driver_library = PENSTOCK_FAKE_DRIVER}));
        }
        std::vector<Buffer> buffers;
        std::vector<std::byte*> places;
        for (const Device& device : devices) {
          buffers.push_back(make_device_pool(device).allocate(data.size()));
          places.push_back(buffers.back().data());
        }
        GroupEngine engine(DeviceGroup(devices), small_chunks());
        fake.fail_work(function, 3, kIllegalAddress);
        const Transfer transfer = engine.feed_once(places, data.data(), data.size());
        const auto wait = [&] {
          if (!asks) return transfer.synchronize();
          while (!transfer.query()) std::this_thread::yield();
        };
        EXPECT_THROW(wait(), DeviceError) << function;
        EXPECT_THROW((void)transfer.query(), DeviceError);
        for (const Device& device : devices) {
          const Stream stream = device.wrap_stream(nullptr);
          EXPECT_THROW(stream.wait(transfer), DeviceError);
        }
      }
      fake.reset();
    }
  }
}

}  // namespace
}  // namespace penstock::testing
