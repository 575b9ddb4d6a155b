#include "cuda_fixture.hpp"

#include <penstock/device/fixed_memory.hpp>

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

namespace penstock::testing {

namespace {

class FixedMemoryTest : public CudaTest {
 protected:
  static inline const DeviceOptions kOptions{.driver_library = PENSTOCK_FAKE_DRIVER};
  static constexpr std::size_t kPage = std::size_t{2} << 20;

  Device device = open();
  Stream stream = device.create_stream();

  void write(FixedMemory& memory, int value) {
    std::vector<std::byte> bytes(1000, std::byte(value));
    stream.copy(memory.data(), bytes.data(), bytes.size(), CopyDirection::h2d);
    stream.synchronize();
  }
  [[nodiscard]] int read(const FixedMemory& memory) {
    std::vector<std::byte> bytes(1000);
    stream.copy(bytes.data(), memory.data(), bytes.size(), CopyDirection::d2h);
    stream.synchronize();
    return static_cast<int>(bytes.front());
  }
};

TEST_F(FixedMemoryTest, PagesLeaveAndTheAddressStays) {
  const std::size_t before = fake.device_bytes();
  {
    FixedMemory memory(0, 3 << 20, kOptions);
    EXPECT_EQ(memory.bytes(), 2 * kPage);
    EXPECT_EQ(fake.device_bytes() - before, 2 * kPage);
    write(memory, 7);
    EXPECT_EQ(read(memory), 7);
    const std::byte* const address = memory.data();
    for (int i = 0; i < 2; ++i) {
      memory.drop_pages();
      EXPECT_EQ(fake.device_bytes(), before);
    }
    EXPECT_THROW(write(memory, 7), DeviceError);
    for (int i = 0; i < 2; ++i) {
      memory.take_pages();
      EXPECT_EQ(fake.device_bytes() - before, 2 * kPage);
    }
    EXPECT_EQ(memory.data(), address);
    write(memory, 8);
    EXPECT_EQ(read(memory), 8);
    EXPECT_TRUE(device.owns(memory.data()));
    EXPECT_FALSE(device.is_open_to_peers(memory.data()));
  }
  EXPECT_EQ(fake.device_bytes(), before);
}

TEST_F(FixedMemoryTest, PagesLeaveAfterTheWorkThatUsesThem) {
  FixedMemory memory(0, kPage, kOptions);
  fake.delay_work("cuMemsetD8Async", 20'000'000);
  for (int i = 0; i < 2; ++i) {
    stream.fill(memory.data(), 5, kPage);
    memory.drop_pages();
    EXPECT_NO_THROW(stream.synchronize());
    memory.take_pages();
  }
  std::optional<FixedMemory> other(std::in_place, 0, kPage, kOptions);
  stream.fill(other->data(), 5, kPage);
  other.reset();
  EXPECT_NO_THROW(stream.synchronize());
}

TEST_F(FixedMemoryTest, WithoutRoomThereAreNoPages) {
  FixedMemory memory(0, 4 * kPage, kOptions);
  memory.drop_pages();
  fake.set_memory(fake.device_bytes() + 3 * kPage);
  try {
    memory.take_pages();
    FAIL();
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.asked(), 4 * kPage);
    EXPECT_EQ(error.free(), 3 * kPage);
  }
  EXPECT_THROW(FixedMemory(0, 4 * kPage, kOptions), OutOfMemory);
  fake.reset();
  memory.take_pages();
  write(memory, 7);
}

TEST_F(FixedMemoryTest, AnyCallMayFail) {
  const std::size_t before = fake.device_bytes();
  long met = 0;
  for (long nth = 1;; ++nth) {
    fake.fail_any(nth, 999);
    try {
      FixedMemory memory(0, kPage, kOptions);
      memory.drop_pages();
      memory.take_pages();
    } catch (const DeviceError&) {
      ++met;
    }
    const bool failed = fake.failed() != nullptr;
    fake.reset();
    EXPECT_EQ(fake.device_bytes(), before) << nth;
    if (!failed) break;
  }
  EXPECT_GE(met, 8);
  FixedMemory memory(0, kPage, kOptions);
  for (const char* function : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
    memory.drop_pages();
    fake.fail(function, 1, 999);
    EXPECT_THROW(memory.take_pages(), DeviceError);
    EXPECT_EQ(fake.device_bytes(), before) << function;
    memory.take_pages();
    write(memory, 7);
  }
  fake.fail("cuMemUnmap", 1, 999);
  EXPECT_THROW(memory.drop_pages(), DeviceError);
  EXPECT_EQ(read(memory), 7);
}

}  // namespace

}  // namespace penstock::testing
