#include "devices.hpp"
#include "mapping.hpp"
#include "support/faulty_backend.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/memory/registration.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <latch>
#include <memory>
#include <optional>
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
using testing::Mapping;

class TemporaryFile {
 public:
  explicit TemporaryFile(std::size_t bytes) {
    std::string path = ::testing::TempDir() + "/penstock-XXXXXX";
    file_ = mkstemp(path.data());
    EXPECT_GE(file_, 0);
    unlink(path.c_str());
    const std::vector<char> data(bytes, 0x6B);
    EXPECT_EQ(write(file_, data.data(), bytes), static_cast<ssize_t>(bytes));
  }
  ~TemporaryFile() { close(file_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  int handle() const { return file_; }

 private:
  int file_ = -1;
};

class RegistrationTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    backend_ = std::make_shared<FaultyBackend>(device().shared_backend());
    faulty_.emplace(backend_);
  }

  void TearDown() override {
    if (backend_ == nullptr) return;
    EXPECT_EQ(backend_->live(), testing::LiveHandles{});
  }

  std::size_t registrations() const { return backend_->live().registrations; }
  MemoryKind kind_of(const void* data) const { return device().kind_of(data); }

  std::shared_ptr<FaultyBackend> backend_;
  std::optional<Device> faulty_;
};

PENSTOCK_DEVICE_SUITE(RegistrationTest);

TEST_P(RegistrationTest, OverlapsAreKnownByThePage) {
  const Mapping memory(4);
  const auto overlaps = [&](std::size_t offset, std::size_t bytes) {
    return Registration::overlaps(device(), memory.page(0) + offset, bytes);
  };
  const auto page = static_cast<std::size_t>(memory.page(1) - memory.page(0));
  EXPECT_FALSE(overlaps(0, 4 * page));
  {
    const Registration registration(device(), memory.page(1), 1);
    EXPECT_TRUE(overlaps(0, 4 * page));
    EXPECT_TRUE(overlaps(page - 1, 2));
    EXPECT_TRUE(overlaps(2 * page - 1, 1)) << "the whole page is locked";
    EXPECT_FALSE(overlaps(0, page));
    EXPECT_FALSE(overlaps(2 * page, 1));
    const auto in_part = [&](std::size_t offset, std::size_t bytes) {
      return Registration::overlaps_in_part(device(), memory.page(0) + offset, bytes);
    };
    EXPECT_TRUE(in_part(page - 1, 2));
    EXPECT_TRUE(in_part(page, page + 1));
    EXPECT_FALSE(in_part(page + 1, page - 1)) << "whole";
    EXPECT_FALSE(in_part(2 * page, 1)) << "not at all";
    const Registration far(device(), memory.page(3), 1);
    EXPECT_TRUE(in_part(page + 5, 2 * page)) << "both ends, and not the middle";
  }
  EXPECT_FALSE(overlaps(0, 4 * page));
}

TEST_P(RegistrationTest, LocksTheWholePagesOfARange) {
  const Mapping memory(4);
  {
    const Registration registration(*faulty_, memory.page(1) + 100, page_bytes());
    EXPECT_EQ(registration.bytes().data(), memory.page(1) + 100);
    EXPECT_EQ(registration.bytes().size(), page_bytes());
    EXPECT_FALSE(registration.read_only());
    EXPECT_EQ(kind_of(memory.page(0)), MemoryKind::pageable);
    EXPECT_EQ(kind_of(memory.page(1)), MemoryKind::pinned);
    EXPECT_EQ(kind_of(memory.page(2) + page_bytes() - 1), MemoryKind::pinned);
    EXPECT_EQ(kind_of(memory.page(3)), MemoryKind::pageable);
    EXPECT_EQ(registration.device_address(),
              static_cast<std::byte*>(device().device_address(memory.page(1))) + 100);
  }
  EXPECT_EQ(kind_of(memory.page(1)), MemoryKind::pageable);
}

TEST_P(RegistrationTest, IsCountedAndNests) {
  const Mapping memory(8);
  std::optional<Registration> outer(std::in_place, *faulty_, memory.page(0), memory.bytes());
  std::optional<Registration> same(std::in_place, *faulty_, memory.page(0), memory.bytes());
  std::optional<Registration> inner(std::in_place, *faulty_, memory.page(3) + 7, 1);
  std::optional<Registration> end(std::in_place, *faulty_, memory.page(7), page_bytes());
  EXPECT_EQ(registrations(), 1u);
  EXPECT_EQ(backend_->calls(Entry::host_register), 1u);
  EXPECT_EQ(inner->device_address(),
            static_cast<const std::byte*>(outer->device_address()) + 3 * page_bytes() + 7);
  outer.reset();
  same.reset();
  end.reset();
  EXPECT_EQ(kind_of(memory.page(7)), MemoryKind::pinned) << "one that lies within keeps all of it";
  EXPECT_EQ(registrations(), 1u);
  inner.reset();
  EXPECT_EQ(registrations(), 0u);
  EXPECT_EQ(kind_of(memory.page(3)), MemoryKind::pageable);
}

