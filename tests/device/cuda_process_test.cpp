#include "device/cuda_fixture.hpp"

#include <gmock/gmock.h>
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

namespace penstock::testing {

namespace {

using CudaProcess = CudaTest;

constexpr std::size_t kParentBytes = 1 << 20;

/// Runs a function in a child, and says how the child ended. The alarm ends a child that hangs.
template <typename Function>
int in_child(Function&& function) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(300);
    int status = 99;
    try {
      status = function();
    } catch (...) {
    }
    ::_exit(status);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

template <typename Function>
bool is_forked_error(Function&& function) {
  try {
    function();
  } catch (const DeviceError& error) {
    return error.name() == "PENSTOCK_FORKED" && std::string(error.what()).find("spawn") != std::string::npos;
  }
  return false;
}

TEST_F(CudaProcess, ForkedChildGetsAClearError) {
  std::optional<Device> device(open());
  std::optional<Stream> stream(device->create_stream());
  std::optional<Event> event(device->create_event());
  Backend& backend = device->backend();
  void* memory = backend.device_allocate(kParentBytes);
  void* pinned = backend.host_allocate(kParentBytes);
  const Device peer = open("cuda:1");
  EXPECT_EQ(
      in_child([&] {
        const StreamHandle s = stream->native();
        const EventHandle e = event->native();
        int failures = 0;
        const auto refused = [&](auto&& call) { failures += is_forked_error(call) ? 0 : 1; };
        refused([&] { static_cast<void>(backend.memory()); });
        refused([&] { static_cast<void>(backend.can_reach(peer.backend())); });
        refused([&] { backend.enable_peer(peer.backend()); });
        refused([&] { backend.stream_create(StreamPriority::normal); });
        refused([&] { static_cast<void>(backend.stream_query(s)); });
        refused([&] { backend.stream_synchronize(s); });
        refused([&] { backend.stream_wait_event(s, e); });
        refused([&] { backend.stream_wait_value(s, static_cast<std::uint32_t*>(pinned), 0); });
        refused([&] { backend.stream_occupy(s, 0); });
        refused([&] { backend.event_create(EventTiming::off, EventWait::poll); });
        refused([&] { backend.event_record(e, s); });
        refused([&] { static_cast<void>(backend.event_query(e)); });
        refused([&] { backend.event_synchronize(e); });
        refused([&] { static_cast<void>(backend.event_elapsed(e, e)); });
        refused([&] { backend.device_allocate(1); });
        refused([&] { backend.device_allocate_shared(1); });
        refused([&] { static_cast<void>(backend.memory_export(memory)); });
        refused([&] { static_cast<void>(backend.memory_import({})); });
        refused([&] { backend.host_register(pinned, 4096, false); });
        refused([&] { backend.host_allocate(1); });
        refused([&] { static_cast<void>(backend.kind_of(pinned)); });
        refused([&] { static_cast<void>(backend.device_address(pinned)); });
        refused([&] { backend.copy(memory, pinned, 1, CopyDirection::h2d, s); });
        refused([&] { backend.fill(memory, 0, 1, s); });
        refused([&] { backend.copy_pieces(static_cast<CopyPiece*>(pinned), 1, s); });
        refused([&] {
          backend.gather(
              {.source = memory, .source_rows = 1, .row_elements = 1, .count = 1, .destination = memory}, s);
        });
        refused([&] {
          backend.split_rows({.rows = memory,
                              .row_bytes = 16,
                              .count = 1,
                              .destination = memory,
                              .values = static_cast<const RowValue*>(memory),
                              .firsts = static_cast<const std::uint32_t*>(memory),
                              .value_count = 1},
                             s);
        });
        refused([&] {
          backend.fill_order(
              {.run = {.order = std::nullopt, .count = 1}, .indices = static_cast<std::uint64_t*>(memory)},
              s);
        });
        refused(
            [&] { backend.hash({.source = memory, .bytes = 16, .sums = static_cast<HashSum*>(memory)}, s); });
        refused([&] { static_cast<void>(open()); });
        backend.device_free(memory);
        backend.host_free(pinned);
        backend.host_unregister(pinned);
        backend.memory_close(memory);
        event.reset();
        stream.reset();
        device.reset();
        return failures + static_cast<int>(fake.calls_after_fork());
      }),
      0);
  backend.copy(memory, pinned, kParentBytes, CopyDirection::h2d, stream->native());
  stream->synchronize();
  backend.device_free(memory);
  backend.host_free(pinned);
}

TEST_F(CudaProcess, ForkedChildMayListAndIsTold) {
  const Device device = open();
  EXPECT_EQ(in_child([] {
              const DeviceInventory inventory = Device::inventory({.driver_library = PENSTOCK_FAKE_DRIVER});
              return inventory.devices.size() == 1 && inventory.missing.size() == 1 &&
                             inventory.missing[0].find("fork") != std::string::npos
                         ? 0
                         : 1;
            }),
            0);
}

/// Everything of a transfer that is in flight when the process ends.
struct InFlight {
  Device device = Device::open("cuda:0", {.driver_library = PENSTOCK_FAKE_DRIVER});
  Stream stream = device.create_stream();
  Event event = device.create_event();
  void* memory = device.backend().device_allocate(kParentBytes);
  void* pinned = device.backend().host_allocate(kParentBytes);

  InFlight() {
    for (int i = 0; i < 4; ++i) {
      device.backend().copy(memory, pinned, kParentBytes, CopyDirection::h2d, stream.native());
    }
    event.record(stream);
  }
  ~InFlight() {
    device.backend().device_free(memory);
    device.backend().host_free(pinned);
  }
};

void exit_in_flight(std::unique_ptr<InFlight>& place) {
  ::alarm(300);
  FakeCuda(PENSTOCK_FAKE_DRIVER).delay_work("cuMemcpyHtoDAsync", 50'000'000);
  place = std::make_unique<InFlight>();
  std::exit(0);
}

TEST(CudaProcessDeathTest, ExitInMidTransferIsSilentWithTheDriverGoneFirst) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // Constructed before the driver comes up, so destroyed after it is gone.
  static std::unique_ptr<InFlight> place;
  EXPECT_EXIT(exit_in_flight(place), ::testing::ExitedWithCode(0), "^$");
}

TEST(CudaProcessDeathTest, ExitInMidTransferIsSilentWithTheDriverStillThere) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::alarm(300);
        FakeCuda fake(PENSTOCK_FAKE_DRIVER);
        {
          const Device first = Device::open("cuda:0", {.driver_library = PENSTOCK_FAKE_DRIVER});
        }
        fake.delay_work("cuMemcpyHtoDAsync", 50'000'000);
        static InFlight in_flight;
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "^$");
}

TEST(CudaProcessDeathTest, ExitWithoutDestructorsIsSilent) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::alarm(300);
        FakeCuda(PENSTOCK_FAKE_DRIVER).delay_work("cuMemcpyHtoDAsync", 50'000'000);
        static InFlight* leaked = new InFlight;
        std::exit(leaked == nullptr ? 1 : 0);
      },
      ::testing::ExitedWithCode(0), "^$");
}

}  // namespace

}  // namespace penstock::testing
