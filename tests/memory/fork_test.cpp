#include "devices.hpp"
#include "memory/host_pages.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/memory/registration.hpp>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>

namespace penstock {
namespace {

using testing::DeviceTest;

// Runs `body` in a forked child; true when it returned true. A child that hangs is ended by its alarm.
template <typename Body>
bool succeeds_in_child(Body&& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    bool good = false;
    try {
      good = body();
    } catch (...) {
    }
    _exit(good ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

template <typename Call>
bool says_forked(Call&& call) {
  try {
    call();
  } catch (const DeviceError& error) {
    return error.name() == "PENSTOCK_FORKED";
  }
  return false;
}

class ForkTest : public DeviceTest {};

INSTANTIATE_TEST_SUITE_P(Devices, ForkTest, ::testing::ValuesIn(testing::kDeviceCases), testing::case_name);

TEST_P(ForkTest, AChildLetsGoOfEverythingQuietly) {
  const Stream stream = device().create_stream();
  auto pinned = std::make_unique<Pool>(
      make_pinned_pool(device(), {.budget_bytes = 8 * kMiB, .segment_bytes = 4 * kMiB}));
  auto on_device = std::make_unique<Pool>(
      make_device_pool(device(), {.budget_bytes = 8 * kMiB, .segment_bytes = 4 * kMiB}));
  Buffer a = pinned->allocate(kMiB);
  Buffer b = on_device->allocate(kMiB);
  Buffer c = on_device->allocate(kMiB);
  std::optional<testing::Gate> gate(std::in_place, device(), stream);
  pinned->allocate(kMiB).release_after(stream);
  const std::size_t bytes = 4 * page_bytes();
  const std::unique_ptr<std::byte[]> memory(new std::byte[bytes]);
  std::memset(memory.get(), 1, bytes);
  std::optional<Registration> registration(std::in_place, device(), memory.get(), bytes);

  EXPECT_TRUE(succeeds_in_child([&] {
    const bool told = says_forked([&] { static_cast<void>(pinned->allocate(1)); }) &&
                      says_forked([&] { static_cast<void>(pinned->allocate_wait(1)); }) &&
                      says_forked([&] { pinned->reserve(1); }) && says_forked([&] { pinned->trim(); }) &&
                      says_forked([&] { static_cast<void>(on_device->statistics()); }) &&
                      says_forked([&] { const Registration another(device(), memory.get(), 1); });
    a.release();
    b.release_after(stream);
    pinned.reset();
    on_device.reset();
    c.release();
    registration.reset();
    return told;
  }));

  gate.reset();
  std::memset(a.data(), 2, a.size());
  EXPECT_EQ(pinned->statistics().used_bytes, kMiB);
  EXPECT_EQ(on_device->statistics().used_bytes, 2 * kMiB);
  EXPECT_EQ(pinned->allocate_wait(3 * kMiB).size(), 3 * kMiB);
}

TEST_P(ForkTest, AChildIsNotCaughtInALockThatAnotherThreadHeld) {
  auto pool = std::make_shared<Pool>(
      make_device_pool(device(), {.budget_bytes = 8 * kMiB, .segment_bytes = 4 * kMiB}));
  Buffer kept = pool->allocate(1000);
  const std::unique_ptr<std::byte[]> memory(new std::byte[4 * page_bytes()]);
  std::atomic<bool> stop{false};
  std::thread hammer([&] {
    while (!stop) {
      Buffer buffer = pool->allocate(5000);
      const Registration registration(device(), memory.get(), 1);
    }
  });
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(succeeds_in_child([&] {
      const bool told = says_forked([&] { static_cast<void>(pool->allocate(1)); }) &&
                        says_forked([&] { const Registration another(device(), memory.get(), 1); });
      kept.release();
      pool.reset();
      return told;
    }));
  }
  stop = true;
  hammer.join();
}

}  // namespace
}  // namespace penstock