TEST_P(RegistrationTest, OtherOverlapsAreRefusedWithAdvice) {
  const Mapping memory(8);
  const Registration middle(*faulty_, memory.page(2) + 10, 2 * page_bytes());  // pages 2 to 4
  struct Range {
    std::size_t first;
    std::size_t pages;
  };
  for (const Range range : {Range{0, 3}, Range{4, 2}, Range{0, 8}, Range{2, 4}, Range{1, 4}}) {
    try {
      const Registration overlapping(*faulty_, memory.page(range.first), range.pages * page_bytes());
      ADD_FAILURE() << range.first;
    } catch (const Unsupported& error) {
      EXPECT_THAT(error.what(), HasSubstr("encloses both"));
    }
  }
  EXPECT_EQ(backend_->calls(Entry::host_register), 1u) << "the driver is not bothered";
  const Registration before(*faulty_, memory.page(0), 2 * page_bytes());
  const Registration after(*faulty_, memory.page(5), 3 * page_bytes());
  EXPECT_EQ(registrations(), 3u);
}

TEST_P(RegistrationTest, TwoFieldsThatShareAPageWorkWithinWhatEnclosesThem) {
  const Mapping memory(4);
  std::byte* const second = memory.page(1) + 500;
  {
    const Registration alone(*faulty_, memory.page(0), static_cast<std::size_t>(second - memory.page(0)));
    std::string why;
    EXPECT_FALSE(Registration::attempt(*faulty_, second, page_bytes(), &why));
    EXPECT_THAT(why, HasSubstr("encloses both"));
  }
  std::optional<Registration> all(std::in_place, *faulty_, memory.page(0), memory.bytes());
  const Registration a(*faulty_, memory.page(0), static_cast<std::size_t>(second - memory.page(0)));
  const Registration b(*faulty_, second, page_bytes());
  all.reset();
  EXPECT_EQ(registrations(), 1u);
}

TEST_P(RegistrationTest, TheDeviceReadsAndWritesIt) {
  const Mapping memory(4);
  const std::size_t bytes = 3 * page_bytes() - 11;
  std::byte* const here = memory.page(0) + 5;
  for (std::size_t i = 0; i < bytes; ++i) here[i] = static_cast<std::byte>(i * 31 >> 3);
  const std::vector<std::byte> expected(here, here + bytes);
  const Registration registration(*faulty_, here, bytes);
  void* const there = device().allocate(bytes);
  const Stream stream = device().create_stream();
  stream.copy(there, here, bytes, CopyDirection::h2d);
  stream.synchronize();
  std::memset(here, 0xEE, bytes);
  stream.copy(here, there, bytes, CopyDirection::d2h);
  stream.synchronize();
  EXPECT_EQ(std::memcmp(here, expected.data(), bytes), 0);
  device().deallocate(there);
}

TEST_P(RegistrationTest, AReadOnlyFileMappingIsRegisteredReadOnlyOrRefusedCleanly) {
  const TemporaryFile file(4 * page_bytes());
  const Mapping memory(4, PROT_READ, file.handle());
  std::string why;
  const auto registration = Registration::attempt(*faulty_, memory.page(0) + 1, 3 * page_bytes(), &why);
  if (!registration && GetParam().name == "Cuda") {
    EXPECT_FALSE(why.empty());
    EXPECT_EQ(kind_of(memory.page(0)), MemoryKind::pageable);
    return;
  }
  ASSERT_TRUE(registration) << why;
  EXPECT_TRUE(registration->read_only());
  void* const there = device().allocate(3 * page_bytes());
  const Stream stream = device().create_stream();
  stream.copy(there, memory.page(0) + 1, 3 * page_bytes(), CopyDirection::h2d);
  stream.synchronize();
  device().deallocate(there);
}

TEST_P(RegistrationTest, OneReadOnlyPageMakesTheRangeReadOnly) {
  const Mapping memory(3);
  std::memset(memory.page(0), 1, memory.bytes());
  ASSERT_EQ(mprotect(memory.page(1), page_bytes(), PROT_READ), 0);
  const auto registration = Registration::attempt(*faulty_, memory.page(0), memory.bytes());
  EXPECT_TRUE(!registration || registration->read_only());
  const Registration writable(*faulty_, memory.page(2) + (registration ? 1 : 0), 1);
  EXPECT_EQ(writable.read_only(), registration.has_value());
}

