#include "devices.hpp"
#include "support/comes_true.hpp"
#include "support/faulty_backend.hpp"
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

using testing::comes_true;
using testing::DeviceTest;
using testing::Entry;
using testing::FaultyBackend;
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

// A lease of the slot once it is locked, which it is after another lease was let go.
SlotLease locked_lease(SharedSlots& slots, const Device& device, std::size_t slot = 0) {
  std::optional<SlotLease> lease;
  EXPECT_TRUE(comes_true([&] {
    lease.reset();
    if (slots.claim(slot).empty()) return false;
    lease.emplace(slots.take(slot));
    return slots.lock_soon(*lease, device) || !slots.why_not_locked().empty();
  }));
  EXPECT_EQ(slots.why_not_locked(), "");
  return std::move(lease.value());
}

// Asks for a lock, and lets the lease go: it is made now.
void ask_for_lock(SharedSlots& slots, const Device& device, std::size_t slot) {
  static_cast<void>(slots.claim(slot));
  SlotLease lease = slots.take(slot);
  EXPECT_FALSE(slots.lock_soon(lease, device));
}

class SharedSlotsOnDeviceTest : public DeviceTest {};

TEST_P(SharedSlotsOnDeviceTest, ALockedSlotArrives) {
  SharedSlots slots(1, kMost, device().info().numa_node);
  slots.allow(0, 100'000);
  const SlotLease lease = locked_lease(slots, device());
  fill(lease.bytes(), 0x5A);
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
  const std::byte* const data = locked_lease(slots, device()).bytes().data();
  for (int round = 0; round < 3; ++round) {
    static_cast<void>(slots.claim(0));
    SlotLease lease = slots.take(0);
    EXPECT_TRUE(slots.lock_soon(lease, device()));
  }
  EXPECT_FALSE(Registration::overlaps(device(), data + 4096, kMost - 4096));
  slots.allow(0, kMost);
  {
    static_cast<void>(slots.claim(0));
    SlotLease lease = slots.take(0);
    EXPECT_FALSE(slots.lock_soon(lease, device()));
    EXPECT_FALSE(Registration::overlaps(device(), data, kMost)) << "locked in part";
  }
  const SlotLease lease = locked_lease(slots, device());
  EXPECT_TRUE(Registration::overlaps(device(), data + kMost - 1, 1));
}

TEST_P(SharedSlotsOnDeviceTest, NothingIsLockedWhileItsLeaseIsHeld) {
  SharedSlots slots = make_slots(2, 4096);
  static_cast<void>(slots.claim(0));
  std::optional<SlotLease> held = slots.take(0);
  EXPECT_FALSE(slots.lock_soon(*held, device()));
  static_cast<void>(locked_lease(slots, device(), 1));
  EXPECT_FALSE(Registration::overlaps(device(), held->bytes().data(), 4096));
  held.reset();
  static_cast<void>(locked_lease(slots, device()));
}

TEST_P(SharedSlotsOnDeviceTest, TheLockGoesWithTheSlots) {
  const std::byte* data = nullptr;
  {
    SharedSlots slots = make_slots(1, 4096);
    const SlotLease lease = locked_lease(slots, device());
    data = lease.bytes().data();
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
  EXPECT_THROW(static_cast<void>(slots.lock_soon(lease, device)), InvalidArgument);
  SlotLease moved = std::move(lease);
  EXPECT_FALSE(others.lock_soon(moved, device));
}

TEST(SharedSlotsLimitTest, ARefusedLockSaysWhyAndNoOtherIsTried) {
  const auto backend = std::make_shared<FaultyBackend>(Device::open("host:lock=1MiB").shared_backend());
  const Device device(backend);
  SharedSlots slots = make_slots(2, kMost);
  ask_for_lock(slots, device, 0);
  ASSERT_TRUE(comes_true([&] { return !slots.claim(0).empty(); })) << "it is of use without a lock";
  EXPECT_THAT(slots.why_not_locked(), HasSubstr("lock"));
  ask_for_lock(slots, device, 1);
  EXPECT_FALSE(slots.claim(1).empty());
  slots.end_locks();
  EXPECT_EQ(backend->calls(Entry::host_register), 1U);
}

TEST(SharedSlotsLimitTest, ADeviceThatFailsRefusesALock) {
  const auto backend = std::make_shared<FaultyBackend>(Device::open("host").shared_backend());
  backend->fail(Entry::host_register);
  SharedSlots slots = make_slots(1, 10);
  ask_for_lock(slots, Device(backend), 0);
  ASSERT_TRUE(comes_true([&] { return !slots.claim(0).empty(); }));
  EXPECT_NE(slots.why_not_locked(), "");
}

TEST(SharedSlotsLimitTest, ALockedLeaseDoesNotOutliveForks) {
  const Device device = Device::open("host");
  SharedSlots slots = make_slots(2, 10);
  static_cast<void>(locked_lease(slots, device));
  for (const std::size_t slot : {0, 1}) {
    static_cast<void>(slots.claim(slot));
    SlotLease lease = slots.take(slot, true);
    EXPECT_EQ(slots.lock_soon(lease, device), slot == 0);
    EXPECT_TRUE(succeeds_in_child([] { return true; }));
  }
  EXPECT_FALSE(slots.claim(0).empty());
  EXPECT_EQ(slots.retired(), 1U);
}

/// A device that locks nothing before it is let. Its members are used by one test each.
class SlowLockTest : public ::testing::Test {
 protected:
  void SetUp() override {
    backend_->before(Entry::host_register, [this] { may_lock_.wait(false); });
  }
  void TearDown() override { let(); }

  void let() {
    may_lock_ = true;
    may_lock_.notify_all();
  }
  [[nodiscard]] bool locks(std::size_t count) const {
    return comes_true([&] { return backend_->calls(Entry::host_register) == count; });
  }

  std::atomic<bool> may_lock_ = false;
  const std::shared_ptr<FaultyBackend> backend_ =
      std::make_shared<FaultyBackend>(Device::open("host").shared_backend());
  const Device device_{backend_};
  static constexpr std::size_t kSlots = 5000;
  SharedSlots slots_ = make_slots(kSlots, 10);
};

TEST_F(SlowLockTest, ASlotThatIsBeingLockedIsOutOfUseAndTheOthersAreNot) {
  ask_for_lock(slots_, device_, 0);
  ASSERT_TRUE(locks(1));
  EXPECT_TRUE(slots_.claim(0).empty());
  slots_.reclaim();
  EXPECT_TRUE(slots_.claim(0).empty());
  ask_for_lock(slots_, device_, 1);
  fill(slots_.claim(2), 7);
  EXPECT_TRUE(holds(slots_.take(2).bytes(), 7));
  let();
  static_cast<void>(locked_lease(slots_, device_, 0));
  static_cast<void>(locked_lease(slots_, device_, 1));
}

TEST_F(SlowLockTest, SlotsThatWaitWhenLocksEndAreFree) {
  ask_for_lock(slots_, device_, 0);
  ASSERT_TRUE(locks(1));
  ask_for_lock(slots_, device_, 1);
  EXPECT_TRUE(slots_.claim(1).empty());
  std::thread ending([&] { slots_.end_locks(); });
  std::size_t asked = 2;
  EXPECT_TRUE(comes_true([&] {
    ask_for_lock(slots_, device_, asked);
    return !slots_.claim(asked++).empty() || asked == kSlots;
  }));
  ASSERT_LT(asked, kSlots) << "nothing waits once locks end";
  let();
  ending.join();
  for (std::size_t slot = 0; slot + 1 < asked; ++slot) EXPECT_FALSE(slots_.claim(slot).empty());
  EXPECT_EQ(backend_->calls(Entry::host_register), 1U);
}

TEST_F(SlowLockTest, AForkedProcessDropsSlotsThatAreBeingLocked) {
  ask_for_lock(slots_, device_, 0);
  ASSERT_TRUE(locks(1));
  EXPECT_TRUE(succeeds_in_child([&] {
    const SharedSlots gone = std::move(slots_);
    return true;
  }));
  let();
  static_cast<void>(locked_lease(slots_, device_));
}

}  // namespace
}  // namespace penstock
