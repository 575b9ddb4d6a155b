#include "loader/faulty_fixture.hpp"
#include "support/gate.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

/// The account of a feed whose figures are known.
namespace penstock::testing {
namespace {

class LoaderAccount : public FaultyLoaderTest {
 protected:
  const Dataset dataset_{
      {random_field("x", DType::uint8, {100}, 90, 1), random_field("y", DType::float32, {}, 90, 2)}};
};
PENSTOCK_DEVICE_SUITE(LoaderAccount);

TEST_P(LoaderAccount, CountsSamplesBatchesAndBytes) {
  for (const Way& way : kWays) {
    SCOPED_TRACE(::testing::PrintToString(way));
    const Residency residency = Residency::parse(way.residency);
    Loader loader(dataset_, *device_,
                  {.batch_size = 16,
                   .shuffle = true,
                   .residency = residency,
                   .gather = way.gather,
                   .fields = {{.name = "x", .to = DType::float32}},
                   .threads = 1});
    EXPECT_EQ(loader.stats().limited_by(), FeedLimit::unknown);
    for (int epoch = 0; epoch < 3; ++epoch) {
      while (const auto batch = loader.next(*stream_)) static_cast<void>(read(*batch));
    }
    static_cast<void>(loader.next(*stream_));
    stream_->synchronize();
    const std::uint64_t resident = residency.kind == Residency::Kind::all    ? 90
                                   : residency.kind == Residency::Kind::none ? 0
                                                                             : 45;
    const auto expect = [&](const FeedStatistics& s, std::uint64_t epochs, std::uint64_t extra) {
      EXPECT_EQ(s.epochs, epochs + (extra > 0 ? 1 : 0));
      EXPECT_EQ(s.batches, 6 * epochs + extra);
      EXPECT_EQ(s.samples, 90 * epochs + 16 * extra);
      EXPECT_EQ(s.delivered_bytes, s.samples * 404);
      EXPECT_EQ(s.resident_bytes, resident * 104);
      EXPECT_EQ(s.sample_bytes, 104U);
      EXPECT_EQ(s.prefetch_depth, 2U);
      EXPECT_GE(s.slots, 3U);
      EXPECT_EQ(s.timed_batches, s.batches);
      if (extra == 0) {
        EXPECT_EQ(s.link_bytes, (90 - resident) * 104 * epochs);
      }
      EXPECT_LE(s.mean_ready, 2.0);
      EXPECT_GT(s.seconds, 0);
      // The consumer's stream does one thing after the other.
      EXPECT_LE(s.stall_seconds + s.compute_seconds, s.seconds * 1.01 + 1e-3);
      EXPECT_LE(s.exposed_transfer_seconds + s.exposed_kernel_seconds + s.exposed_gather_seconds,
                s.stall_seconds + 1e-9);
      EXPECT_TRUE(s.exposed_transfer_seconds == 0 || resident < 90);
      EXPECT_TRUE(s.exposed_kernel_seconds == 0 || resident == 90);
      EXPECT_EQ(s.transfer_seconds > 0, resident < 90);
      EXPECT_EQ(s.kernel_seconds > 0, resident == 90);
    };
    const FeedStatistics total = loader.stats();
    expect(total, 3, 1);
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) expect(loader.epoch_stats(epoch).value(), 1, 0);
    EXPECT_EQ(loader.epoch_stats(0)->resident_seconds, total.resident_seconds);
    EXPECT_EQ(loader.epoch_stats(1)->resident_seconds, 0) << "it was moved once";
    EXPECT_EQ(total.resident_seconds > 0, resident > 0);
    EXPECT_EQ(loader.epoch_stats(3)->batches, 1U);
    EXPECT_FALSE(loader.epoch_stats(4).has_value());
    loader.close();
    EXPECT_EQ(loader.stats().batches, total.batches);
  }
}

TEST_P(LoaderAccount, NothingIsFasterThanTheLink) {
  LinkProfile profile = LinkProfile::defaults(device_->info());
  profile.measured = true;
  for (auto& point : profile.curves[LinkProfile::Curve::pinned_h2d]) {
    point.seconds = static_cast<double>(point.bytes) / 1e3;
  }
  Loader loader(dataset_, *device_, {.batch_size = 16, .shuffle = true, .profile = profile});
  while (const auto batch = loader.next(*stream_)) static_cast<void>(read(*batch));
  static_cast<void>(loader.next(*stream_));
  stream_->synchronize();
  const FeedStatistics s = loader.stats();
  ASSERT_GT(s.timed_batches, 0U);
  const double timed = static_cast<double>(s.timed_batches) / static_cast<double>(s.batches);
  EXPECT_NEAR(s.link_ceiling, 1e3, 1);
  EXPECT_NEAR(s.transfer_seconds, timed * static_cast<double>(s.link_bytes) / 1e3, 1e-3);
}

TEST_P(LoaderAccount, TheTimelineHoldsTheLatestBatchesInTheirOrder) {
  for (const Way& way : kWays) {
    for (const std::size_t kept : {0U, 4U, 100U}) {
      Loader loader(dataset_, *device_,
                    {.batch_size = 8,
                     .residency = Residency::parse(way.residency),
                     .gather = way.gather,
                     .threads = 1,
                     .timeline_batches = kept});
      for (int epoch = 0; epoch < 2; ++epoch) read_epoch(loader);
      const auto timeline = loader.timeline();
      ASSERT_EQ(timeline.size(), std::min<std::size_t>(kept, 24));
      for (std::size_t i = 0; i < timeline.size(); ++i) {
        const BatchTimes& times = timeline[i];
        const std::size_t number = 24 - timeline.size() + i;
        EXPECT_EQ(times.epoch, number / 12);
        EXPECT_EQ(times.batch, number % 12);
        EXPECT_EQ(times.samples, number % 12 == 11 ? 2U : 8U);
        EXPECT_LE(times.gather_begin, times.gather_end);
        EXPECT_LE(times.transfer_begin, times.transfer_end);
        EXPECT_LE(times.asked, times.arrived);
        EXPECT_LE(times.transfer_end, times.arrived + 1e-4) << "it arrived after its transfer";
        EXPECT_LE(timeline[i - (i > 0 ? 1 : 0)].asked, times.asked + 1e-4);
      }
    }
  }
}

TEST_P(LoaderAccount, BatchesAreTimedAfterAnyNumberOfRestarts) {
  std::atomic<int> third_batches{0};
  const Dataset dataset(
      {read_callback(dataset_.field(0), 90, [&](std::uint64_t index, std::span<std::byte> out) {
        third_batches += index == 16 ? 1 : 0;
        dataset_.gather(0, std::span(&index, 1), out);
        return out.size();
      })});
  Loader loader(dataset, *device_, {.batch_size = 8, .threads = 1});
  for (int i = 0; i < 150; ++i) {
    static_cast<void>(loader.next(*stream_));
    while (third_batches <= i) std::this_thread::yield();
    loader.start_epoch(0);  // drops the second, at least
  }
  read_epoch(loader);
  stream_->synchronize();
  EXPECT_EQ(loader.stats().timed_batches, 150U + 12);
  EXPECT_EQ(loader.stats().slots, 3U);
}

TEST_P(LoaderAccount, AFailedClockLosesNoBatchAndIsSaid) {
  Loader loader(dataset_, *faulty_device_, {.batch_size = 8, .threads = 1});
  std::vector<std::uint64_t> taken;
  for (std::size_t nth = 1; taken.size() < 90; ++nth) {
    faulty_->fail(Entry::event_elapsed, 1 + nth % 7);
    try {
      const auto batch = loader.next(*stream_);
      const auto host = read(*batch);
      taken.insert(taken.end(), host.indices.begin(), host.indices.end());
    } catch (const DeviceError&) {
    }
  }
  faulty_->heal();
  EXPECT_EQ(taken, numbers(90));
  stream_->synchronize();
  const FeedStatistics statistics = loader.stats();
  EXPECT_EQ(statistics.batches, 12U);
  EXPECT_LE(statistics.timed_batches, 12U);
  EXPECT_LE(loader.timeline().size(), 12U);
  EXPECT_EQ(read_epoch(loader).size(), 0U);
  EXPECT_EQ(read_epoch(loader).size(), 12U);
}

TEST_P(LoaderAccount, BatchesGoUntimedWhereTheDeviceLags) {
  const Dataset dataset({random_field("x", DType::uint8, {16}, 150, 3)});
  GatedStream gated(*device_);
  Loader loader(dataset, *device_, {.prefetch_depth = 64, .threads = 1});
  for (int i = 0; i < 130; ++i) static_cast<void>(loader.next(gated.stream()));  // two more than records
  gated.open();
  gated.stream().synchronize();
  EXPECT_EQ(read_epoch(loader).size(), 20U);
  for (int epoch = 0; epoch < 2; ++epoch) EXPECT_EQ(read_epoch(loader).size(), 150U);
  EXPECT_LT(loader.epoch_stats(0)->timed_batches, 150U);
  EXPECT_GE(loader.epoch_stats(0)->timed_batches, 128U);
  EXPECT_EQ(loader.epoch_stats(2)->timed_batches, 150U);
}

TEST_P(LoaderAccount, AllBatchesAreTimedOfAProgramThatRunsAheadOfItsDevice) {
  for (const Way& way : kWays) {
    SCOPED_TRACE(::testing::PrintToString(way));
    Loader loader(dataset_, *device_,
                  {.residency = Residency::parse(way.residency), .gather = way.gather, .threads = 1});
    for (int epoch = 0; epoch < 3; ++epoch) {
      while (loader.next(*stream_)) stream_->occupy(0.0003);
    }
    stream_->synchronize();
    EXPECT_EQ(loader.stats().timed_batches, 3 * 90U);
  }
}

/// A link of known speed. All batches are asked for before the first crosses it, or cross it before the
/// consumer comes to the first, so that threads of the host have no part in the times. Margins are wide: the
/// tests check which of two figures is many times the other.
class LoaderLink : public ::testing::Test {
 protected:
  static constexpr std::size_t kBytes = 64 << 10;
  static constexpr std::size_t kBatches = 20;
  const Dataset dataset_{{random_field("x", DType::uint8, {kBytes / 8}, 8 * kBatches, 1)}};

