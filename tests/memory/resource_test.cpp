#include "devices.hpp"
#include "memory/device_resource.hpp"
#include "memory/host_pages.hpp"
#include "memory/pinned_resource.hpp"
#include "memory/pool_state.hpp"
#include "support/faulty_backend.hpp"
#include "support/resources.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/host_workers.hpp>
#include <penstock/device/topology.hpp>
#include <penstock/memory/pool.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using testing::DeviceTest;
using testing::Entry;
using testing::FaultyBackend;
using ::testing::HasSubstr;

std::size_t resident_pages(void* data, std::size_t bytes) {
  std::vector<unsigned char> present(bytes / page_bytes());
  EXPECT_EQ(mincore(data, bytes, present.data()), 0);
  return static_cast<std::size_t>(
      std::ranges::count_if(present, [](unsigned char p) { return (p & 1) != 0; }));
}

// The kernel's flags of the mapping that holds `data`, from /proc/self/smaps.
std::string mapping_flags(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    unsigned long low = 0;
    unsigned long high = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &low, &high) == 2) inside = low <= address && address < high;
    if (inside && line.starts_with("VmFlags:")) return line + " ";
  }
  return "none";
}

TEST(HostPagesTest, AreAlignedHugeAndPresentOnceTouched) {
  HostWorkers workers({.threads = 3, .on_start = {}});
  for (const std::size_t bytes : {std::size_t{4096}, kMiB, 2 * kMiB, 5 * kMiB + 4096, 70 * kMiB}) {
    void* const data = map_host_pages(bytes);
    ASSERT_NE(data, nullptr);
    EXPECT_EQ(resident_pages(data, bytes), 0u);
    EXPECT_TRUE(touch_host_pages(data, bytes, workers));
    EXPECT_EQ(resident_pages(data, bytes), bytes / page_bytes());
    const std::string flags = mapping_flags(data);
    EXPECT_THAT(flags, HasSubstr(" dc ")) << "a forked child must not share the pages";
    if (bytes >= 2 * kMiB) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % (2 * kMiB), 0u);
      EXPECT_THAT(flags, HasSubstr(" hg "));
    }
    std::memset(data, 0x33, bytes);
    unmap_host_pages(data, bytes);
  }
}

std::size_t mapped_bytes() {
  std::ifstream maps("/proc/self/maps");
  std::size_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    unsigned long low = 0;
    unsigned long high = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &low, &high) == 2) bytes += high - low;
  }
  return bytes;
}

TEST(HostPagesTest, NothingIsLeftMapped) {
  const std::size_t before = mapped_bytes();
  for (int i = 0; i < 50; ++i) unmap_host_pages(map_host_pages(2 * kMiB + 4096), 2 * kMiB + 4096);
  EXPECT_LT(mapped_bytes(), before + 8 * kMiB);
}

TEST(HostPagesTest, AMappingThatCannotBeIsRefused) {
  EXPECT_EQ(map_host_pages(std::size_t{1} << 60), nullptr);
  EXPECT_EQ(map_host_pages(~std::size_t{4095}), nullptr);
}

class ResourceTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    backend_ = std::make_shared<FaultyBackend>(device().shared_backend());
    faulty_.emplace(backend_);
  }

  static void unsupported() { throw Unsupported("the kernel does not want to"); }

  std::shared_ptr<FaultyBackend> backend_;
  std::optional<Device> faulty_;
};

PENSTOCK_DEVICE_SUITE(ResourceTest);

TEST_P(ResourceTest, PinnedMemoryIsOneRegistrationThatTheDeviceKnows) {
  PinnedResource resource(*faulty_);
  for (const std::size_t bytes : {std::size_t{1}, 4097 * std::size_t{1}, 3 * kMiB + 1}) {
    auto* const data = static_cast<std::byte*>(resource.allocate(bytes, 4096));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 4096, 0u);
    EXPECT_EQ(backend_->live().registrations, 1u);
    EXPECT_EQ(device().kind_of(data), MemoryKind::pinned);
    EXPECT_EQ(device().kind_of(data + bytes - 1), MemoryKind::pinned);
    std::memset(data, 0x44, bytes);
    resource.deallocate(data, bytes, 4096);
    EXPECT_EQ(device().kind_of(data), MemoryKind::pageable);
    EXPECT_EQ(backend_->live(), testing::LiveHandles{});
  }
}

TEST_P(ResourceTest, WhereRegisteringIsRefusedTheDriverAllocates) {
  PinnedResource resource(*faulty_);
  backend_->fail(Entry::host_register, 1, 1, unsupported);
  void* const data = resource.allocate(kMiB, 256);
  EXPECT_EQ(backend_->live().registrations, 0u);
  EXPECT_EQ(backend_->live().host_allocations, 1u);
  EXPECT_EQ(device().kind_of(data), MemoryKind::pinned);
  std::memset(data, 0x55, kMiB);
  void* const second = resource.allocate(kMiB, 256);
  EXPECT_EQ(backend_->live().registrations, 1u);
  resource.deallocate(data, kMiB, 256);
  resource.deallocate(second, kMiB, 256);
  EXPECT_EQ(backend_->live(), testing::LiveHandles{});
}

