#include "data/cold_file.hpp"
#include "data/slow_disk.hpp"
#include "data/support.hpp"
#include "loader/listed_batches.hpp"
#include "loader/loader_fixture.hpp"

#include <memory>
#include <utility>

/// Samples of a file that are read past the page cache, also those of batches that come later.
namespace penstock::testing {
namespace {

class LoaderOnDisk : public LoaderTest {
 protected:
  static constexpr std::size_t kSample = std::size_t{256} << 10;
  static constexpr std::size_t kSamples = 272;  // a file of less than 64 MiB is not looked at
  static constexpr std::uint64_t kBatch = 8;
  static constexpr long kBatches = kSamples / kBatch;

  void SetUp() override {
    LoaderTest::SetUp();
    if (IsSkipped()) return;
    content_ = random_bytes(kSamples * kSample, 7);
    path_ = directory_.write("x.bin", content_);
    PENSTOCK_MAKE_COLD(path_);
  }

  [[nodiscard]] Loader loader(LoaderOptions options) const {
    FileOptions mapped;
    mapped.load_limit = 0;
    options.batch_size = kBatch;
    options.memory_bytes = 1 << 20;
    options.threads = 1;
    const Field field{.name = "x", .dtype = DType::uint8, .shape = {kSample}};
    return {Dataset({read_raw(path_, field, 0, mapped)}), *device_, std::move(options)};
  }

  /// The samples of a batch, whose bytes are those of the file.
  std::vector<std::uint64_t> expect_bytes(const DeviceBatch& batch) {
    const HostBatch got = read(batch);
    EXPECT_EQ(first_difference(got.fields[0], test::pick(content_, kSample, got.indices)), -1)
        << "batch " << got.index;
    return got.indices;
  }
  /// The samples of the rest of the epoch, as at most `most` batches.
  Batches expect_batches(Loader& loader, std::size_t most = kSamples) {
    Batches batches;
    while (batches.size() < most) {
      const auto batch = loader.next(*stream_);
      if (!batch) break;
      batches.push_back(expect_bytes(*batch));
    }
    return batches;
  }

  test::TempDirectory directory_;
  std::filesystem::path path_;
  std::vector<std::byte> content_;
  test::OneByOne disk_;
};
PENSTOCK_DEVICE_SUITE(LoaderOnDisk);

TEST_P(LoaderOnDisk, ReadsLaterBatchesWhileTheLastReadsOfOneAreUnderWay) {
  Loader shuffled = loader({.shuffle = true});
  EXPECT_EQ(expect_batches(shuffled).size(), kBatches);
  EXPECT_LT(disk_.drained(), kBatches) << "at the end of each batch";
}

TEST_P(LoaderOnDisk, ReadsLaterBatchesOfASamplerThatDrewThem) {
  Batches drawn(kBatches);
  for (std::size_t i = 0; i < kSamples; ++i) drawn[i % kBatches].push_back(i);
  drawn[3] = {5};
  Loader sampled = loader({.batch_sampler = std::make_shared<ListedBatches>(
                               std::map<std::uint64_t, Batches>{{0, drawn}, {1, {{9, 9}, {8}}}})});
  EXPECT_EQ(expect_batches(sampled), drawn);
  EXPECT_LT(disk_.drained(), kBatches);
  EXPECT_EQ(expect_batches(sampled), (Batches{{9, 9}, {8}}));
}

TEST_P(LoaderOnDisk, RaisesTheErrorsOfASamplerInTheirTurn) {
  Batches whole(5);
  for (std::size_t i = 0; i < 5 * kBatch; ++i) whole[i % 5].push_back(i);
  for (const std::vector<std::uint64_t>& wrong :
       {std::vector<std::uint64_t>{1, std::uint64_t{1} << 40}, std::vector<std::uint64_t>(4096, 1)}) {
    std::map<std::uint64_t, Batches> epochs{{0, whole}};
    epochs[0].push_back(wrong);
    Loader sampled =
        loader({.batch_sampler = std::make_shared<ListedBatches>(std::move(epochs)), .prefetch_depth = 8});
    EXPECT_EQ(expect_batches(sampled, 5), whole);
    EXPECT_THROW(static_cast<void>(sampled.next(*stream_)), InvalidArgument);
    sampled.start_epoch(0);
    EXPECT_EQ(expect_batches(sampled, 5), whole);
  }
}

TEST_P(LoaderOnDisk, GoesToAnotherPlaceWhileLaterBatchesAreRead) {
  Loader shuffled = loader({.shuffle = true, .seed = 3});
  const Batches first = expect_batches(shuffled, 2);
  const SamplerState state = shuffled.state();
  const Batches rest = expect_batches(shuffled);
  shuffled.start_epoch(2);
  for (int round = 0; round < 5; ++round) {
    EXPECT_EQ(expect_batches(shuffled, 1).size(), 1u);
    shuffled.restore(state);
    EXPECT_EQ(expect_batches(shuffled, 3), Batches(rest.begin(), rest.begin() + 3));
    shuffled.start_epoch(0);
    EXPECT_EQ(expect_batches(shuffled, 2), first);
  }
  EXPECT_EQ(expect_batches(shuffled), rest);
}

TEST_P(LoaderOnDisk, EndsTheReadsOfLaterBatchesAsItCloses) {
  Loader shuffled = loader({.shuffle = true});
  EXPECT_EQ(expect_batches(shuffled, 2).size(), 2u);
  shuffled.close();
  EXPECT_EQ(disk_.under_way(), 0);
}

TEST_P(LoaderOnDisk, EndsTheReadsOfLaterBatchesWithTheEpoch) {
  Loader shuffled = loader({.shuffle = true});
  EXPECT_EQ(expect_batches(shuffled, 2).size(), 2u);
  shuffled.start_epoch(1);
  EXPECT_EQ(disk_.under_way(), 0);
  EXPECT_EQ(expect_batches(shuffled, 2).size(), 2u);
  shuffled.leave_epoch();
  EXPECT_EQ(disk_.under_way(), 0);
}

TEST_P(LoaderOnDisk, GoesOnAfterAnErrorOfABatch) {
  Loader in_order = loader({});
  expect_batches(in_order, 1);
  std::filesystem::resize_file(path_, 20 * kBatch * kSample + 1);
  test::expect_error<Error>([&] { expect_batches(in_order); },
                            {"x.bin", "cut short", "sample 16", "of field 'x'"});
  std::filesystem::resize_file(path_, content_.size());
  content_.resize(20 * kBatch * kSample + 1);
  content_.resize(kSamples * kSample);
  in_order.start_epoch(1);
  EXPECT_EQ(expect_batches(in_order).size(), kBatches);
}

}  // namespace
}  // namespace penstock::testing
