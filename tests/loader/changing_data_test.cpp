#include "loader/listed_batches.hpp"
#include "loader/loader_fixture.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// Arrays that the program writes to between epochs.
namespace penstock::testing {
namespace {

constexpr std::size_t kChangingSamples = 40;
constexpr std::size_t kPixels = 300;

class ChangingDataTest : public LoaderTest {
 protected:
  /// A label fits a byte in the first epoch, and needs eight in the next.
  void write(std::uint64_t epoch) {
    std::ranges::copy(random_bytes(images_.size(), epoch), images_.begin());
    const auto labels = random_bytes(labels_.size(), 100 + epoch);
    std::ranges::fill(labels_, std::byte{0});
    for (std::size_t i = 0; i < labels_.size(); i += epoch == 0 ? 8 : 1) labels_[i] = labels[i];
  }
  [[nodiscard]] Dataset dataset() const {
    return Dataset(
        {read_array({.name = "images", .dtype = DType::uint8, .shape = {kPixels}}, images_, nullptr),
         read_array({.name = "labels", .dtype = DType::uint64, .shape = {}}, labels_, nullptr)});
  }
  [[nodiscard]] Dataset copy_of_dataset() const {
    return Dataset({read_array({.name = "images", .dtype = DType::uint8, .shape = {kPixels}}, images_),
                    read_array({.name = "labels", .dtype = DType::uint64, .shape = {}}, labels_)});
  }
  /// The device reads the images where they lie; the labels are small.
  [[nodiscard]] LoaderOptions options(GatherPath gather = GatherPath::automatic) const {
    return {.batch_size = 16,
            .batch_sampler = std::make_shared<TwiceInOrder>(kChangingSamples),
            .gather = gather,
            .data_may_change = true,
            .copy_limit_bytes = labels_.size(),
            .threads = 2};
  }
  /// The batches up to the epoch's end.
  std::vector<DeviceBatch> hold_epoch(Loader& loader) {
    std::vector<DeviceBatch> held;
    while (auto batch = loader.next(*stream_)) held.push_back(std::move(*batch));
    return held;
  }

  std::vector<std::byte> images_ = std::vector<std::byte>(kChangingSamples * kPixels);
  std::vector<std::byte> labels_ = std::vector<std::byte>(kChangingSamples * sizeof(std::uint64_t));
};
PENSTOCK_DEVICE_SUITE(ChangingDataTest);

TEST_P(ChangingDataTest, EachEpochGivesWhatTheArraysHold) {
  for (const GatherPath gather : {GatherPath::automatic, GatherPath::host, GatherPath::copy_engine}) {
    SCOPED_TRACE(gather_path_name(gather));
    write(0);
    Loader loader(dataset(), *device_, options(gather));
    for (std::uint64_t epoch = 1; epoch <= 3; ++epoch) {
      const auto batches = read_epoch(loader);
      EXPECT_EQ(batches.size(), 5U);
      expect_stored(loader.dataset(), batches);
      loader.synchronize();
      write(epoch);
    }
  }
}

TEST_P(ChangingDataTest, WhatWasHandedOutStaysAsItWas) {
  write(0);
  Loader loader(dataset(), *device_, options());
  const Dataset before = copy_of_dataset();
  const std::vector<DeviceBatch> held = hold_epoch(loader);
  loader.synchronize();
  write(1);
  ASSERT_EQ(held.size(), 5U);
  for (const DeviceBatch& batch : held) expect_stored(before, read(batch));
}

TEST_P(ChangingDataTest, AnEpochThatIsLeftReadsNothingMore) {
  write(0);
  Loader loader(dataset(), *device_, options());
  const Dataset before = copy_of_dataset();
  const auto held = loader.next(*stream_);
  loader.start_epoch(1);
  loader.synchronize();
  write(1);
  ASSERT_TRUE(held);
  expect_stored(before, read(*held));
  expect_stored(loader.dataset(), read_epoch(loader));
}

// A process that is alone in its group brings whole batches, as those do that cannot read each other's
// memory.
TEST_P(ChangingDataTest, AnEpochThatAProcessOfAGroupLeavesReadsNothingMore) {
  write(0);
  const ProcessBoardOptions alone{.meeting = {.key = "changes " + std::to_string(getpid()), .processes = 1}};
  Loader loader(dataset(), Destination::rank(*device_, alone), options());
  EXPECT_FALSE(loader.feeds_once());
  Dataset before = copy_of_dataset();
  const auto first = loader.next(*stream_);
  loader.leave_epoch();
  write(1);
  ASSERT_TRUE(first);
  expect_stored(before, read(*first));
  EXPECT_THROW(static_cast<void>(loader.next(*stream_)), InvalidArgument);
  loader.start_epoch(1);
  before = copy_of_dataset();
  const std::vector<DeviceBatch> held = hold_epoch(loader);
  loader.leave_epoch();
  write(2);
  ASSERT_EQ(held.size(), 5U);
  for (const DeviceBatch& batch : held) expect_stored(before, read(batch));
  const auto next = loader.next(*stream_);
  ASSERT_TRUE(next) << "the epoch had ended, so the next one begins";
  expect_stored(loader.dataset(), read(*next));
}

TEST_P(ChangingDataTest, CannotBeResident) {
  write(0);
  LoaderOptions resident = options();
  resident.residency = Residency::parse("auto");
  EXPECT_THROW(Loader(dataset(), *device_, resident), InvalidArgument);
}

}  // namespace
}  // namespace penstock::testing
