#include "device/host/host_backend.hpp"
#include "support/fork.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/host_workers.hpp>
#include <penstock/device/device.hpp>
#include <penstock/device/topology.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

namespace penstock {
namespace {

using ::testing::HasSubstr;

TEST(HostOptionsTest, ReadsEveryKey) {
  const HostOptions options =
      parse_host_options("3,link=12.5,latency=8,peer=100,memory=4GiB,lock=8MiB,late=1");
  EXPECT_EQ(options.index, 3);
  EXPECT_DOUBLE_EQ(options.link_bytes_per_second, 12.5e9);
  EXPECT_EQ(options.latency, std::chrono::microseconds(8));
  EXPECT_DOUBLE_EQ(options.peer_bytes_per_second, 100e9);
  EXPECT_EQ(options.memory_bytes, 4 * kGiB);
  EXPECT_EQ(options.lock_bytes, 8 * kMiB);
  EXPECT_TRUE(options.late);
}

TEST(HostOptionsTest, DefaultsAreAnUnlimitedFastDevice) {
  const HostOptions options = parse_host_options("");
  EXPECT_EQ(options.index, 0);
  EXPECT_EQ(options.link_bytes_per_second, 0);
  EXPECT_EQ(options.peer_bytes_per_second, 0);
  EXPECT_EQ(options.latency.count(), 0);
  EXPECT_FALSE(options.lock_bytes.has_value());
  EXPECT_FALSE(options.late);
}

TEST(HostOptionsTest, RefusesWhatItCannotRead) {
  for (const char* text : {"link",
                           "link=",
                           "=3",
                           "link=fast",
                           "link=-1",
                           "link=nan",
                           "latency=1e99",
                           "memory=0",
                           "memory=x",
                           "late=2",
                           "late=yes",
                           "speed=3",
                           "late=1,,lock=3",
                           "link=1 ",
                           "16",
                           "-1",
                           "+1",
                           "1x",
                           "0x1",
                           "1.5",
                           "1 ",
                           "99999999999",
                           "link=1,1",
                           "1,2",
                           "1,,link=1",
                           "1link=1",
                           "peer=",
                           "peer=-1"}) {
    EXPECT_THROW(static_cast<void>(parse_host_options(text)), InvalidArgument) << text;
  }
}

TEST(HostOptionsTest, ARefusalDoesNotContradictItself) {
  const auto refusal = [](const char* text) -> std::string {
    try {
      static_cast<void>(parse_host_options(text));
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal("late"), "option 'late' of host has no value; write late=VALUE");
  EXPECT_EQ(refusal("link="), "option 'link' of host has no value; write link=VALUE");
  const std::string keys = "host takes link, latency, peer, memory, lock, late, each written key=value";
  EXPECT_EQ(refusal("speed"), "unknown option 'speed'; " + keys);
  EXPECT_EQ(refusal("speed=3"), "unknown option 'speed'; " + keys);
  EXPECT_EQ(refusal("16,link=1"),
            "'16' is not a host device; write host:N with N from 0 to 15, or host:N,key=value");
}

TEST(DeviceTest, SpecOpensTheSameDeviceAgain) {
  for (const char* spec :
       {"host", "host:memory=64MiB", "host:link=12,latency=8,peer=2,memory=4GiB,lock=8MiB,late=1", "host:15",
        "host:1,memory=64MiB"}) {
    const Device device = Device::open(spec);
    const Device again = Device::open(device.info().spec);
    EXPECT_EQ(device.info().spec, again.info().spec);
    EXPECT_EQ(device.memory().total, again.memory().total);
    EXPECT_EQ(device.info().backend, "host");
  }
  EXPECT_EQ(Device::open("host").info().spec, "host");
  EXPECT_EQ(Device::open("host:0").info().spec, "host");
  EXPECT_EQ(Device::open("cpu").info().spec, "host");
  EXPECT_EQ(Device::open("host:0,memory=64MiB").info().spec, Device::open("host:memory=64MiB").info().spec);
  EXPECT_EQ(Device::open("host:1").info().spec, "host:1");
  EXPECT_EQ(Device::open("host:1,peer=2.5").info().spec, "host:1,peer=2.5");
  EXPECT_EQ(Device::open("host:1,memory=64MiB").info().index, 1);
  EXPECT_EQ(Device::open("host:memory=64MiB").memory().total, 64 * kMiB);
}

TEST(DeviceTest, WrongSpecsAreRefusedWithTheKnownOnes) {
  for (const char* spec :
       {"", "gpu", "mps", "xpu:0", "cuda:", "cuda:x", "cuda:-1", "cuda:0x", "Host", "hosts", "cuda0"}) {
    try {
      static_cast<void>(Device::open(spec));
      ADD_FAILURE() << spec;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("use auto, cuda, cuda:N, cpu, host:N")) << spec;
    }
  }
}

TEST(DeviceTest, MissingDriverIsAnErrorForCudaAndNotForAuto) {
  const DeviceOptions nowhere{.driver_library = "/nonexistent/libcuda.so.1"};
  EXPECT_THROW(static_cast<void>(Device::open("cuda:0", nowhere)), DeviceError);
  EXPECT_THROW(static_cast<void>(Device::open("cuda", nowhere)), DeviceError);
  EXPECT_EQ(Device::open("auto", nowhere).info().backend, "host");
}

TEST(DeviceTest, InventoryEndsWithTheHostAndSaysWhatIsMissing) {
  const DeviceInventory inventory = Device::inventory({.driver_library = "/nonexistent/libcuda.so.1"});
  ASSERT_EQ(inventory.devices.size(), 1u);
  EXPECT_EQ(inventory.devices.back().spec, "host");
  EXPECT_GT(inventory.devices.back().memory_bytes, 0u);
  ASSERT_EQ(inventory.missing.size(), 1u);
  EXPECT_THAT(inventory.missing.front(), HasSubstr("/nonexistent/libcuda.so.1"));
}

#ifdef PENSTOCK_FAKE_DRIVER
TEST(DeviceTest, InventoryPutsGpusFirst) {
  const DeviceInventory inventory = Device::inventory({.driver_library = PENSTOCK_FAKE_DRIVER});
  ASSERT_GE(inventory.devices.size(), 2u);
  EXPECT_EQ(inventory.devices.front().spec, "cuda:0");
  EXPECT_EQ(inventory.devices.back().spec, "host");
  EXPECT_EQ(Device::open("auto", {.driver_library = PENSTOCK_FAKE_DRIVER}).info().backend, "cuda");
}
#endif

/// State that a layer keeps for each device.
struct Book {
  Book() { ++made, ++alive; }
  ~Book() { --alive; }
  Book(const Book&) = delete;
  Book& operator=(const Book&) = delete;

