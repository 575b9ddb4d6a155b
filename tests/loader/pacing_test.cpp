#include "loader/faulty_fixture.hpp"
#include "support/comes_true.hpp"
#include "support/gate.hpp"

#include <chrono>
#include <cstddef>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

/// A loader's copies are enqueued in parts, and few of them at a time.
namespace penstock::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kRow = 1000;
constexpr std::size_t kBatch = 24;
constexpr std::size_t kPart = 4096;     // four rows
constexpr std::size_t kQueued = 10000;  // two parts
constexpr std::size_t kBatches = 7;

class LoaderPacing : public FaultyLoaderTest {
 protected:
  void SetUp() override {
    FaultyLoaderTest::SetUp();
    if (IsSkipped()) return;
    tune(kQueued);
  }

  void tune(std::size_t queued_bytes) {
    DeviceTuning tuning = device_->info().tuning;
    tuning.copied_part_bytes = kPart;
    tuning.queued_copy_bytes = queued_bytes;
    tuning.copied_sample_bytes = 1;
    faulty_->tune(tuning);
    faulty_->claim_batched_copies(true);
  }

  static LoaderOptions options(GatherPath gather) {
    return {.batch_size = kBatch, .shuffle = true, .gather = gather, .narrow = false, .threads = 2};
  }

  [[nodiscard]] std::size_t copies() const {
    return faulty_->calls(Entry::copy) + faulty_->calls(Entry::copy_each);
  }

  const Dataset dataset_{{random_field("x", DType::uint8, {kRow}, kBatches* kBatch, 1)}};
  const Dataset one_long_sample_{{random_field("x", DType::uint8, {3 * kPart + 5}, 12, 2)}};
  static constexpr GatherPath kByCopies[] = {GatherPath::host, GatherPath::copy_engine};
};
PENSTOCK_DEVICE_SUITE(LoaderPacing);

TEST_P(LoaderPacing, BatchesInPartsAreWhole) {
  for (const Way& way : kWays) {
    for (const bool shuffle : {true, false}) {
      SCOPED_TRACE(::testing::PrintToString(way));
      LoaderOptions asked = options(way.gather);
      asked.shuffle = shuffle;
      asked.residency = Residency::parse(way.residency);
      Loader loader(dataset_, *faulty_device_, asked);
      for (int epoch = 0; epoch < 2; ++epoch) {
        const auto batches = read_epoch(loader);
        EXPECT_EQ(batches.size(), kBatches);
        expect_stored(dataset_, batches);
      }
    }
  }
}

TEST_P(LoaderPacing, SamplesLargerThanAPartAreWhole) {
  for (const GatherPath gather : kByCopies) {
    LoaderOptions asked = options(gather);
    asked.batch_size = 3;
    Loader loader(one_long_sample_, *faulty_device_, asked);
    expect_stored(one_long_sample_, read_epoch(loader));
  }
}

TEST_P(LoaderPacing, ConvertedBatchesInPartsAreWhole) {
  for (const GatherPath gather : kByCopies) {
    LoaderOptions asked = options(gather);
    asked.fields = {{.name = "x", .to = DType::float32}};
    Loader loader(dataset_, *faulty_device_, asked);
    for (const HostBatch& batch : read_epoch(loader)) {
      std::vector<std::byte> stored(batch.indices.size() * kRow);
      dataset_.gather(0, batch.indices, stored);
      std::vector<float> expected;
      for (const std::byte value : stored) expected.push_back(std::to_integer<std::uint8_t>(value));
      EXPECT_EQ(first_difference(batch.fields[0], std::as_bytes(std::span(expected))), -1);
    }
  }
}

TEST_P(LoaderPacing, NoMoreThanTheBoundIsQueued) {
  for (const GatherPath gather : kByCopies) {
    SCOPED_TRACE(gather_path_name(gather));
    const std::size_t before = faulty_->copied_bytes(CopyDirection::h2d);
    const auto queued = [&] { return faulty_->copied_bytes(CopyDirection::h2d) - before; };
    GatedStream gate(*device_);
    faulty_->hold_back_all(gate.word());
    Loader loader(dataset_, *faulty_device_, options(gather));
    EXPECT_TRUE(comes_true([&] { return queued() + kPart > kQueued; }));
    std::this_thread::sleep_for(20ms);
    EXPECT_LE(queued(), kQueued);
    faulty_->hold_back_all(nullptr);
    gate.open();
    expect_stored(dataset_, read_epoch(loader));
  }
}

TEST_P(LoaderPacing, SmallPartsAreBoundedByTheirNumber) {
  for (const GatherPath gather : kByCopies) {
    LoaderOptions asked = options(gather);
    asked.batch_size = 1;
    asked.prefetch_depth = 20;
    const std::size_t before = faulty_->copied_bytes(CopyDirection::h2d);
    const auto queued = [&] { return faulty_->copied_bytes(CopyDirection::h2d) - before; };
    GatedStream gate(*device_);
    faulty_->hold_back_all(gate.word());
    Loader loader(dataset_, *faulty_device_, asked);
    constexpr std::size_t kEvents = 2 * (kQueued / kPart);
    EXPECT_TRUE(comes_true([&] { return queued() == kEvents * kRow; }));
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(queued(), kEvents * kRow);
    faulty_->hold_back_all(nullptr);
    gate.open();
    expect_stored(dataset_, read_epoch(loader));
  }
}

