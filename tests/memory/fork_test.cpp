#include "support/fork.hpp"

#include "devices.hpp"
#include "mapping.hpp"
#include "support/faulty_backend.hpp"
#include "support/resources.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/memory/registration.hpp>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>

namespace penstock {
namespace {

using testing::DeviceTest;
using testing::Mapping;
using testing::says_forked;
using testing::succeeds_in_child;

class ForkTest : public DeviceTest {};

PENSTOCK_DEVICE_SUITE(ForkTest);

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
  const Mapping memory(4);
  std::optional<Registration> registration(std::in_place, device(), memory.page(0), memory.bytes());

  EXPECT_TRUE(succeeds_in_child([&] {
    const bool told = pinned_memory().held_bytes == 0 &&
                      says_forked([&] { static_cast<void>(pinned->allocate(1)); }) &&
                      says_forked([&] { static_cast<void>(pinned->allocate_wait(1)); }) &&
                      says_forked([&] { pinned->reserve(1); }) &&
                      says_forked([&] { static_cast<void>(on_device->statistics()); }) &&
                      says_forked([&] { const Registration another(device(), memory.page(0), 1); });
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

TEST_P(ForkTest, AChildNeitherReturnsMemoryNorCallsTheDriver) {
  const auto backend = std::make_shared<testing::FaultyBackend>(device().shared_backend());
  const Device counted(backend);
  const auto upstream = std::make_shared<testing::HookedResource>(std::make_shared<testing::HeapResource>());
  auto pool = std::make_unique<Pool>(
      counted, upstream, PoolOptions{.budget_bytes = 8 * kMiB, .segment_bytes = kMiB}, "test pool");
  const Stream stream = counted.create_stream();
  Buffer kept = pool->allocate(kMiB);
  pool->allocate(kMiB).release_after(stream);
  const Mapping memory(1);
  std::optional<Registration> registration(std::in_place, counted, memory.page(0), 1);
  EXPECT_TRUE(succeeds_in_child([&] {
    using testing::Entry;
    bool returned = false;
    upstream->before_deallocate = [&] { returned = true; };
    const std::size_t before = backend->calls(Entry::event_synchronize) + backend->calls(Entry::event_query);
    kept.release_after(stream);
    pool.reset();
    registration.reset();
    return !returned && backend->calls(Entry::host_unregister) == 0 &&
           backend->calls(Entry::event_synchronize) + backend->calls(Entry::event_query) == before;
  }));
}

TEST_P(ForkTest, AChildIsNotCaughtInALockThatAnotherThreadHeld) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer's own allocator may be locked in the child";
#endif
  auto pool = std::make_shared<Pool>(
      make_device_pool(device(), {.budget_bytes = 8 * kMiB, .segment_bytes = 4 * kMiB}));
  Buffer kept = pool->allocate(1000);
  const Mapping memory(4);
  std::atomic<bool> stop{false};
  std::thread hammer([&] {
    while (!stop) {
      Buffer buffer = pool->allocate(5000);
      static_cast<void>(pinned_memory());
      const Registration registration(device(), memory.page(0), 1);
    }
  });
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(succeeds_in_child([&] {
      const bool told = pinned_memory().held_bytes == 0 &&
                        says_forked([&] { static_cast<void>(pool->allocate(1)); }) &&
                        says_forked([&] { const Registration another(device(), memory.page(0), 1); });
      kept.release();
      pool.reset();
      return told;
    }));
  }
  stop = true;
  hammer.join();
}

TEST_P(ForkTest, AChildLetsGoWhileAnotherThreadHeldThePoolsLock) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer's own allocator may be locked in the child";
#endif
  using testing::Entry;
  const auto backend = std::make_shared<testing::FaultyBackend>(device().shared_backend());
  const Device watched(backend);
  Pool pool = make_device_pool(watched, {.budget_bytes = kMiB, .segment_bytes = kMiB});
  const Stream stream = watched.create_stream();
  Buffer kept = pool.allocate(1000);
  Buffer used = pool.allocate(1000);
  pool.allocate(1000).release_after(stream);
  std::promise<void> locked;
  std::promise<void> forked;
  backend->fail(Entry::event_query, 1, 1, [&] {
    locked.set_value();
    forked.get_future().wait();
  });
  std::thread other([&] { static_cast<void>(pool.allocate(1)); });
  locked.get_future().wait();
  EXPECT_TRUE(succeeds_in_child([&] {
    kept.release();
    used.release_after(stream);
    return kept.empty() && used.empty();
  }));
  forked.set_value();
  other.join();
}

}  // namespace
}  // namespace penstock
