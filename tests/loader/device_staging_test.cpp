#include "loader/faulty_fixture.hpp"

#include <penstock/core/bytes.hpp>

#include <gmock/gmock.h>

#include <array>
#include <cstring>
#include <optional>
#include <string>

/// Samples that the copy engines fetch, and staging buffers on the device, from which a kernel writes the
/// slot.
namespace penstock::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class LoaderDeviceStaging : public FaultyLoaderTest {
 protected:
  static constexpr std::size_t kLarge = 64 * kKiB;
  // Four slots of 8 large samples as float32, with their labels and indices, and the factors.
  static constexpr std::size_t kRing = 4 * (8 * kLarge * 4 + 256) + 256;
  static constexpr std::size_t kStaging = 2 * 8 * kLarge;

  static Dataset pictures(std::size_t sample_bytes, std::size_t samples = 40) {
    return Dataset({random_field("x", DType::uint8, {4, sample_bytes / 4}, samples, 1),
                    random_field("y", DType::int32, {}, samples, 2)});
  }

  std::string ways(const Loader& loader) {
    std::string lines;
    for (const std::string& line : loader.describe()) lines += line + '\n';
    return lines;
  }

  /// float32 values of uint8 samples, as they are asked for below.
  static void expect_scaled(const Dataset& dataset, const std::vector<HostBatch>& batches) {
    constexpr std::array kScale{0.5F, 2.0F, 3.0F, -1.0F};
    const std::size_t elements = dataset.sample_bytes(0);
    for (const HostBatch& batch : batches) {
      std::vector<std::byte> stored(batch.indices.size() * elements);
      dataset.gather(0, batch.indices, stored);
      std::vector<float> expected(stored.size());
      for (std::size_t i = 0; i < stored.size(); ++i) {
        expected[i] =
            static_cast<float>(std::to_integer<int>(stored[i])) * kScale[i % elements / (elements / 4)] +
            1.0F;
      }
      EXPECT_EQ(first_difference(batch.fields[0], std::as_bytes(std::span(expected))), -1)
          << "epoch " << batch.epoch << ", batch " << batch.index;
    }
  }
  static LoaderOptions scaled(const char* residency, GatherPath gather) {
    return {
        .batch_size = 8,
        .shuffle = true,
        .prefetch_depth = 3,
        .residency = Residency::parse(residency),
        .gather = gather,
        .fields = {{.name = "x", .to = DType::float32, .scale = {0.5F, 2.0F, 3.0F, -1.0F}, .shift = {1.0F}}}};
  }
};
PENSTOCK_DEVICE_SUITE(LoaderDeviceStaging);

TEST_P(LoaderDeviceStaging, CopiedSamplesWidenFromTheStagingBuffer) {
  const Dataset dataset = pictures(4000, 100);
  for (const char* residency : {"none", "0.4", "all"}) {
    SCOPED_TRACE(residency);
    Loader loader(dataset, *faulty_device_, scaled(residency, GatherPath::copy_engine));
    for (int epoch = 0; epoch < 2; ++epoch) expect_scaled(dataset, read_epoch(loader));
  }
}

TEST_P(LoaderDeviceStaging, LargeBatchesOfTheHostWidenFromTheStagingBuffer) {
  const Dataset memory = pictures(12000, 100);
  const Dataset dataset({as_callback(memory.reader(0)), memory.reader(1)});
  for (const char* residency : {"none", "0.4"}) {
    SCOPED_TRACE(residency);
    const std::size_t before = faulty_->copied_bytes(CopyDirection::h2d);
    Loader loader(dataset, *faulty_device_, scaled(residency, GatherPath::automatic));
    for (int epoch = 0; epoch < 2; ++epoch) expect_scaled(memory, read_epoch(loader));
    EXPECT_GT(faulty_->copied_bytes(CopyDirection::h2d) - before, 60U * 12000)
        << "by copies, not by a kernel";
  }
}

