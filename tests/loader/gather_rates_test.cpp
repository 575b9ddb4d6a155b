#include "loader/gather_rates.hpp"

#include <penstock/core/error.hpp>

#include <gtest/gtest.h>

#include <vector>

// A profile in, rates out: no device.
namespace penstock {
namespace {

using Curve = LinkProfile::Curve;
using Gather = LinkProfile::Gather;

/// Batches that host threads gather, if a sample of 1000 bytes takes `seconds` and larger ones as much more.
std::vector<LinkProfile::GridPoint> host_gathers(double seconds) {
  return {{1, 1, seconds / 1000},
          {1, 1000, seconds},
          {1'000'000, 1, seconds / 1000},
          {1'000'000, 1'000'000'000, seconds * 1'000'000}};
}

/// A link of 10 GB/s. Samples of 1000 bytes take the host 200 ns, a kernel 125 ns, and the copy engine 500
/// ns.
LinkProfile profile() {
  LinkProfile made;
  made.curves[Curve::pinned_h2d] = {{1000, 2e-6}, {100'000'000, 1e-2}};
  made.host_gathers = host_gathers(200e-9);
  made.gathers[Gather::zero_copy] = {{1000, 125e-9}, {100'000, 10'000e-9}};
  made.gathers[Gather::copy_engine] = {{1000, 500e-9}, {100'000, 10'000e-9}};
  return made;
}

/// The host enqueues a copy in 100 ns.
DeviceTuning tuning() {
  DeviceTuning made;
  made.enqueue_copy_seconds = 100e-9;
  return made;
}

TEST(GatherRates, AreThoseOfTheSlowestPart) {
  LinkProfile measured = profile();
  DeviceTuning tuned = tuning();
  const auto rates = [&](bool in_sequence) { return gather_rates(measured, tuned, 1000, 500, in_sequence); };
  EXPECT_NEAR(rates(false).by_host, 5e9, 1);
  EXPECT_NEAR(rates(false).by_kernels, 8e9, 1);
  EXPECT_NEAR(rates(false).by_copies, 2e9, 1);
  EXPECT_NEAR(rates(true).by_copies, 10e9, 1) << "the link";
  measured.host_gathers = host_gathers(50e-9);
  EXPECT_NEAR(rates(false).by_host, 10e9, 1) << "the link is slower than the host";
  tuned.enqueue_copy_seconds = 1e-6;
  EXPECT_NEAR(rates(false).by_copies, 1e9, 1) << "the thread that enqueues";
}

TEST(GatherRates, OfTheHostAreThoseOfBatchesOfThisSize) {
  LinkProfile measured = profile();
  measured.host_gathers = {{64, 64'000, 64e-6}, {1024, 1'024'000, 256e-6}};
  const auto rate = [&](std::size_t samples) {
    return gather_rates(measured, tuning(), 1000, samples, false).by_host;
  };
  EXPECT_NEAR(rate(64), 1e9, 1);
  EXPECT_NEAR(rate(1024), 4e9, 1);
  EXPECT_NEAR(rate(4096), 4e9, 1) << "as often as needed";
}

TEST(GatherRates, FollowFromCurvesAndTuningIfNoneWasMeasured) {
  LinkProfile curves = profile();
  curves.gathers.clear();
  curves.host_gathers.clear();
  DeviceTuning tuned = tuning();
  tuned.enqueue_copy_seconds = 1e-12;
  tuned.copied_sample_bytes = 1000;
  tuned.host_sample_seconds = 20e-9;
  tuned.link_sample_seconds = 30e-9;
  tuned.small_copy_share = 0.1;
  tuned.small_copy_seconds = 500e-9;
  const auto nanoseconds = [&](double GatherRates::* way, std::size_t bytes) {
    return static_cast<double>(bytes) / (gather_rates(curves, tuned, bytes, 10, false).*way) * 1e9;
  };
  EXPECT_NEAR(nanoseconds(&GatherRates::by_host, 1000), 100, 1e-9);
  EXPECT_NEAR(nanoseconds(&GatherRates::by_host, 10), 20, 1e-9);
  EXPECT_NEAR(nanoseconds(&GatherRates::by_kernels, 1000), 125, 1e-9);
  EXPECT_NEAR(nanoseconds(&GatherRates::by_kernels, 10), 30, 1e-9);
  EXPECT_NEAR(nanoseconds(&GatherRates::by_copies, 1000), 100, 1e-9);
  EXPECT_NEAR(nanoseconds(&GatherRates::by_copies, 999), 999, 1e-9);
  EXPECT_NEAR(nanoseconds(&GatherRates::by_copies, 10), 500, 1e-9);

  curves.curves[Curve::staged_h2d] = {{100'000'000, 2e-2}};
  EXPECT_NEAR(nanoseconds(&GatherRates::by_host, 1000), 200, 1e-9);
  curves.curves.clear();
  tuned.unstated_link_rate = 2e9;
  EXPECT_NEAR(nanoseconds(&GatherRates::by_host, 1000), 500, 1e-9);
  EXPECT_NEAR(nanoseconds(&GatherRates::by_kernels, 1000), 625, 1e-9);
  EXPECT_NEAR(nanoseconds(&GatherRates::by_copies, 1000), 500, 1e-9);
}

TEST(GatherRates, NeedSamples) {
  EXPECT_THROW(static_cast<void>(gather_rates(profile(), tuning(), 1000, 0, false)), InvalidArgument);
}

TEST(GatherRates, CopiesPayIfOthersAreHardlyFaster) {
  EXPECT_TRUE(copies_pay({.by_host = 20, .by_kernels = 12.5, .by_copies = 10}));
  EXPECT_FALSE(copies_pay({.by_host = 20, .by_kernels = 12.6, .by_copies = 10}));
  EXPECT_FALSE(copies_pay({.by_host = 20.1, .by_kernels = 1, .by_copies = 10}));
}

TEST(GatherRates, KernelsPayUnlessTheHostIsTwiceAsFast) {
  EXPECT_TRUE(kernels_pay({.by_host = 20, .by_kernels = 10, .by_copies = 0}));
  EXPECT_FALSE(kernels_pay({.by_host = 20.1, .by_kernels = 10, .by_copies = 0}));
}

}  // namespace
}  // namespace penstock
