#include "loader/faulty_fixture.hpp"
#include "support/comes_true.hpp"
#include "support/gate.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

/// A loader's copies are enqueued in parts, in turn on two streams, with two parts under way at most.
namespace penstock::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kPacedRow = 1000;
constexpr std::size_t kPacedBatch = 24;
constexpr std::size_t kPart = 4096;  // four rows
constexpr std::size_t kEvenPart =
    kPacedBatch * kPacedRow / 6;  // as few parts of a batch as there can be, all alike
constexpr std::size_t kBatches = 7;

class LoaderPacing : public FaultyLoaderTest {
 protected:
  void SetUp() override {
    FaultyLoaderTest::SetUp();
    if (IsSkipped()) return;
    tune(kPart, kPart);
  }

  void tune(std::size_t large, std::size_t small) {
    DeviceTuning tuning = device_->info().tuning;
    tuning.large_part_bytes = large;
    tuning.small_part_bytes = small;
    tuning.copied_sample_bytes = 1;
    faulty_->tune(tuning);
    faulty_->claim_batched_copies(true);
  }

  static LoaderOptions options(GatherPath gather) {
    return {.batch_size = kPacedBatch, .shuffle = true, .gather = gather, .narrow = false, .threads = 2};
  }

  /// A profile of a link on which `bytes` take `seconds`.
  LinkProfile link(std::size_t bytes, double seconds) const {
    LinkProfile profile = LinkProfile::defaults(faulty_device_->info());
    profile.curves[LinkProfile::Curve::pinned_h2d] = {{bytes, seconds}};
    return profile;
  }

  [[nodiscard]] std::size_t copies() const {
    return faulty_->calls(Entry::copy) + faulty_->calls(Entry::copy_each);
  }

  const Dataset dataset_{{random_field("x", DType::uint8, {kPacedRow}, kBatches* kPacedBatch, 1)}};
  const Dataset one_long_sample_{{random_field("x", DType::uint8, {3 * kPart + 5}, 12, 2)}};
  static constexpr GatherPath kByCopies[] = {GatherPath::host, GatherPath::copy_engine};
};
PENSTOCK_DEVICE_SUITE(LoaderPacing);
PENSTOCK_SLOW_LINK_SUITE(LoaderPacing);

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
    // Large enough for a staging buffer on the device.
    const Dataset dataset({random_field("x", DType::uint8, {4 * kPacedRow}, kBatches * kPacedBatch, 3)});
    Loader loader(dataset, *faulty_device_, asked);
    for (const HostBatch& batch : read_epoch(loader)) {
      std::vector<std::byte> stored(batch.indices.size() * 4 * kPacedRow);
      dataset.gather(0, batch.indices, stored);
      std::vector<float> expected;
      for (const std::byte value : stored) expected.push_back(std::to_integer<std::uint8_t>(value));
      EXPECT_EQ(first_difference(batch.fields[0], std::as_bytes(std::span(expected))), -1);
    }
  }
}

TEST_P(LoaderPacing, OnePartIsQueuedOnEachStream) {
  for (const GatherPath gather : kByCopies) {
    for (const std::size_t batch : {kPacedBatch, std::size_t{1}}) {
      SCOPED_TRACE(gather_path_name(gather));
      LoaderOptions asked = options(gather);
      asked.batch_size = batch;
      asked.prefetch_depth = 20;
      const std::size_t part = batch == 1 ? kPacedRow : kEvenPart;
      const std::size_t before = faulty_->copied_bytes(CopyDirection::h2d);
      const auto queued = [&] { return faulty_->copied_bytes(CopyDirection::h2d) - before; };
      GatedStream gate(*device_);
      faulty_->hold_back_all(gate.word());
      Loader loader(dataset_, *faulty_device_, asked);
      EXPECT_TRUE(comes_true([&] { return queued() == 2 * part; }));
      std::this_thread::sleep_for(20ms);
      EXPECT_EQ(queued(), 2 * part);
      faulty_->hold_back_all(nullptr);
      gate.open();
      expect_stored(dataset_, read_epoch(loader));
    }
  }
}

TEST_P(LoaderPacing, TheNextBatchBeginsWhileTheLastPartIsUnderWay) {
  constexpr std::size_t kEven = 8;  // samples, in two parts
  LoaderOptions asked = options(GatherPath::host);
  asked.batch_size = kEven;
  const Dataset dataset({random_field("x", DType::uint8, {kPart / 4}, 4 * kEven, 4)});
  GatedStream gate(*device_);
  std::atomic<int> copies{0};
  faulty_->before(Entry::copy, [&] {
    if (++copies == 2) faulty_->hold_back_next_copy(gate.word());
  });
  Loader loader(dataset, *faulty_device_, asked);
  EXPECT_TRUE(comes_true([&] { return copies == 3; }));
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(copies, 3) << "two parts are under way";
  faulty_->before(Entry::copy, {});
  gate.open();
  expect_stored(dataset, read_epoch(loader));
}

