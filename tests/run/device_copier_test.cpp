#include "run/device_copier.hpp"

#include "fake_driver/fake_cuda_controls.hpp"
#include "support/bytes.hpp"

#include <penstock/device/device.hpp>
#include <penstock/memory/pool.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

namespace penstock::run {
namespace {

constexpr std::size_t kMost = std::size_t{40} << 20;  // more than a lane holds

/// Copies by a copier of the fake driver. The program's stream is one of the test's.
class DeviceCopierTest : public ::testing::Test {
 protected:
  DeviceCopierTest() : fake_(PENSTOCK_FAKE_DRIVER) { EXPECT_TRUE(copier_.opens()); }

  static CopyCall call_of(const run::Run& run, const penstock::Stream& on) {
    return {.runs = {&run, 1}, .stream = on.native()};
  }
  std::optional<Reason> copy(void* to, const void* from, std::size_t bytes, const penstock::Stream& on,
                             bool to_host) {
    const run::Run run{
        .to = reinterpret_cast<Address>(to), .from = reinterpret_cast<Address>(from), .bytes = bytes};
    return copier_.copy(call_of(run, on), {to_host});
  }
  /// Copies random bytes up and down, and compares them. The source changes at once. What follows on the
  /// device stays as it is.
  void copy_both_ways(std::byte* memory, std::size_t bytes, const penstock::Stream& on, unsigned seed) {
    const std::vector<std::byte> sent = testing::random_bytes(bytes, seed);
    std::vector<std::byte> source = sent, got(bytes, std::byte{0xcd});
    const std::size_t more = std::min(kMost - bytes, std::size_t{1} << 20);
    if (more != 0) on.fill(memory + bytes, 0x5a, more);
    ASSERT_EQ(copy(memory, source.data(), bytes, on, false), std::nullopt);
    std::ranges::fill(source, std::byte{0xee});
    ASSERT_EQ(copy(got.data(), memory, bytes, on, true), std::nullopt);
    EXPECT_TRUE(got == sent) << bytes;
    std::vector<std::byte> behind(more);
    if (more != 0) on.copy(behind.data(), memory + bytes, more, CopyDirection::d2h);
    on.synchronize();
    EXPECT_TRUE(testing::is_filled(behind, std::byte{0x5a})) << bytes;
  }

  testing::FakeCuda fake_;
  Device device_ = Device::open("cuda:0", {.driver_library = PENSTOCK_FAKE_DRIVER});
  DeviceCopier copier_{PENSTOCK_FAKE_DRIVER, 0, nullptr};
};

TEST_F(DeviceCopierTest, BringsTheBytesOfAllSizesWhileTheDeviceIsLate) {
  const penstock::Stream stream = device_.create_stream();
  Pool pool = make_device_pool(device_);
  const Buffer memory = pool.allocate(kMost);
  std::mt19937 random(1);
  for (const long long late : {0, 300'000}) {
    for (const char* const name : {"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"}) fake_.delay_work(name, late);
    for (std::size_t bytes : {kSmallestCopy, kMost, kMost - 1, std::size_t{4} << 20}) {
      copy_both_ways(memory.data(), bytes, stream, random());
      bytes = std::uniform_int_distribution(kSmallestCopy, kMost)(random);
      copy_both_ways(memory.data(), bytes, stream, random());
    }
  }
}

TEST_F(DeviceCopierTest, ACopyWaitsForTheSlotsOfThoseBefore) {
  constexpr std::size_t kBytes = std::size_t{3} << 20, kCopies = 13;
  const penstock::Stream stream = device_.create_stream();
  Pool pool = make_device_pool(device_);
  const Buffer memory = pool.allocate(kCopies * kBytes);
  fake_.delay_work("cuMemcpyHtoDAsync", 2'000'000);
  std::vector<std::byte> sent = testing::random_bytes(kCopies * kBytes, 3), got(sent.size());
  for (std::size_t at = 0; at < sent.size(); at += kBytes) {
    ASSERT_EQ(copy(memory.data() + at, sent.data() + at, kBytes, stream, false), std::nullopt);
  }
  ASSERT_EQ(copy(got.data(), memory.data(), sent.size(), stream, true), std::nullopt);
  EXPECT_TRUE(got == sent);
}

TEST_F(DeviceCopierTest, ThreadsCopyOnStreamsOfTheirOwn) {
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < 3; ++number) {
    threads.emplace_back([&, number] {
      const penstock::Stream stream = device_.create_stream();
      Pool pool = make_device_pool(device_);
      const Buffer memory = pool.allocate(kMost);
      for (unsigned turn = 0; turn < 3; ++turn) {
        copy_both_ways(memory.data(), (std::size_t{3} << 20) * (turn + 1) + number, stream,
                       10 * number + turn);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(DeviceCopierTest, AfterAFailureNobodyTouchesTheMemory) {
  const penstock::Stream stream = device_.create_stream();
  Pool pool = make_device_pool(device_);
  const Buffer memory = pool.allocate(kMost);
  for (const bool to_host : {false, true}) {
    DeviceCopier copier(PENSTOCK_FAKE_DRIVER, 0, nullptr);
    ASSERT_TRUE(copier.opens());
    fake_.fail(to_host ? "cuMemcpyDtoHAsync" : "cuMemcpyHtoDAsync", to_host ? 9 : 6, 999);
    {
      std::vector<std::byte> host(kMost);  // freed at once: the sanitizers see who still uses it
      const auto at = reinterpret_cast<Address>(host.data());
      const auto device = reinterpret_cast<Address>(memory.data());
      const run::Run run{to_host ? at : device, to_host ? device : at, kMost};
      EXPECT_EQ(copier.copy(call_of(run, stream), {to_host}), Reason::refused);
    }
    EXPECT_FALSE(copier.opens()) << "it is used again";
    fake_.reset();
  }
}

}  // namespace
}  // namespace penstock::run
