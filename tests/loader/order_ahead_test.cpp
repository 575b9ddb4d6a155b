#include "loader/order_ahead.hpp"

#include "loader/faulty_fixture.hpp"

#include <penstock/core/permutation.hpp>
#include <penstock/data/sampler.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

/// The device computes the order of several batches at once.
namespace penstock::testing {
namespace {

constexpr std::size_t kAhead = 4;  // batches
constexpr std::size_t kOrderedSamples = 100;

class LoaderOrderAhead : public FaultyLoaderTest {
 protected:
  void SetUp() override {
    FaultyLoaderTest::SetUp();
    if (IsSkipped()) return;
    indices_.emplace(pinned_->allocate(kAhead * kBatch * sizeof(std::uint64_t)));
    here_ = reinterpret_cast<const std::uint64_t*>(indices_->data());
    order_.emplace(static_cast<std::uint64_t*>(device_->device_address(indices_->data())), kAhead * kBatch);
  }

  /// Expects the order to give the batch's samples.
  void expect_order(const SampleRun& batch, std::uint64_t epoch) {
    const Stream stream = faulty_device_->wrap_stream(stream_->native());
    const std::uint64_t* const there = order_->order(batch, epoch, stream);
    stream_->synchronize();
    const auto* const first = static_cast<const std::uint64_t*>(device_->device_address(indices_->data()));
    std::vector<std::uint64_t> expected(static_cast<std::size_t>(batch.count));
    batch.fill(expected);
    const std::span given(here_ + (there - first), expected.size());
    EXPECT_EQ(std::vector(given.begin(), given.end()), expected);
  }
  [[nodiscard]] std::size_t launches() const { return faulty_->calls(Entry::fill_order); }

  static Sampler sampler(std::uint64_t rank, std::uint64_t world_size) {
    return Sampler(kOrderedSamples, {.shuffle = true,
                                     .seed = 3,
                                     .batch_size = kBatch,
                                     .shard = {.rank = rank, .world_size = world_size}});
  }

  std::optional<Buffer> indices_;
  const std::uint64_t* here_ = nullptr;
  std::optional<OrderAhead> order_;
};
PENSTOCK_DEVICE_SUITE(LoaderOrderAhead);

TEST_P(LoaderOrderAhead, OneLaunchServesSeveralBatches) {
  for (const std::uint64_t world_size : {1, 3}) {
    Sampler sampler = LoaderOrderAhead::sampler(world_size - 1, world_size);
    const std::size_t before = launches();
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      sampler.start_epoch(epoch);
      for (SampleRun batch = sampler.next_run(); batch.count > 0; batch = sampler.next_run()) {
        expect_order(batch, epoch);
      }
    }
    const std::size_t batches = sampler.batches_per_epoch();
    EXPECT_EQ(launches() - before, 3 * ((batches + kAhead - 1) / kAhead));
  }
}

TEST_P(LoaderOrderAhead, NothingIsOrderedPastTheEpoch) {
  std::memset(indices_->data(), 0xA5, indices_->size());
  Sampler sampler = LoaderOrderAhead::sampler(0, 1);
  SampleRun last;
  for (SampleRun batch = sampler.next_run(); batch.count > 0; batch = sampler.next_run()) last = batch;
  ASSERT_EQ(last.count, kOrderedSamples % kBatch);
  expect_order(last, 0);
  EXPECT_EQ(here_[2 * last.count], 0xA5A5A5A5A5A5A5A5);
}

TEST_P(LoaderOrderAhead, EverySecondBatchIsServed) {
  Sampler sampler = LoaderOrderAhead::sampler(0, 1);
  for (int i = 0; i < 6; ++i) {
    expect_order(sampler.next_run(), 0);
    static_cast<void>(sampler.next_run());
  }
  EXPECT_EQ(launches(), 3U);
}

TEST_P(LoaderOrderAhead, ABatchOfElsewhereIsOrderedAnew) {
  const SampleRun first = LoaderOrderAhead::sampler(0, 1).next_run();
  SampleRun batch = first;
  expect_order(first.part(kBatch, kBatch), 0);
  expect_order(first, 0);  // before those that there are
  batch.first = 3;         // between the same batches
  expect_order(batch, 0);
  batch.first = kAhead * kBatch - 4;  // its last samples are not there
  expect_order(batch, 0);
  Sampler next = LoaderOrderAhead::sampler(0, 1);
  next.start_epoch(1);
  static_cast<void>(next.next_run());
  expect_order(next.next_run().part(kAhead * kBatch, kBatch), 1);
  batch = first;
  batch.stride = 2;
  batch.first = 1;
  expect_order(batch, 2);
  batch.first = 4;  // not at a step of the stride
  expect_order(batch, 2);
}

TEST_P(LoaderOrderAhead, ALongerBatchThanThereIsRoomForIsNotShortened) {
  SampleRun batch;
  batch.size = kOrderedSamples;
  batch.count = kAhead * kBatch;
  expect_order(batch, 0);
}

TEST_P(LoaderOrderAhead, AKernelThatFailsOrdersNothing) {
  const SampleRun batch = LoaderOrderAhead::sampler(0, 1).next_run();
  Sampler later = LoaderOrderAhead::sampler(0, 1);
  later.start_epoch(1);
  const SampleRun next = later.next_run();
  expect_order(batch, 0);
  faulty_->fail(Entry::fill_order);
  EXPECT_THROW(static_cast<void>(order_->order(next, 1, faulty_device_->wrap_stream(stream_->native()))),
               DeviceError);
  expect_order(batch, 0);
  expect_order(next, 1);
}

/// Batches of a loader whose device orders several at once, on both copy streams.
TEST_P(LoaderOrderAhead, BatchesOfALoaderHoldTheirSamples) {
  DeviceTuning tuning = device_->info().tuning;
  tuning.order_ahead_bytes = kAhead * kBatch * sizeof(std::uint64_t);
  faulty_->tune(tuning);
  const Dataset dataset({random_field("x", DType::uint8, {5}, kOrderedSamples, 1)});
  for (const std::size_t depth : {1, 5}) {
    const std::size_t before = launches();
    Loader loader(
        dataset, *faulty_device_,
        {.batch_size = kBatch, .shuffle = true, .prefetch_depth = depth, .gather = GatherPath::zero_copy});
    std::vector<HostBatch> batches = read_epoch(loader);
    const std::vector<HostBatch> second = read_epoch(loader);
    expect_stored(dataset, batches);
    expect_stored(dataset, second);
    EXPECT_NE(indices_of(batches), indices_of(second));
    loader.start_epoch(1);
    batches = {read(*loader.next(*stream_)), read(*loader.next(*stream_))};
    const SamplerState after_two = loader.state();
    loader.start_epoch(0);
    expect_stored(dataset, {read(*loader.next(*stream_))});
    loader.restore(after_two);
    batches.push_back(read(*loader.next(*stream_)));
    expect_stored(dataset, batches);
    EXPECT_EQ(batches[2].indices, second[2].indices);
    loader.close();
    EXPECT_GT(launches() - before, 2 * (kOrderedSamples / kBatch / kAhead));
  }
}

}  // namespace
}  // namespace penstock::testing
