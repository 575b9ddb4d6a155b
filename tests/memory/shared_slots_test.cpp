#include "devices.hpp"
#include "support/fork.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/fork.hpp>
#include <penstock/memory/registration.hpp>
#include <penstock/memory/shared_slots.hpp>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using testing::DeviceTest;
using ::testing::HasSubstr;
using testing::succeeds_in_child;

constexpr std::size_t kMost = std::size_t{3} << 20;

void fill(std::span<std::byte> bytes, int value) { std::memset(bytes.data(), value, bytes.size()); }

bool holds(std::span<const std::byte> bytes, int value) {
  return std::all_of(bytes.begin(), bytes.end(), [&](std::byte byte) { return byte == std::byte(value); });
}

// All slots have room for `bytes`.
SharedSlots make_slots(std::size_t count, std::size_t bytes) {
  SharedSlots slots(count, kMost);
  for (std::size_t slot = 0; slot < count; ++slot) slots.allow(slot, bytes);
  return slots;
}

TEST(SharedSlotsTest, AChildFillsWhatTheParentReads) {
  SharedSlots slots = make_slots(2, 100'000);
  EXPECT_TRUE(succeeds_in_child([&] {
    fill(slots.claim(0), 1);
    fill(slots.claim(1), 2);
    return true;
  }));
  const SlotLease second = slots.take(1);
  const SlotLease first = slots.take(0);
  EXPECT_EQ(first.bytes().size(), 100'000U);
  EXPECT_TRUE(holds(first.bytes(), 1));
  EXPECT_TRUE(holds(second.bytes(), 2));
}

TEST(SharedSlotsTest, AProcessThatAttachesFillsThem) {
  SharedSlots slots = make_slots(3, 5000);
  EXPECT_TRUE(succeeds_in_child([&] {
    SharedSlots theirs = SharedSlots::attach(slots.file(), 3, kMost);
    fill(theirs.claim(2), 9);
    return theirs.slots() == 3 && theirs.most_bytes() == kMost;
  }));
  EXPECT_TRUE(holds(slots.take(2).bytes(), 9));
}

TEST(SharedSlotsTest, NothingIsClaimedUntilItIsAllowed) {
  SharedSlots slots(2, kMost);
  EXPECT_TRUE(slots.claim(0).empty());
  EXPECT_THROW(static_cast<void>(slots.take(0)), InvalidArgument);
  slots.allow(0, 10);
  EXPECT_EQ(slots.allowed(0), 10U);
  EXPECT_EQ(slots.claim(0).size(), 10U);
  EXPECT_TRUE(slots.claim(1).empty());
}

TEST(SharedSlotsTest, ASlotIsClaimedOnceUntilItsLeaseIsGone) {
  SharedSlots slots = make_slots(1, 10);
  ASSERT_FALSE(slots.claim(0).empty());
  EXPECT_TRUE(slots.claim(0).empty());
  {
    const SlotLease lease = slots.take(0);
    EXPECT_EQ(lease.slot(), 0U);
    EXPECT_TRUE(slots.claim(0).empty());
    EXPECT_THROW(static_cast<void>(slots.take(0)), InvalidArgument);
  }
  EXPECT_THROW(static_cast<void>(slots.take(0)), InvalidArgument);
  EXPECT_FALSE(slots.claim(0).empty());
}

TEST(SharedSlotsTest, AMovedLeaseIsOneLease) {
  SharedSlots slots = make_slots(2, 10);
  static_cast<void>(slots.claim(0));
  static_cast<void>(slots.claim(1));
  std::optional<SlotLease> moved;
  {
    SlotLease first = slots.take(0);
    moved.emplace(std::move(first));
  }
  EXPECT_TRUE(slots.claim(0).empty());
  *moved = slots.take(1);  // frees the first
  EXPECT_FALSE(slots.claim(0).empty());
  EXPECT_TRUE(slots.claim(1).empty());
  moved.reset();
  EXPECT_FALSE(slots.claim(1).empty());
}

TEST(SharedSlotsTest, WhatAWriterGivesUpIsFree) {
  SharedSlots slots = make_slots(1, 10);
  static_cast<void>(slots.claim(0));
  slots.give_up(0);
  EXPECT_THROW(static_cast<void>(slots.take(0)), InvalidArgument);
  EXPECT_FALSE(slots.claim(0).empty());
}

TEST(SharedSlotsTest, AKilledWritersSlotIsReclaimedAndATakenOneIsNot) {
  SharedSlots slots = make_slots(3, 10);
  fill(slots.claim(0), 7);
  const SlotLease lease = slots.take(0);
  EXPECT_FALSE(succeeds_in_child([&] {
    static_cast<void>(slots.claim(1));
    return kill(getpid(), SIGKILL) == 0;
  }));
  EXPECT_TRUE(slots.claim(1).empty());
  slots.reclaim();
  EXPECT_TRUE(slots.claim(0).empty());
  EXPECT_TRUE(holds(lease.bytes(), 7));
  EXPECT_FALSE(slots.claim(1).empty());
  EXPECT_FALSE(slots.claim(2).empty());
}

TEST(SharedSlotsTest, AForkedProcessFreesNoSlot) {
  SharedSlots slots = make_slots(1, 10);
  static_cast<void>(slots.claim(0));
  std::optional<SlotLease> lease = slots.take(0);
  EXPECT_TRUE(succeeds_in_child([&] {
    lease.reset();
    return slots.claim(0).empty();
  }));
  EXPECT_TRUE(slots.claim(0).empty());
  lease.reset();
  EXPECT_FALSE(slots.claim(0).empty());
}

// The bytes that the file of these slots has of the memory.
std::size_t memory_of(int file) {
  struct stat facts{};
  EXPECT_EQ(fstat(file, &facts), 0);
  return static_cast<std::size_t>(facts.st_blocks) * 512;
}

TEST(SharedSlotsTest, MemoryIsFreedWithTheSlotsExceptWhatIsLeased) {
  auto slots = std::make_unique<SharedSlots>(make_slots(3, kMost));
  const int file = dup(slots->file());  // as another process has it
  for (std::size_t slot = 0; slot < 3; ++slot) fill(slots->claim(slot), 1);
  std::optional<SlotLease> lease = slots->take(1);
  EXPECT_GE(memory_of(file), 3 * kMost);
  slots.reset();
  EXPECT_LT(memory_of(file), kMost + (1 << 20));
  EXPECT_TRUE(holds(lease->bytes(), 1));
  lease.reset();
  EXPECT_LT(memory_of(file), 1 << 20);
  close(file);
}

TEST(SharedSlotsTest, WhoeverAttachedOrWasForkedFreesNoMemory) {
  SharedSlots slots = make_slots(1, kMost);
  fill(slots.claim(0), 4);
  EXPECT_TRUE(succeeds_in_child([&] {
    static_cast<void>(SharedSlots::attach(slots.file(), 1, kMost));
    const SharedSlots gone = std::move(slots);
    return true;
  }));
  {
    const SharedSlots theirs = SharedSlots::attach(slots.file(), 1, kMost);
  }
  EXPECT_TRUE(holds(slots.take(0).bytes(), 4));
}

TEST(SharedSlotsTest, AForkWhileALeaseIsHeldRetiresItsSlot) {
  SharedSlots slots = make_slots(3, 10);
  for (std::size_t slot = 0; slot < 3; ++slot) static_cast<void>(slots.claim(slot));
  std::optional<SlotLease> kept = slots.take(0, true);
  std::optional<SlotLease> other = slots.take(1);
  EXPECT_TRUE(succeeds_in_child([] { return true; }));
  std::optional<SlotLease> later = slots.take(2, true);
  kept.reset();
  other.reset();
  later.reset();
  EXPECT_EQ(slots.retired(), 1U);
  slots.reclaim();
  EXPECT_TRUE(slots.claim(0).empty());
  EXPECT_FALSE(slots.claim(1).empty());
  EXPECT_FALSE(slots.claim(2).empty());
}

TEST(SharedSlotsTest, ASlotIsLentToWorkersThatAreForked) {
  SharedSlots slots = make_slots(2, 10);
  static_cast<void>(slots.claim(0));
  static_cast<void>(slots.claim(1));
  {
    const SlotLease first = slots.take(0, true);
    const SlotLease second = slots.take(1, true);
    EXPECT_FALSE(forks_are_workers(true));
    EXPECT_TRUE(succeeds_in_child([] { return true; }));
    EXPECT_TRUE(forks_are_workers(false));
  }
  EXPECT_EQ(slots.retired(), 0U);
  slots.reclaim();
  EXPECT_TRUE(slots.claim(0).empty());
  slots.return_lent();
  EXPECT_FALSE(slots.claim(0).empty());
  EXPECT_FALSE(slots.claim(1).empty());
}

TEST(SharedSlotsTest, WhatAnotherChildMayReadIsNotLent) {
  SharedSlots slots = make_slots(1, 10);
  static_cast<void>(slots.claim(0));
  {
    const SlotLease lease = slots.take(0, true);
    EXPECT_TRUE(succeeds_in_child([] { return true; }));
    forks_are_workers(true);
    EXPECT_TRUE(succeeds_in_child([] { return true; }));
    forks_are_workers(false);
  }
  EXPECT_EQ(slots.retired(), 1U);
  slots.return_lent();
  EXPECT_TRUE(slots.claim(0).empty());
}

TEST(SharedSlotsTest, RoomGrowsAndALeaseCoversAllThatWasAllowed) {
  SharedSlots slots = make_slots(1, 10);
  EXPECT_EQ(slots.claim(0).size(), 10U);
  slots.allow(0, 1000);
  slots.allow(0, 0);
  EXPECT_EQ(slots.allowed(0), 0U);
  {
    const SlotLease lease = slots.take(0);
    EXPECT_EQ(lease.bytes().size(), 1000U);
  }
  EXPECT_TRUE(slots.claim(0).empty());
  slots.allow(0, kMost);
  EXPECT_EQ(slots.claim(0).size(), kMost);
  EXPECT_THROW(slots.allow(0, kMost + 1), InvalidArgument);
}

TEST(SharedSlotsTest, ALeaseOutlivesTheSlots) {
  auto slots = std::make_unique<SharedSlots>(make_slots(1, 4096));
  fill(slots->claim(0), 3);
  const SlotLease lease = slots->take(0);
  slots.reset();
  EXPECT_TRUE(holds(lease.bytes(), 3));
}

TEST(SharedSlotsTest, SlotsLieApart) {
  SharedSlots slots = make_slots(4, kMost);
  for (std::size_t slot = 0; slot < 4; ++slot) fill(slots.claim(slot), static_cast<int>(slot) + 1);
  for (std::size_t slot = 0; slot < 4; ++slot) {
    const SlotLease lease = slots.take(slot);
    EXPECT_TRUE(holds(lease.bytes(), static_cast<int>(slot) + 1));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(lease.bytes().data()) % 4096, 0U);
  }
}

TEST(SharedSlotsTest, MemoryIsTakenWhenItIsWritten) {
  // Far more addresses than memory.
  SharedSlots slots(64, std::size_t{8} << 30);
  slots.allow(63, std::size_t{8} << 30);
  fill(slots.claim(63).first(10'000), 5);
  EXPECT_TRUE(holds(slots.take(63).bytes().first(10'000), 5));
  EXPECT_LT(memory_of(slots.file()), 64 << 20);
}

TEST(SharedSlotsTest, TheFileIsClosedWithTheLastOfThem) {
  int file = -1;
  {
    SharedSlots slots = make_slots(1, 10);
    file = slots.file();
    static_cast<void>(slots.claim(0));
    const SlotLease lease = slots.take(0);
    EXPECT_NE(fcntl(file, F_GETFD) & FD_CLOEXEC, 0);
  }
  EXPECT_EQ(fcntl(file, F_GETFD), -1);
}

TEST(SharedSlotsTest, WhatCannotBeIsRefused) {
  constexpr std::size_t kHuge = std::numeric_limits<std::size_t>::max();
  EXPECT_THROW(SharedSlots(0, 1), InvalidArgument);
  EXPECT_THROW(SharedSlots(1, 0), InvalidArgument);
  EXPECT_THROW(SharedSlots(kHuge, 1), InvalidArgument);
  EXPECT_THROW(SharedSlots(1, kHuge), InvalidArgument);
  EXPECT_THROW(SharedSlots(1 << 20, kHuge / 8), InvalidArgument);
  SharedSlots slots = make_slots(2, 10);
  EXPECT_TRUE(slots.claim(2).empty());
  EXPECT_THROW(static_cast<void>(slots.take(2)), InvalidArgument);
  EXPECT_THROW(slots.allow(2, 1), InvalidArgument);
  EXPECT_THROW(static_cast<void>(slots.allowed(2)), InvalidArgument);
  slots.give_up(2);
  EXPECT_THROW(static_cast<void>(SharedSlots::attach(slots.file(), 3, kMost)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(SharedSlots::attach(-1, 2, kMost)), InvalidArgument);
}

TEST(SharedSlotsTest, ALimitOfFileSizesIsAnError) {
  EXPECT_TRUE(succeeds_in_child([] {
    const rlimit limit{1 << 20, 1 << 20};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return false;
    try {
      SharedSlots slots(4, kMost);
    } catch (const Unsupported& error) {
      return std::string(error.what()).find("ulimit -f") != std::string::npos;
    }
    return false;
  }));
}

TEST(SharedSlotsTest, ALimitOfAddressesIsAnError) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer needs its own addresses";
#endif
  EXPECT_TRUE(succeeds_in_child([] {
    const rlimit limit{rlim_t{1} << 36, rlim_t{1} << 36};
    if (setrlimit(RLIMIT_AS, &limit) != 0) return false;
    try {
      SharedSlots slots(64, std::size_t{8} << 30);
    } catch (const Unsupported&) {
      return true;
    }
    return false;
  }));
}

TEST(SharedSlotsTest, AWriterAndAReaderNeverMeetInASlot) {
  SharedSlots slots = make_slots(2, 4096);
  constexpr int kRounds = 4000;
  std::atomic<int> filled[2] = {-1, -1};
  std::thread writer([&] {
    for (int round = 0; round < kRounds;) {
      for (std::size_t slot = 0; slot < 2 && round < kRounds; ++slot) {
        const std::span<std::byte> bytes = slots.claim(slot);
        if (bytes.empty()) continue;
        fill(bytes, round % 251);
        filled[slot].store(round++, std::memory_order_release);
      }
      std::this_thread::yield();
    }
  });
  int seen = 0;
  while (seen < kRounds) {
    for (std::size_t slot = 0; slot < 2; ++slot) {
      const int round = filled[slot].exchange(-1, std::memory_order_acquire);
      if (round < 0) continue;
      const SlotLease lease = slots.take(slot);
      EXPECT_TRUE(holds(lease.bytes(), round % 251));
      ++seen;
    }
    std::this_thread::yield();
  }
  writer.join();
}

class SharedSlotsOnDeviceTest : public DeviceTest {};

TEST_P(SharedSlotsOnDeviceTest, ALockedSlotArrives) {
  SharedSlots slots(1, kMost, device().info().numa_node);
  slots.allow(0, 100'000);
  fill(slots.claim(0), 0x5A);
  const SlotLease lease = slots.take(0);
  std::string why;
  ASSERT_TRUE(slots.lock(lease, device(), true, &why)) << why;
  EXPECT_TRUE(Registration::overlaps(device(), lease.bytes().data(), 100'000));
  const Stream stream = device().create_stream();
  auto* const there = static_cast<std::byte*>(device().allocate(100'000));
  std::vector<std::byte> back(100'000);
  stream.copy(there, lease.bytes().data(), back.size(), CopyDirection::h2d);
  stream.copy(back.data(), there, back.size(), CopyDirection::d2h);
  stream.synchronize();
  device().deallocate(there);
  EXPECT_TRUE(holds(back, 0x5A));
}

TEST_P(SharedSlotsOnDeviceTest, ALockIsKeptAndGrowsWithTheRoom) {
  SharedSlots slots(1, kMost);
  slots.allow(0, 4096);
  const std::byte* data = nullptr;
  for (int round = 0; round < 3; ++round) {
    static_cast<void>(slots.claim(0));
    const SlotLease lease = slots.take(0);
    data = lease.bytes().data();
    EXPECT_TRUE(slots.lock(lease, device()));
  }
  EXPECT_FALSE(Registration::overlaps(device(), data + 4096, kMost - 4096));
  slots.allow(0, kMost);
  static_cast<void>(slots.claim(0));
  const SlotLease lease = slots.take(0);
  EXPECT_TRUE(slots.lock(lease, device()));
  EXPECT_TRUE(Registration::overlaps(device(), data + kMost - 1, 1));
}

TEST_P(SharedSlotsOnDeviceTest, ALockIsNotMadeAnewUnlessAsked) {
  SharedSlots slots(2, kMost);
  slots.allow(0, 4096);
  slots.allow(1, 4096);
  static_cast<void>(slots.claim(0));
  static_cast<void>(slots.claim(1));
  const SlotLease second = slots.take(1);
  EXPECT_FALSE(slots.lock(second, device(), false));
  {
    const SlotLease first = slots.take(0);
    EXPECT_TRUE(slots.lock(first, device()));
    EXPECT_TRUE(slots.lock(first, device(), false));
  }
  slots.allow(0, 8192);
  static_cast<void>(slots.claim(0));
  const SlotLease first = slots.take(0);
  EXPECT_FALSE(slots.lock(first, device(), false));
  EXPECT_FALSE(Registration::overlaps(device(), first.bytes().data(), 8192)) << "locked in part";
}

TEST_P(SharedSlotsOnDeviceTest, TheLockGoesWithTheSlots) {
  const std::byte* data = nullptr;
  {
    SharedSlots slots = make_slots(1, 4096);
    static_cast<void>(slots.claim(0));
    const SlotLease lease = slots.take(0);
    data = lease.bytes().data();
    EXPECT_TRUE(slots.lock(lease, device()));
  }
  EXPECT_FALSE(Registration::overlaps(device(), data, 4096));
}

PENSTOCK_DEVICE_SUITE(SharedSlotsOnDeviceTest);

TEST(SharedSlotsLimitTest, ALeaseOfOthersIsNotLocked) {
  const Device device = Device::open("host");
  SharedSlots slots = make_slots(1, 10);
  SharedSlots others = make_slots(1, 10);
  static_cast<void>(others.claim(0));
  SlotLease lease = others.take(0);
  EXPECT_THROW(static_cast<void>(slots.lock(lease, device)), InvalidArgument);
  const SlotLease moved = std::move(lease);
  EXPECT_TRUE(others.lock(moved, device));
}

TEST(SharedSlotsLimitTest, ARefusedLockSaysWhy) {
  const Device device = Device::open("host:lock=1MiB");
  SharedSlots slots = make_slots(1, kMost);
  static_cast<void>(slots.claim(0));
  const SlotLease lease = slots.take(0);
  std::string why;
  EXPECT_FALSE(slots.lock(lease, device, true, &why));
  EXPECT_THAT(why, HasSubstr("lock"));
  EXPECT_FALSE(Registration::overlaps(device, lease.bytes().data(), kMost));
}

}  // namespace
}  // namespace penstock
