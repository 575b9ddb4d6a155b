#include "device/contract_suite.hpp"
#include "support/fork.hpp"
#include "support/threads.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

/// Forking after a device is open, and ending while it works.
namespace penstock::testing {
namespace {

int exit_status_of(const std::function<int()>& child_main) {
  const pid_t child = fork();
  if (child == 0) _exit(child_main());
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -status - 1;
}

TEST(HostFork, EveryEntryOfAChildRefusesAndEndsCleanly) {
  auto device = std::make_unique<Device>(Device::open("host:memory=16MiB"));
  auto stream = std::make_unique<Stream>(device->create_stream());
  auto event = std::make_unique<Event>(device->create_event());
  const Device peer = Device::open("host:1,memory=1MiB");
  void* const block = device->backend().device_allocate(64);
  auto* const pinned = device->backend().host_allocate(64);
  device->backend().copy(block, pinned, 64, CopyDirection::h2d, stream->native());
  event->record(*stream);
  stream->synchronize();
  const int status = exit_status_of([&] {
    Backend& backend = device->backend();
    int failure = 1;
    const auto refuses = [&](const std::function<void()>& call) {
      const bool good = says_forked(call);
      if (!good) std::fprintf(stderr, "call %d was not refused\n", failure);
      ++failure;
      return good;
    };
    bool good = true;
    good &= refuses([&] { static_cast<void>(backend.memory()); });
    good &= refuses([&] { static_cast<void>(backend.can_reach(peer.backend())); });
    good &= refuses([&] { backend.enable_peer(peer.backend()); });
    good &= refuses([&] { backend.stream_create(StreamPriority::normal); });
    good &= refuses([&] { static_cast<void>(backend.stream_query(stream->native())); });
    good &= refuses([&] { backend.stream_synchronize(stream->native()); });
    good &= refuses([&] { backend.stream_synchronize(nullptr); });
    good &= refuses([&] { backend.stream_wait_event(stream->native(), event->native()); });
    good &=
        refuses([&] { backend.stream_wait_value(stream->native(), static_cast<std::uint32_t*>(pinned), 0); });
    good &= refuses([&] { backend.stream_occupy(stream->native(), 0); });
    good &= refuses([&] { backend.event_create(EventTiming::off, EventWait::poll); });
    good &= refuses([&] { backend.event_record(event->native(), stream->native()); });
    good &= refuses([&] { static_cast<void>(backend.event_query(event->native())); });
    good &= refuses([&] { backend.event_synchronize(event->native()); });
    good &= refuses([&] { static_cast<void>(backend.event_elapsed(event->native(), event->native())); });
    good &= refuses([&] { backend.device_allocate(1); });
    good &= refuses([&] { backend.host_register(pinned, 4096, false); });
    good &= refuses([&] { backend.host_allocate(1); });
    good &= refuses([&] { backend.device_allocate_shared(1); });
    good &= refuses([&] { static_cast<void>(backend.memory_export(block)); });
    good &= refuses([&] { static_cast<void>(backend.memory_import({})); });
    good &= refuses([&] { static_cast<void>(backend.kind_of(block)); });
    good &= refuses([&] { static_cast<void>(backend.device_address(pinned)); });
    good &= refuses([&] { backend.copy(block, pinned, 64, CopyDirection::h2d, stream->native()); });
    good &= refuses([&] { backend.fill(block, 0, 64, stream->native()); });
    good &= refuses([&] { backend.copy_pieces(nullptr, 0, stream->native()); });
    good &= refuses([&] { backend.gather({}, stream->native()); });
    good &= refuses([&] { backend.split_rows({}, stream->native()); });
    good &= refuses([&] { backend.fill_order({}, stream->native()); });
    good &= refuses([&] { backend.hash({}, stream->native()); });
    backend.device_free(block);
    backend.host_free(pinned);
    backend.host_unregister(pinned);
    backend.memory_close(block);
    event.reset();
    stream.reset();
    device.reset();
#ifdef PENSTOCK_THREAD_SANITIZER
    return good ? 0 : 1;  // it does not let a forked child start threads
#endif
    // A device of its own works in the child.
    const Device own = Device::open("host:memory=1MiB");
    DeviceBytes mine(own, 16);
    const Stream here = own.create_stream();
    own.backend().fill(mine.data(), 7, 16, here.native());
    here.synchronize();
    return good && mine.data()[15] == std::byte{7} ? 0 : 1;
  });
  EXPECT_EQ(status, 0);
  device->backend().fill(block, 0, 64, stream->native());
  stream->synchronize();
  device->backend().device_free(block);
  device->backend().host_free(pinned);
}

TEST(HostFork, ForkInMidCopyHangsNeither) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer's own allocator may be locked in the child";
#endif
  const Device device = Device::open("host:memory=64MiB,link=1");
  const Stream stream = device.create_stream();
  DeviceBytes block(device, 4000000);
  PinnedBytes pinned(device, 4000000);
  for (int i = 0; i < 5; ++i) {
    device.backend().copy(block.data(), pinned.data(), block.size(), CopyDirection::h2d, stream.native());
    EXPECT_EQ(exit_status_of([&] { return says_forked([&] { stream.synchronize(); }) ? 0 : 1; }), 0);
  }
  stream.synchronize();
}

/// The signals that a thread of this process blocks, the first of them in the lowest bit.
std::uint64_t blocked_signals(pid_t thread) {
  std::ifstream status("/proc/self/task/" + std::to_string(thread) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigBlk:")) return std::stoull(line.substr(7), nullptr, 16);
  }
  return 0;
}

TEST(HostSignals, DoNotGoToTheDevicesThreads) {
  const StartedThreads threads;
  const Device device = Device::open("host:memory=1MiB");
  const Stream stream = device.create_stream();
  device.backend().stream_occupy(stream.native(), 0);
  stream.synchronize();
  ASSERT_EQ(threads.get().size(), 1u);
  const std::uint64_t blocked = blocked_signals(*threads.get().begin());
  const auto is_blocked = [&](int signal) { return (blocked >> (signal - 1) & 1) != 0; };
  EXPECT_TRUE(is_blocked(SIGINT));
  EXPECT_TRUE(is_blocked(SIGTERM));
  EXPECT_FALSE(is_blocked(SIGSEGV));
}

/// The objects that are still open when a process ends. Never destroyed; reachable, so that they are not
/// leaks.
struct LeftOpen {
  static constexpr std::size_t kBytes = std::size_t{8} << 20;
  static constexpr std::size_t kStreams = 3;