TEST_P(LoaderPacing, AfterABatchThatWasWaitedForThePartsWaitAgain) {
  for (const GatherPath gather : kByCopies) {
    GatedStream gate(*device_);
    const std::size_t earlier = faulty_->copied_bytes(CopyDirection::h2d);
    faulty_->hold_back_all(gate.word());
    Loader loader(dataset_, *faulty_device_, options(gather));
    auto batch = loader.next(*stream_);
    std::this_thread::sleep_for(120ms);  // longer than a consumer waits before the ring is in a hurry
    EXPECT_EQ(faulty_->copied_bytes(CopyDirection::h2d) - earlier, kPacedBatch * kPacedRow);
    batch.reset();
    faulty_->hold_back_all(nullptr);
    gate.open();
    expect_stored(dataset_, read_epoch(loader));
  }
}

TEST_P(LoaderPacing, PartsAreAlike) {
  constexpr std::size_t kRows = 9;  // three parts of three, and not two of four and one of one
  for (const GatherPath gather : kByCopies) {
    SCOPED_TRACE(gather_path_name(gather));
    LoaderOptions asked = options(gather);
    asked.batch_size = kRows;
    asked.prefetch_depth = 20;
    const Dataset dataset({random_field("x", DType::uint8, {kPacedRow}, 4 * kRows, 5)});
    const std::size_t before = faulty_->copied_bytes(CopyDirection::h2d);
    const auto queued = [&] { return faulty_->copied_bytes(CopyDirection::h2d) - before; };
    GatedStream gate(*device_);
    faulty_->hold_back_all(gate.word());
    Loader loader(dataset, *faulty_device_, asked);
    EXPECT_TRUE(comes_true([&] { return queued() == 6 * kPacedRow; })) << queued();
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(queued(), 6 * kPacedRow);
    faulty_->hold_back_all(nullptr);
    gate.open();
    expect_stored(dataset, read_epoch(loader));
  }
}

TEST_P(LoaderPacing, FewBytesAheadAreNotCut) {
  const std::size_t ahead = (options(GatherPath::host).prefetch_depth + 1) * kPacedBatch * kPacedRow;
  for (const GatherPath gather : kByCopies) {
    for (const bool cut : {false, true}) {
      tune(kPart, cut ? ahead / 2 - 1 : ahead / 2);
      LoaderOptions asked = options(gather);
      asked.profile = link(1, 1e6);
      const std::size_t before = copies();
      Loader loader(dataset_, *faulty_device_, asked);
      EXPECT_EQ(read_epoch(loader).size(), kBatches);
      loader.close();
      // The loader has some of the next epoch's ahead.
      const std::size_t made = copies() - before;
      EXPECT_EQ(made > 2 * kBatches, cut);
    }
  }
}

