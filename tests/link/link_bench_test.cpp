#include "link/link_bench.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace penstock {
namespace {

constexpr std::size_t kBytes = 64 * kKiB;

class LinkBenchTest : public ::testing::Test {
 protected:
  LinkMeasurementOptions options_{
      .max_bytes = kBytes, .quick = true, .repetitions = 5, .seconds = 600, .progress = {}};
  std::vector<std::string> notes_;
  Device device_ = Device::open("host:late=1");
  LinkBench bench_{device_, options_, notes_};
};

TEST_F(LinkBenchTest, HasTheSameBytesEverywhereFromTheStart) {
  // Only the bench's own waits order a separate stream.
  const Stream stream = device_.create_stream();
  stream.copy(bench_.pinned_target(), bench_.device_source(), kBytes, CopyDirection::d2h);
  stream.synchronize();
  EXPECT_NO_THROW(bench_.check_host("the device's source", bench_.pinned_target(), kBytes));
  EXPECT_NO_THROW(bench_.check_host("the pageable source", bench_.pageable_source(), kBytes));
  EXPECT_EQ(bench_.verified_bytes(), 2 * kBytes);
}

TEST_F(LinkBenchTest, NoticesOneWrongByteAnywhere) {
  for (const std::size_t at : {std::size_t{0}, std::size_t{1}, kBytes / 2, kBytes - 1}) {
    std::memcpy(bench_.pageable_target(), bench_.pinned_source(), kBytes);
    bench_.check_host("a copy", bench_.pageable_target(), kBytes);
    bench_.pageable_target()[at] ^= std::byte{1};
    try {
      bench_.check_host("a copy", bench_.pageable_target(), kBytes);
      ADD_FAILURE() << "byte " << at;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("the first at offset " + std::to_string(at) + ":"));
    }
  }
}

TEST_F(LinkBenchTest, ComparesFromAnOffset) {
  std::memcpy(bench_.pageable_target(), bench_.pinned_source() + 100, 1000);
  EXPECT_NO_THROW(bench_.check_host("a part", bench_.pageable_target(), 1000, 100));
  EXPECT_THROW(bench_.check_host("a part", bench_.pageable_target(), 1000, 99), Error);
}

TEST_F(LinkBenchTest, TakesNothingOlderForWhatShouldArrive) {
  bench_.stream().copy(bench_.device_target(), bench_.pinned_source(), kBytes, CopyDirection::h2d);
  EXPECT_NO_THROW(bench_.check_device("a copy", kBytes));
  bench_.poison_device(kBytes);
  EXPECT_THROW(bench_.check_device("no copy", kBytes), Error);
}

TEST_F(LinkBenchTest, RepeatsAfterAWarmUp) {
  std::size_t calls = 0;
  const Summary summary = bench_.repeat(4096, [&] {
    ++calls;
    return static_cast<double>(calls);
  });
  EXPECT_LE(summary.repetitions, 5u);
  EXPECT_GE(summary.repetitions, 3u);
  EXPECT_EQ(summary.repetitions + 20, calls);
  EXPECT_EQ(summary.minimum, 21) << "the warm-up does not count";
}

}  // namespace
}  // namespace penstock
