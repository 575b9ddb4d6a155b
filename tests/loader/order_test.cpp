#include "loader/faulty_fixture.hpp"
#include "support/gate.hpp"

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>
#include <utility>

/// Who waits for whom. If a consumer's stream is held back, all work that must wait for it is held back too,
/// however late the stream goes on.
namespace penstock::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kOrderRow = 2048;

class LoaderOrder : public FaultyLoaderTest {
 protected:
  DeviceBatch take(Loader& loader, const Stream& stream) { return std::move(*loader.next(stream)); }

  /// A loader at the beginning of an epoch, with all resident samples moved. Moving them gives locked memory
  /// back, which waits for all streams.
  Loader settled_loader(const Way& way, std::size_t depth) {
    Loader loader(dataset_, *device_,
                  {.batch_size = kBatch,
                   .shuffle = true,
                   .prefetch_depth = depth,
                   .residency = Residency::parse(way.residency),
                   .gather = way.gather,
                   .threads = 1});
    static_cast<void>(take(loader, *stream_));
    loader.start_epoch(1);
    return loader;
  }

  void expect_intact(const DeviceBatch& batch) {
    const Buffer pinned = pinned_->allocate(batch.field(0).bytes);
    stream_->copy(pinned.data(), batch.field(0).data, pinned.size(), CopyDirection::d2h);
    stream_->synchronize();
    expect_bytes(pinned, batch.indices());
  }
  void expect_bytes(const Buffer& pinned, const std::vector<std::uint64_t>& indices) {
    std::vector<std::byte> expected(indices.size() * kOrderRow);
    dataset_.gather(0, indices, expected);
    EXPECT_EQ(first_difference(pinned.bytes(), expected), -1);
  }

  const Dataset dataset_{{random_field("x", DType::uint8, {kOrderRow}, 160, 1)}};
};
PENSTOCK_DEVICE_SUITE(LoaderOrder);
PENSTOCK_SLOW_LINK_SUITE(LoaderOrder);

TEST_P(LoaderOrder, EveryStreamOfABatchWaitsForIt) {
  for (const Way& way : kWays) {
    SCOPED_TRACE(::testing::PrintToString(way));
    Loader loader = settled_loader(way, 2);
    GatedStream gated(*device_);
    const Stream other = device_->create_stream();
    std::byte* const slot = take(loader, gated.stream()).field(0).data;
    const DeviceBatch second = take(loader, *stream_);
    const DeviceBatch third = take(loader, *stream_);
    // The fourth batch lies in the first one's slot, so it is held back.
    DeviceBatch batch = take(loader, *stream_);
    ASSERT_EQ(batch.field(0).data, slot);
    batch.use_on(other);
    const Buffer pinned = pinned_->allocate(batch.field(0).bytes);
    const Buffer also_pinned = pinned_->allocate(batch.field(0).bytes);
    const auto copy_on = [&](const Stream& stream, const Buffer& buffer) {
      stream.copy(buffer.data(), slot, buffer.size(), CopyDirection::d2h);
    };
    copy_on(*stream_, pinned);
    copy_on(other, also_pinned);
    EXPECT_FALSE(is_done_soon(*stream_));
    EXPECT_FALSE(is_done_soon(other));
    gated.open();
    stream_->synchronize();
    other.synchronize();
    expect_bytes(pinned, batch.indices());
    expect_bytes(also_pinned, batch.indices());
  }
}

TEST_P(LoaderOrder, AStageIsNotGatheredIntoWhileItsCopyIsHeldBack) {
  for (const Way& way : kWays) {
    SCOPED_TRACE(::testing::PrintToString(way));
    Loader loader = settled_loader(way, 2);
    GatedStream gated(*device_);
    static_cast<void>(take(loader, gated.stream()));
    std::vector<DeviceBatch> held;
    for (int i = 0; i < 3; ++i) held.push_back(take(loader, gated.stream()));
    std::thread opener([&] {
      std::this_thread::sleep_for(15ms);
      gated.open();
    });
    for (int i = 0; i < 8; ++i) held.push_back(take(loader, *stream_));
    opener.join();
    for (const DeviceBatch& batch : held) expect_intact(batch);
  }
}

TEST_P(LoaderOrder, ABatchThatWasDroppedIsOverBeforeItsSlotIsFilledAgain) {
  for (const Way& way : kWays) {
    SCOPED_TRACE(::testing::PrintToString(way));
    Loader loader = settled_loader(way, 3);
    GatedStream gated(*device_);
    const Stream first = device_->create_stream();
    const Stream second = device_->create_stream();
    std::byte* const slot = take(loader, gated.stream()).field(0).data;
    std::vector<DeviceBatch> held;
    held.push_back(take(loader, *stream_));
    held.push_back(take(loader, *stream_));
    stream_->synchronize();
    // Three batches are ahead now, and the second of them waits in the slot for the stream that is held back.
    while (loader.stats().slots < 5) std::this_thread::yield();
    loader.restore(loader.state());
    held.push_back(take(loader, first));
    held.push_back(take(loader, second));
    bool early = false;
    if (held.back().field(0).data == slot) early = is_done_soon(second);
    EXPECT_FALSE(early) << "the dropped batch would be written over it";
    gated.open();
    first.synchronize();
    second.synchronize();
    for (const DeviceBatch& batch : held) expect_intact(batch);
  }
}

TEST_P(LoaderOrder, ClosingWaitsForCopiesThatAreUnderWay) {
  for (const Way& way : kWays) {
    SCOPED_TRACE(::testing::PrintToString(way));
    Loader loader = settled_loader(way, 2);
    GatedStream gated(*device_);
    static_cast<void>(take(loader, gated.stream()));
    const DeviceBatch second = take(loader, *stream_);
    const DeviceBatch third = take(loader, *stream_);
    const DeviceBatch fourth = take(loader, *stream_);
    auto closed = std::async(std::launch::async, [&] { loader.close(); });
    EXPECT_EQ(closed.wait_for(15ms), std::future_status::timeout);
    gated.open();
    closed.get();
    for (const DeviceBatch* batch : {&second, &third, &fourth}) expect_intact(*batch);
  }
}

TEST_P(LoaderOrder, WhatIsResidentIsThereBeforeTheFirstBatch) {
  // More than two of the buffers that samples from a function go through.
  constexpr std::size_t kLarge = std::size_t{1} << 20;
  const Dataset plain({random_field("x", DType::uint8, {kLarge}, 28, 2)});
  for (const bool in_memory : {true, false}) {
    const Dataset dataset({in_memory ? plain.reader(0) : as_callback(plain.reader(0))});
    Loader loader(dataset, *device_, {.batch_size = 4, .residency = Residency::parse("all")});
    expect_stored(plain, read_epoch(loader));
  }
}

}  // namespace
}  // namespace penstock::testing