TEST_P(LoaderPacing, PartsAreSmallIfTheLinkHasTimeToSpare) {
  tune(kPacedBatch * kPacedRow, kPart);
  for (const GatherPath gather : kByCopies) {
    for (const bool spare : {false, true}) {
      LoaderOptions asked = options(gather);
      asked.profile = spare ? link(1'000'000'000, 1e-9) : link(1, 1e6);
      const std::size_t before = copies();
      Loader loader(dataset_, *faulty_device_, asked);
      expect_stored(dataset_, read_epoch(loader));
      expect_stored(dataset_, read_epoch(loader));
      loader.close();
      const std::size_t made = copies() - before;
      if (spare) {
        EXPECT_GE(made, 6 * (2 * kBatches - 1));
      } else {
        EXPECT_LE(made, 2 * kBatches + asked.prefetch_depth + 1);
      }
    }
  }
}

TEST_P(LoaderPacing, AnIdleLinkAndAFreeSlotAreNoReasonForWholeBatches) {
  for (const GatherPath gather : kByCopies) {
    LoaderOptions asked = options(gather);
    asked.prefetch_depth = 1;
    const std::size_t before = faulty_->copied_bytes(CopyDirection::h2d);
    const auto bytes = [&] { return faulty_->copied_bytes(CopyDirection::h2d) - before; };
    Loader loader(dataset_, *faulty_device_, asked);
    EXPECT_TRUE(comes_true([&] { return bytes() == kPacedBatch * kPacedRow; }));
    loader.synchronize();
    GatedStream gate(*device_);
    faulty_->hold_back_all(gate.word());
    const auto batch = loader.next(*stream_);  // nobody waits for the next one
    EXPECT_TRUE(comes_true([&] { return bytes() == kPacedBatch * kPacedRow + 2 * kEvenPart; }));
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(bytes(), kPacedBatch * kPacedRow + 2 * kEvenPart);
    faulty_->hold_back_all(nullptr);
    gate.open();
    expect_stored(dataset_, read(*batch));
    expect_stored(dataset_, read_epoch(loader));
  }
}

TEST_P(LoaderPacing, AStepThatSetsThePaceMakesPartsWait) {
  for (const GatherPath gather : kByCopies) {
    LoaderOptions asked = options(gather);
    asked.prefetch_depth = 1;
    asked.ring_grows = false;
    const std::size_t before = faulty_->copied_bytes(CopyDirection::h2d);
    const auto bytes = [&] { return faulty_->copied_bytes(CopyDirection::h2d) - before; };
    Loader loader(dataset_, *faulty_device_, asked);
    GatedStream step(*device_);
    static_cast<void>(loader.next(step.stream()));
    static_cast<void>(loader.next(step.stream()));
    // Both slots are in use until the step ends. The first parts of the third batch are queued behind it.
    EXPECT_TRUE(comes_true([&] { return bytes() == 2 * (kPacedBatch * kPacedRow + kEvenPart); })) << bytes();
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(bytes(), 2 * (kPacedBatch * kPacedRow + kEvenPart));
    step.open();
    expect_stored(dataset_, read_epoch(loader));
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

TEST_P(LoaderPacing, NoPartIsWrittenBeforeTheSlotsLastUserIsDone) {
  for (const GatherPath gather : kByCopies) {
    GatedStream consumer(*device_);
    Loader loader(dataset_, *faulty_device_, options(gather));
    auto batch = loader.next(consumer.stream());
    const std::vector<std::uint64_t> indices = batch->indices();
    const DeviceField& field = batch->field(0);
    const Buffer there = pinned_->allocate(field.bytes);
    consumer.stream().copy(there.data(), field.data, field.bytes, CopyDirection::d2h);
    const std::byte* const slot = field.data;
    batch.reset();
    // The consumer still reads the first batch when the loader writes its slot again.
    do {
      batch = loader.next(*stream_);
    } while (batch->field(0).data != slot);
    EXPECT_FALSE(is_done_soon(*stream_));
    consumer.open();
    consumer.stream().synchronize();
    std::vector<std::byte> expected(there.size());
    dataset_.gather(0, indices, expected);
    EXPECT_EQ(first_difference(there.bytes(), expected), -1);
    expect_stored(dataset_, read(*batch));
  }
}

TEST_P(LoaderPacing, ALoaderIsRestartedWhileItsCopiesWait) {
  for (const GatherPath gather : kByCopies) {
    GatedStream gate(*device_);
    const std::size_t before = faulty_->copied_bytes(CopyDirection::h2d);
    faulty_->hold_back_all(gate.word());
    Loader loader(dataset_, *faulty_device_, options(gather));
    EXPECT_TRUE(
        comes_true([&] { return faulty_->copied_bytes(CopyDirection::h2d) - before >= 8 * kPacedRow; }));
    loader.start_epoch(3);
    faulty_->hold_back_all(nullptr);
    gate.open();
    const auto batches = read_epoch(loader);
    EXPECT_EQ(batches.size(), kBatches);
    EXPECT_EQ(batches.front().epoch, 3U);
    expect_stored(dataset_, batches);
  }
}

TEST_P(LoaderPacing, AFailedBatchIsNotWrittenOverTheNextOne) {
  GatedStream gate(*device_);
  std::atomic<int> copies{0};
  // Of the first batch, the second part is held back, and the third one fails.
  faulty_->before(Entry::copy, [&] {
    if (++copies == 2) faulty_->hold_back_next_copy(gate.word());
  });
  faulty_->fail(Entry::copy, 3);
  Loader loader(dataset_, *faulty_device_, options(GatherPath::host));
  EXPECT_THROW(static_cast<void>(loader.next(*stream_)), DeviceError);
  faulty_->before(Entry::copy, {});
  loader.start_epoch(5);
  const auto batch = loader.next(*stream_);  // in the same slot
  ASSERT_TRUE(batch);
  EXPECT_FALSE(is_done_soon(*stream_));
  gate.open();
  expect_stored(dataset_, read(*batch));
  expect_stored(dataset_, read_epoch(loader));
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