TEST_P(LoaderDeviceStaging, SamplesInSequenceAreOneCopy) {
  faulty_->claim_batched_copies(true);
  const Dataset dataset = pictures(100);
  Loader loader(dataset, *faulty_device_, {.batch_size = 8});
  EXPECT_THAT(ways(loader), HasSubstr("x: uint8 4x25, copy-engine gather\ny: int32 scalar, copy-engine"));
  expect_stored(dataset, read_epoch(loader));
  Loader sharded(dataset, *faulty_device_, {.batch_size = 8, .shard = {.rank = 1, .world_size = 2}});
  EXPECT_THAT(ways(sharded), HasSubstr("zero-copy"));
  Loader forced(dataset, *faulty_device_,
                {.batch_size = 8, .shard = {.rank = 1, .world_size = 2}, .gather = GatherPath::copy_engine});
  expect_stored(dataset, read_epoch(forced));
}

TEST_P(LoaderDeviceStaging, WithoutMemoryForStagingItGoesOnWithLess) {
  const Dataset memory = pictures(kLarge);
  const Dataset dataset({as_callback(memory.reader(0)), memory.reader(1)});
  // The budget allows memory that the device does not have.
  faulty_->fail(Entry::device_allocate, 1, 1, [] { throw OutOfMemory("a device", 1, 1, 0); });
  Loader loader(dataset, *faulty_device_, scaled("none", GatherPath::automatic));
  const std::size_t before = faulty_->copied_bytes(CopyDirection::h2d);
  expect_scaled(memory, read_epoch(loader));
  EXPECT_LT(faulty_->copied_bytes(CopyDirection::h2d) - before, 40 * kLarge) << "read by the kernel";
}

TEST_P(LoaderDeviceStaging, PartialResidencyLeavesRoomForStaging) {
  const Dataset dataset = pictures(kLarge, 200);
  faulty_->claim_batched_copies(true);
  for (const GatherPath gather : {GatherPath::automatic, GatherPath::copy_engine}) {
    LoaderOptions options = scaled("auto", gather);
    options.device_budget_bytes = kRing + 120 * kLarge;
    Loader loader(dataset, *faulty_device_, options);
    EXPECT_THAT(ways(loader), HasSubstr("copy-engine"));
    expect_scaled(dataset, read_epoch(loader));
    EXPECT_GT(loader.stats().resident_bytes, 100 * kLarge);
  }
  // Hardly more memory than the staging buffers take. Residency goes first, unless the copy engines were
  // asked for.
  for (const GatherPath gather : {GatherPath::automatic, GatherPath::copy_engine}) {
    LoaderOptions options = scaled("auto", gather);
    options.device_budget_bytes = kRing + kStaging + 4 * kLarge;
    Loader loader(dataset, *faulty_device_, options);
    const bool asked = gather == GatherPath::copy_engine;
    EXPECT_THAT(ways(loader), asked ? HasSubstr("copy-engine") : HasSubstr("no room"));
    expect_scaled(dataset, read_epoch(loader));
    EXPECT_NEAR(static_cast<double>(loader.stats().resident_bytes) / kLarge, asked ? 4 : 20, 1);
  }
}

TEST_P(LoaderDeviceStaging, AskedForEverywhereItGoesWithAnyBudget) {
  const Dataset dataset({random_field("x", DType::uint8, {3000}, 200, 1)});
  const std::size_t ring = 3 * (align_up(16 * 3000, 256) + align_up(16 * 8, 256));
  for (const std::size_t beside : {0U, 3072U, 20000U, 96000U, 200000U, 700000U}) {
    SCOPED_TRACE(beside);
    Loader loader(dataset, *faulty_device_,
                  {.batch_size = 16,
                   .shuffle = true,
                   .residency = Residency::parse("auto"),
                   .gather = GatherPath::copy_engine,
                   .device_budget_bytes = ring + beside});
    expect_stored(dataset, read_epoch(loader));
  }
}

TEST_P(LoaderDeviceStaging, NoRoomIsLeftForWhatNeverLands) {
  const Dataset dataset({random_field("x", DType::uint8, {3000}, 2000, 1)});
  for (const GatherPath gather : {GatherPath::automatic, GatherPath::zero_copy}) {
    LoaderOptions options{
        .batch_size = 200, .shuffle = true, .residency = Residency::parse("auto"), .gather = gather};
    const std::size_t ring = 3 * (align_up(200 * 3000, 256) + align_up(200 * 8, 256));
    options.device_budget_bytes = ring + 5000000;
    Loader loader(dataset, *faulty_device_, options);
    expect_stored(dataset, read_epoch(loader));
    EXPECT_GT(loader.stats().resident_bytes, 4990000U);
  }
}

}  // namespace
}  // namespace penstock::testing