  static LoaderOptions all_ahead(GatherPath gather = GatherPath::automatic) {
    return {.batch_size = 8, .prefetch_depth = kBatches, .gather = gather, .threads = 1};
  }
};

TEST_F(LoaderLink, AnIdleConsumerWaitsForTheLink) {
  const auto faulty = std::make_shared<FaultyBackend>(Device::open("host:link=0.005").shared_backend());
  const Device device(faulty);
  for (const GatherPath gather : {GatherPath::host, GatherPath::zero_copy, GatherPath::copy_engine}) {
    GatedStream gate(device);
    faulty->hold_back_all(gate.word());
    Loader loader(dataset_, device, all_ahead(gather));
    const Stream stream = device.create_stream();
    while (const auto batch = loader.next(stream)) {
    }
    gate.open();
    stream.synchronize();
    const FeedStatistics s = loader.stats();
    EXPECT_EQ(s.link_bytes, kBatches * kBytes);
    const double at_least = static_cast<double>(kBatches * kBytes) / 5e6;
    EXPECT_GE(s.transfer_seconds, 0.4 * at_least);
    EXPECT_GE(s.seconds, 0.9 * at_least);
    EXPECT_GE(s.stall_seconds, 0.5 * at_least) << "the consumer may come late";
    EXPECT_GE(s.exposed_transfer_seconds, 0.4 * at_least);
    EXPECT_EQ(s.limited_by(), FeedLimit::link) << s;
  }
}

TEST_F(LoaderLink, ABusyConsumerHidesTheTransfers) {
  const Device device = Device::open("host:link=1");
  GatedStream gated(device);
  const Stream arrivals = device.create_stream();
  Loader loader(dataset_, device, all_ahead());
  while (auto batch = loader.next(gated.stream())) {
    batch->use_on(arrivals);
    gated.stream().occupy(0.005);
  }
  arrivals.synchronize();
  gated.open();
  gated.stream().synchronize();
  const FeedStatistics s = loader.stats();
  EXPECT_GE(s.compute_seconds, 0.9 * kBatches * 0.005);
  EXPECT_LT(s.stall_seconds, s.compute_seconds) << s;
  EXPECT_LT(s.exposed_transfer_seconds, s.compute_seconds);
  EXPECT_GE(s.transfer_seconds, 0.4 * kBatches * kBytes / 1e9);
}

}  // namespace
}  // namespace penstock::testing