  explicit LeftOpen(const std::string& spec)
      : device(Device::open(spec)), block(device, kStreams * kBytes), pinned(device, kBytes) {}

  Device device;
  DeviceBytes block;
  PinnedBytes pinned;
  std::vector<Stream> streams;
};

LeftOpen* left_open = nullptr;

/// Starts work that takes long, and ends the process in the middle of it.
[[noreturn]] void leave_in_mid_copy(const std::string& spec, bool keep_streams) {
  left_open = new LeftOpen(spec);
  for (std::size_t i = 0; i < LeftOpen::kStreams; ++i) {
    const Stream& stream = left_open->streams.emplace_back(left_open->device.create_stream());
    for (int copy = 0; copy < 60; ++copy) {
      left_open->device.backend().copy(left_open->block.data() + i * LeftOpen::kBytes,
                                       left_open->pinned.data(), LeftOpen::kBytes, CopyDirection::h2d,
                                       stream.native());
    }
  }
  if (!keep_streams) left_open->streams.clear();
  std::exit(0);
}

TEST(HostExitDeathTest, EndsInMidCopyWithoutAMessage) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const char* spec : {"host:memory=64MiB", "host:memory=64MiB,late=1", "host:memory=64MiB,link=1"}) {
    for (const bool keep_streams : {false, true}) {
      EXPECT_EXIT(leave_in_mid_copy(spec, keep_streams), ::testing::ExitedWithCode(0), "^$") << spec;
    }
  }
}

}  // namespace
}  // namespace penstock::testing