TEST_P(ResourceTest, WhereBothAreRefusedTheErrorSaysWhatToDo) {
  PinnedResource resource(*faulty_);
  backend_->fail(Entry::host_register, 1, 1, unsupported);
  backend_->fail(Entry::host_allocate, 1, 1, [] { throw OutOfMemory("driver", 1, 2, 3); });
  try {
    static_cast<void>(resource.allocate(kMiB, 256));
    FAIL();
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.asked(), kMiB);
    EXPECT_THAT(error.what(), HasSubstr("ulimit -l"));
    EXPECT_THAT(error.what(), HasSubstr("the kernel does not want to"));
  }
  EXPECT_EQ(backend_->live(), testing::LiveHandles{});
}

TEST_P(ResourceTest, AFailingDriverLeavesNothingMapped) {
  PinnedResource resource(*faulty_);
  backend_->fail(Entry::host_register, 1, 11);
  EXPECT_THROW(static_cast<void>(resource.allocate(kGiB / 32, 256)), DeviceError);
  const std::size_t before = mapped_bytes();
  for (int i = 0; i < 10; ++i) {
    EXPECT_THROW(static_cast<void>(resource.allocate(kGiB / 32, 256)), DeviceError);
  }
  EXPECT_LT(mapped_bytes(), before + kGiB / 8);
}

TEST_P(ResourceTest, PinnedMemoryThatCannotBeMappedIsRefused) {
  PinnedResource resource(*faulty_);
  try {
    static_cast<void>(resource.allocate(std::size_t{1} << 60, 256));
    FAIL();
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("refuses to map"));
  }
  EXPECT_EQ(backend_->calls(Entry::host_register), 0u);
}

TEST_P(ResourceTest, PinnedMemoryIsUnmappedWhenItGoesBack) {
  PinnedResource resource(*faulty_);
  void* const data = resource.allocate(kMiB, 256);
  unsigned char present = 0;
  EXPECT_EQ(mincore(data, page_bytes(), &present), 0);
  resource.deallocate(data, kMiB, 256);
  EXPECT_EQ(mincore(data, page_bytes(), &present), -1);
}

TEST_P(ResourceTest, ThreadsShareADeviceResource) {
  DeviceResource resource(*faulty_);
  std::latch together(3);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      together.arrive_and_wait();
      for (int round = 0; round < 100; ++round) resource.deallocate(resource.allocate(64, 4096), 64, 4096);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(backend_->live(), testing::LiveHandles{});
}

TEST_P(ResourceTest, DeviceMemoryIsAlignedAsAsked) {
  DeviceResource resource(*faulty_);
  EXPECT_EQ(resource.kind(), MemoryKind::device);
  std::vector<void*> held;
  for (int i = 0; i < 8; ++i) {
    held.push_back(resource.allocate(1000, i % 2 == 0 ? 256 : kMiB));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(held.back()) % (i % 2 == 0 ? 256 : kMiB), 0u);
    EXPECT_EQ(device().kind_of(held.back()), MemoryKind::device);
  }
  for (int i = 0; i < 8; ++i) resource.deallocate(held[i], 1000, i % 2 == 0 ? 256 : kMiB);
  EXPECT_EQ(backend_->live(), testing::LiveHandles{});
}

TEST_P(ResourceTest, BudgetsHaveDefaults) {
  EXPECT_EQ(make_pinned_pool(device()).statistics().budget_bytes, host_topology().memory_bytes / 2);
  const std::size_t budget = make_device_pool(device()).statistics().budget_bytes;
  EXPECT_GT(budget, 0u);
  EXPECT_LE(budget, device().memory().total / 2);
  EXPECT_EQ(make_pinned_pool(device()).kind(), MemoryKind::pinned);
  EXPECT_EQ(make_device_pool(device()).kind(), MemoryKind::device);
  EXPECT_EQ(make_device_pool(device()).device().shared_backend(), device().shared_backend());
}

TEST_P(ResourceTest, PoolsGiveEverythingBack) {
  {
    Pool pinned = make_pinned_pool(*faulty_, {.budget_bytes = 8 * kMiB, .segment_bytes = 4 * kMiB});
    Pool on_device = make_device_pool(*faulty_, {.budget_bytes = 8 * kMiB, .segment_bytes = 4 * kMiB});
    Buffer a = pinned.allocate(5 * kMiB);
    Buffer b = on_device.allocate(5 * kMiB);
    EXPECT_GT(pinned.statistics().upstream_seconds, 0);
    const Stream stream = faulty_->create_stream();
    a.release_after(stream);
    b.release_after(stream);
  }
  EXPECT_EQ(backend_->live(), testing::LiveHandles{});
}