TEST_P(LoaderPacing, AfterABatchThatWasWaitedForTheBoundHoldsAgain) {
  for (const GatherPath gather : kByCopies) {
    const std::size_t earlier = faulty_->copied_bytes(CopyDirection::h2d);
    GatedStream gate(*device_);
    faulty_->hold_back_all(gate.word());
    Loader loader(dataset_, *faulty_device_, options(gather));
    auto batch = loader.next(*stream_);
    // The loader goes on with the next batch, within the bound.
    std::this_thread::sleep_for(20ms);
    const std::size_t before = faulty_->copied_bytes(CopyDirection::h2d);
    EXPECT_LT(before - earlier, 2 * kBatch * kRow);
    std::this_thread::sleep_for(120ms);  // longer than a consumer waits before the ring is in a hurry
    EXPECT_EQ(faulty_->copied_bytes(CopyDirection::h2d), before);
    batch.reset();
    faulty_->hold_back_all(nullptr);
    gate.open();
    expect_stored(dataset_, read_epoch(loader));
  }
}

TEST_P(LoaderPacing, BatchesWithinTheBoundAreNotCut) {
  const std::size_t ahead = options(GatherPath::host).prefetch_depth + 1;
  for (const std::size_t spare : {0, 1}) {
    tune(ahead * kBatch * kRow - spare);
    for (const GatherPath gather : kByCopies) {
      Loader loader(dataset_, *faulty_device_, options(gather));
      const std::size_t before = copies();
      static_cast<void>(read_epoch(loader));
      loader.close();
      // The epoch's own batches, and those that the loader has ahead.
      const std::size_t batches = 2 * kBatches;
      if (spare == 0) {
        EXPECT_LE(copies() - before, batches + kBatches) << "one copy back for each batch";
      } else {
        EXPECT_GE(copies() - before, kBatches * (kBatch * kRow / kPart));
      }
    }
  }
}

TEST_P(LoaderPacing, AConsumerThatWaitsLongGetsItsBatch) {
  for (const GatherPath gather : kByCopies) {
    GatedStream gate(*device_);
    faulty_->hold_back_all(gate.word());
    Loader loader(dataset_, *faulty_device_, options(gather));
    const auto batch = loader.next(*stream_);  // its copies wait for the gate
    ASSERT_TRUE(batch);
    EXPECT_FALSE(is_done_soon(*stream_));
    faulty_->hold_back_all(nullptr);
    gate.open();
    expect_stored(dataset_, read(*batch));
  }
}

TEST_P(LoaderPacing, AConsumerThatIsHeldBackGetsMoreBatches) {
  for (const GatherPath gather : kByCopies) {
    GatedStream consumer(*device_);
    Loader loader(dataset_, *faulty_device_, options(gather));
    // One more than there are slots: the last one is written once the consumer is done with the first.
    for (std::size_t i = 0; i <= options(gather).prefetch_depth + 1; ++i) {
      const auto batch = loader.next(consumer.stream());
      ASSERT_TRUE(batch);
      EXPECT_EQ(batch->index(), i);
    }
    consumer.open();
    expect_stored(dataset_, read_epoch(loader));
  }
}

TEST_P(LoaderPacing, ALoaderIsRestartedWhileItsCopiesWait) {
  for (const GatherPath gather : kByCopies) {
    GatedStream gate(*device_);
    const std::size_t before = faulty_->copied_bytes(CopyDirection::h2d);
    faulty_->hold_back_all(gate.word());
    Loader loader(dataset_, *faulty_device_, options(gather));
    EXPECT_TRUE(
        comes_true([&] { return faulty_->copied_bytes(CopyDirection::h2d) - before + kPart > kQueued; }));
    loader.start_epoch(3);
    faulty_->hold_back_all(nullptr);
    gate.open();
    const auto batches = read_epoch(loader);
    EXPECT_EQ(batches.size(), kBatches);
    EXPECT_EQ(batches.front().epoch, 3U);
    expect_stored(dataset_, batches);
  }
}

TEST_P(LoaderPacing, AfterAFailedPartTheNextEpochIsWhole) {
  for (const Entry entry : {Entry::copy, Entry::copy_each, Entry::event_query}) {
    Loader loader(dataset_, *faulty_device_,
                  options(entry == Entry::copy ? GatherPath::host : GatherPath::copy_engine));
    expect_stored(dataset_, read_epoch(loader));
    const std::size_t slots = loader.stats().slots;
    faulty_->fail(entry, 3);
    const auto until_it_fails = [&] {
      for (int i = 0; i < 100; ++i) static_cast<void>(loader.next(*stream_));
    };
    EXPECT_THROW(until_it_fails(), DeviceError);
    faulty_->heal();
    loader.start_epoch(5);
    expect_stored(dataset_, read_epoch(loader));
    EXPECT_EQ(loader.stats().slots, slots);
  }
}

}  // namespace
}  // namespace penstock::testing