TEST_P(RegistrationTest, WhatIsNoMemoryIsRefused) {
  const Mapping memory(4);
  EXPECT_THROW(Registration(*faulty_, nullptr, 100), InvalidArgument);
  EXPECT_THROW(Registration(*faulty_, memory.page(0), 0), InvalidArgument);
  EXPECT_THROW(Registration(*faulty_, memory.page(0), ~std::size_t{0}), InvalidArgument);
  EXPECT_THROW(Registration(*faulty_, reinterpret_cast<void*>(~std::uintptr_t{0}), 1), InvalidArgument);
  ASSERT_EQ(mprotect(memory.page(1), page_bytes(), PROT_NONE), 0);
  EXPECT_THROW(Registration(*faulty_, memory.page(0), memory.bytes()), InvalidArgument);
  ASSERT_EQ(munmap(memory.page(1), page_bytes()), 0);
  EXPECT_THROW(Registration(*faulty_, memory.page(1), 10), InvalidArgument);
  EXPECT_THROW(static_cast<void>(Registration::attempt(*faulty_, memory.page(0), memory.bytes())),
               InvalidArgument);
  EXPECT_EQ(backend_->calls(Entry::host_register), 0u);
  const Registration works(*faulty_, memory.page(0), page_bytes());
  EXPECT_EQ(registrations(), 1u);
}

TEST_P(RegistrationTest, AfterARefusalEverythingWorksAsBefore) {
  const Mapping memory(4);
  backend_->fail(Entry::host_register, 1, 2, [] { throw Unsupported("raise ulimit -l"); });
  EXPECT_THROW(Registration(*faulty_, memory.page(0), memory.bytes()), Unsupported);
  std::string why;
  EXPECT_FALSE(Registration::attempt(*faulty_, memory.page(0), memory.bytes(), &why));
  EXPECT_EQ(why, "raise ulimit -l");
  EXPECT_EQ(backend_->calls(Entry::host_unregister), 0u) << "nothing was registered";
  backend_->fail(Entry::device_address);
  EXPECT_THROW(Registration(*faulty_, memory.page(0), memory.bytes()), DeviceError);
  EXPECT_EQ(registrations(), 0u);
  const auto registration = Registration::attempt(*faulty_, memory.page(0), memory.bytes());
  EXPECT_TRUE(registration);
  EXPECT_EQ(registrations(), 1u);
}

TEST_P(RegistrationTest, Moves) {
  const Mapping memory(4);
  Registration a(*faulty_, memory.page(0), page_bytes());
  Registration b(*faulty_, memory.page(2), page_bytes());
  EXPECT_EQ(registrations(), 2u);
  a = std::move(b);
  EXPECT_EQ(registrations(), 1u);
  const Registration c = std::move(a);
  EXPECT_EQ(c.bytes().data(), memory.page(2));
  EXPECT_EQ(registrations(), 1u);
}

TEST_P(RegistrationTest, KeepsTheDeviceOpen) {
  const Mapping memory(1);
  std::optional<Registration> registration(std::in_place, *faulty_, memory.page(0), 1);
  faulty_.reset();
  registration.reset();
  EXPECT_EQ(registrations(), 0u);
}

TEST_P(RegistrationTest, ThreadsMayRegisterTheSameAndOther) {
  const Mapping memory(16);
  std::latch together(4);
  std::vector<std::thread> threads;
  for (std::size_t id = 0; id < 4; ++id) {
    threads.emplace_back([&, id] {
      together.arrive_and_wait();
      for (int round = 0; round < 100; ++round) {
        const Registration own(*faulty_, memory.page(id), page_bytes());
        const Registration shared(*faulty_, memory.page(8), 4 * page_bytes());
        const Registration within(*faulty_, memory.page(8 + id), 100);
        EXPECT_EQ(kind_of(memory.page(8 + id)), MemoryKind::pinned);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(registrations(), 0u);
}

TEST(RegistrationLimitTest, ALockLimitRefusesAndLeavesTheRestToWork) {
  const Device device = Device::open("host:lock=64KiB");
  const Mapping memory(64);
  std::string why;
  EXPECT_FALSE(Registration::attempt(device, memory.page(0), memory.bytes(), &why));
  EXPECT_THAT(why, HasSubstr("ulimit -l"));
  EXPECT_THROW(Registration(device, memory.page(0), memory.bytes()), Unsupported);
  {
    const Registration fits(device, memory.page(0), 64 * kKiB);
    EXPECT_FALSE(Registration::attempt(device, memory.page(32), 1));
  }
  const Registration again(device, memory.page(32), 1);
  EXPECT_EQ(device.kind_of(memory.page(32)), MemoryKind::pinned);
}

}  // namespace
}  // namespace penstock