  static inline std::atomic<int> made = 0;
  static inline std::atomic<int> alive = 0;
};

TEST(DeviceTest, AnAttachmentIsMadeOnceForAllCopiesOfADeviceAndGoesWithTheLast) {
  const Device other = Device::open("host");
  std::optional<Device> device(Device::open("host"));
  std::optional<Device> copy(device);
  const Stream stream = device->create_stream();
  std::vector<Book*> seen(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    threads.emplace_back([&, i] { seen[i] = &(i % 2 == 0 ? device : copy)->attachment<Book>(); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Book::made, 1);
  EXPECT_THAT(seen, ::testing::Each(&device->attachment<Book>()));
  EXPECT_NE(&other.attachment<Book>(), seen.front());
  device.reset();
  EXPECT_EQ(Book::alive, 2);
  copy.reset();
  EXPECT_EQ(Book::alive, 1) << "a stream keeps the backend open, not what is attached to the device";
}

TEST(DeviceTest, EventsKnowTheStreamsOfTheirDevice) {
  const Device device = Device::open("host");
  const Stream stream = device.create_stream();
  const Stream foreign = Device::open("host").create_stream();
  const Event of_device = device.create_event();
  const Event of_stream = stream.create_event();
  for (const Event* const event : {&of_device, &of_stream}) {
    EXPECT_TRUE(event->same_device(stream));
    EXPECT_FALSE(event->same_device(foreign));
  }
}

TEST(DeviceTest, TheBackendTunesTheDevice) {
  const DeviceInfo host = Device::open("host").info();
  EXPECT_TRUE(host.in_host_memory);
  EXPECT_LT(host.tuning.staged_chunks.front(), kMiB) << "slots are to stay in a processor's cache";
  EXPECT_FALSE(host.tuning.packing.streaming_stores);
  EXPECT_EQ(Device::inventory().devices.back().tuning.staged_chunks, host.tuning.staged_chunks);
#ifdef PENSTOCK_FAKE_DRIVER
  const DeviceInfo gpu = Device::open("cuda", {.driver_library = PENSTOCK_FAKE_DRIVER}).info();
  EXPECT_FALSE(gpu.in_host_memory);
  EXPECT_EQ(gpu.tuning.staged_chunks.front(), 12 * kMiB);
  EXPECT_TRUE(gpu.tuning.packing.streaming_stores);
#endif
}

TEST(DeviceTest, TeamsOfDevicesShareTheProcessors) {
  const Device device = Device::open("host");
  const auto shared = device.host_workers()->processors();
  ASSERT_NE(shared, nullptr);
  EXPECT_EQ(Device::open("host:1").host_workers()->processors(), shared);
  EXPECT_EQ(device.host_workers(2)->processors(), nullptr) << "it has as many as were asked for";
  share_processors(HostWorkersOptions::kMostThreads * host_topology().processors);
  EXPECT_EQ(shared->workers(), SharedProcessors::kLeastWorkers);
  share_processors(1);
  EXPECT_GE(shared->workers(), HostWorkersOptions::kMostThreads);
}

TEST(DeviceTest, TeamsOfTheParentTakeNoProcessorsFromAForkedChild) {
  const auto shared = Device::open("host").host_workers()->processors();
  shared->team_begins();
  shared->team_begins();
  EXPECT_TRUE(testing::succeeds_in_child([&] {
    const auto own = Device::open("host:1").host_workers()->processors();
    return own != shared && own->workers() >= HostWorkersOptions::kMostThreads;
  }));
  shared->team_ends();
  shared->team_ends();
}

TEST(DeviceTest, NullBackendIsRefused) { EXPECT_THROW(Device(nullptr), InvalidArgument); }

}  // namespace
}  // namespace penstock