/// Addresses without memory, that counts as pinned.
class NoMemory final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes, std::size_t) override {
    return std::bit_cast<void*>(std::exchange(next_, next_ + bytes));
  }
  void deallocate(void*, std::size_t, std::size_t) noexcept override {}
  [[nodiscard]] MemoryKind kind() const noexcept override { return MemoryKind::pinned; }

 private:
  std::uintptr_t next_ = kGiB;
};

Pool pinned_pool(const std::shared_ptr<MemoryResource>& memory, std::string name) {
  return Pool(Device::open("host"), memory,
              {.budget_bytes = host_topology().memory_bytes, .segment_bytes = kMiB}, std::move(name));
}

Pool pool_of_a_static = make_pinned_pool(Device::open("host"));

TEST(PinnedMemoryTest, APoolMayBeMadeBeforeMain) { EXPECT_EQ(pool_of_a_static.statistics().used_bytes, 0u); }

TEST(PinnedMemoryTest, AllPinnedPoolsOfTheProcessShareALimit) {
  EXPECT_EQ(left_to_pin(20, 100, 100), 30u);
  EXPECT_EQ(left_to_pin(20, 100, 10), 10u);
  EXPECT_EQ(left_to_pin(60, 100, 100), 0u);
  const auto memory = std::make_shared<NoMemory>();
  const std::size_t half = host_topology().memory_bytes / 2;
  const PinnedMemory before = pinned_memory();
  {
    Pool first = pinned_pool(memory, "a first pool");
    Pool second = pinned_pool(memory, "a second pool");
    const Buffer small = first.allocate(kMiB);
    const Buffer large = second.allocate(before.free_bytes / 5 * 3 / kMiB * kMiB);
    EXPECT_EQ(pinned_memory().held_bytes, before.held_bytes + small.size() + large.size());
    try {
      static_cast<void>(second.allocate(half));
      FAIL();
    } catch (const OutOfMemory& error) {
      EXPECT_EQ(error.asked(), half);
      EXPECT_EQ(error.used(), pinned_memory().held_bytes);
      EXPECT_THAT(error.what(), HasSubstr("a first pool has 1 MiB"));
      EXPECT_THAT(error.what(), HasSubstr("a second pool has " + format_bytes(large.size())));
    }
  }
  EXPECT_EQ(pinned_memory().held_bytes, before.held_bytes);
}

TEST(PinnedMemoryTest, WhatOnePoolHoldsForLaterServesAnother) {
  const auto memory = std::make_shared<NoMemory>();
  const auto hooked = std::make_shared<testing::HookedResource>(memory);
  Pool first = pinned_pool(memory, "a first pool");
  Pool second = pinned_pool(hooked, "a second pool");
  const std::size_t idle = pinned_memory().idle_bytes;
  static_cast<void>(first.allocate(2 * kMiB));
  EXPECT_EQ(pinned_memory().idle_bytes, idle + 2 * kMiB);
  hooked->before_allocate = [&](std::size_t bytes) {
    if (first.statistics().reserved_bytes > 0) throw OutOfMemory("the host", bytes, 0, 0);
  };
  EXPECT_EQ(second.allocate(kMiB).size(), kMiB);
}

TEST(HostLimitTest, ALockLimitSendsThePinnedPoolToTheDriver) {
  const Device device = Device::open("host:lock=64KiB");
  Pool pool = make_pinned_pool(device, {.budget_bytes = 8 * kMiB, .segment_bytes = kMiB});
  Buffer buffer = pool.allocate(kMiB);
  EXPECT_EQ(device.kind_of(buffer.data()), MemoryKind::pinned);
  std::memset(buffer.data(), 1, buffer.size());
}

TEST(HostLimitTest, DeviceMemoryThatRunsOutIsTold) {
  const Device device = Device::open("host:memory=1MiB");
  EXPECT_EQ(make_device_pool(device).statistics().budget_bytes, kMiB / 2);
  Pool pool = make_device_pool(device, {.budget_bytes = 8 * kMiB, .segment_bytes = 256 * kKiB});
  Buffer half = pool.allocate(kMiB / 2);
  try {
    static_cast<void>(pool.allocate(kMiB));
    FAIL();
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.asked(), kMiB);
    EXPECT_EQ(error.used(), kMiB / 2);
    EXPECT_EQ(error.free(), kMiB / 2);
  }
  EXPECT_EQ(pool.allocate(kMiB / 2).size(), kMiB / 2);
}

}  // namespace
}  // namespace penstock
