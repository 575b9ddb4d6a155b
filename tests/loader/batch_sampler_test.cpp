#include "loader/drawn_batches.hpp"
#include "loader/listed_batches.hpp"
#include "loader/loader_fixture.hpp"
#include "support/threads.hpp"

#include <penstock/data/batch_sampler.hpp>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

/// Batches that a sampler from outside chooses.
namespace penstock::testing {
namespace {

/// Batches of one epoch, the first.
std::shared_ptr<ListedBatches> listed(Batches batches) {
  return std::make_shared<ListedBatches>(std::map<std::uint64_t, Batches>{{0, std::move(batches)}});
}

class BatchSamplerTest : public LoaderTest {
 protected:
  static Dataset dataset() {
    return Dataset({random_field("images", DType::uint8, {3, 5, 7}, kListedSamples, 1),
                    random_field("labels", DType::int64, {}, kListedSamples, 2)});
  }
  /// Of batches of at most 16 samples.
  Loader make_loader(std::shared_ptr<BatchSampler> sampler, const Dataset& data,
                     GatherPath gather = GatherPath::automatic, const char* residency = "none") {
    return Loader(data, *device_,
                  {.batch_size = 16,
                   .batch_sampler = std::move(sampler),
                   .residency = Residency::parse(residency),
                   .gather = gather,
                   .copy_limit_bytes = 0,
                   .threads = 2});
  }
  void expect_batches(const Dataset& data, const std::vector<HostBatch>& got, const Batches& wanted) {
    ASSERT_EQ(got.size(), wanted.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].indices, wanted[i]);
      EXPECT_EQ(got[i].index, i);
    }
    expect_stored(data, got);
  }
  /// Batches that make_loader's Loader cannot feed, and a part of what it says.
  static std::vector<std::pair<std::vector<std::uint64_t>, std::string>> unfit_batches() {
    return {{{}, "empty batch"},
            {std::vector<std::uint64_t>(17), "17 samples, and the loader's batch size is 16"},
            {{3, kListedSamples, 1}, "the index 97, and there are 97 samples"}};
  }
  void expect_second_is_refused(Loader& loader, const std::string& text) {
    EXPECT_TRUE(loader.next(*stream_));
    try {
      (void)loader.next(*stream_);
      ADD_FAILURE() << "expected: " << text;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  }
};
PENSTOCK_DEVICE_SUITE(BatchSamplerTest);

TEST_P(BatchSamplerTest, GivesTheChosenSamplesInEveryWay) {
  const Dataset data = dataset();
  for (const GatherPath gather :
       {GatherPath::automatic, GatherPath::host, GatherPath::zero_copy, GatherPath::copy_engine}) {
    for (const char* residency : {"none", "all", "0.4"}) {
      SCOPED_TRACE(std::string(gather_path_name(gather)) + ", " + residency);
      const auto first = random_batches(9, 16, 1);
      const auto second = random_batches(4, 16, 2);
      const auto sampler =
          std::make_shared<ListedBatches>(std::map<std::uint64_t, Batches>{{0, first}, {1, second}});
      Loader loader = make_loader(sampler, data, gather, residency);
      expect_batches(data, read_epoch(loader), first);
      expect_batches(data, read_epoch(loader), second);
    }
  }
}

TEST_P(BatchSamplerTest, BatchesMayBeLargerThanTheDataset) {
  const Dataset data = dataset();
  std::vector<std::uint64_t> all(3 * kListedSamples);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i % kListedSamples;
  Loader loader(data, *device_, {.batch_size = all.size(), .batch_sampler = listed({all})});
  expect_batches(data, read_epoch(loader), {all});
}

TEST_P(BatchSamplerTest, RefusesBatchesThatCannotBeFed) {
  const Dataset data = dataset();
  for (const auto& [indices, text] : unfit_batches()) {
    Loader loader = make_loader(listed({{1}, indices}), data);
    expect_second_is_refused(loader, text);
  }
}

/// Lends batches out of memory that it overwrites once nobody has it.
class LentBatches final : public BatchSampler {
 public:
  explicit LentBatches(Batches batches) : batches_(std::move(batches)) {}
  void start_epoch(std::uint64_t) override { at_ = 0; }
  bool next(std::vector<std::uint64_t>&) override { return false; }
  bool lend(Lent& lent) override {
    if (at_ == batches_.size()) return false;
    auto* const memory = new Batches::value_type(batches_[at_++]);
    lent = {*memory, std::shared_ptr<const void>(memory->data(), [memory, this](const void*) {
              std::ranges::fill(*memory, kListedSamples);
              delete memory;
              ++returned;
            })};
    return true;
  }

  std::atomic<std::size_t> returned = 0;

 private:
  Batches batches_;
  std::size_t at_ = 0;
};

TEST_P(BatchSamplerTest, CopiesIndicesThatAreLent) {
  const Dataset data = dataset();
  const Batches batches = random_batches(30, 16, 11);
  const auto sampler = std::make_shared<LentBatches>(batches);
  Loader loader = make_loader(sampler, data);
  for (std::size_t epoch = 1; epoch <= 2; ++epoch) {
    expect_batches(data, read_epoch(loader), batches);
    EXPECT_EQ(sampler->returned, epoch * batches.size());
  }
}

TEST_P(BatchSamplerTest, RefusesLentBatchesThatCannotBeFed) {
  const Dataset data = dataset();
  for (const auto& [indices, text] : unfit_batches()) {
    const auto sampler = std::make_shared<LentBatches>(Batches{{1}, indices, {2}});
    {
      Loader loader = make_loader(sampler, data);
      expect_second_is_refused(loader, text);
    }
    EXPECT_GE(sampler->returned, 1U);
  }
}

TEST_P(BatchSamplerTest, ThreadsThatShareALoaderGetDifferentBatches) {
  const auto batches = random_batches(60, 16, 8);
  const auto sampler = listed(batches);
  sampler->takes = std::chrono::microseconds(200);
  const Dataset data = dataset();
  Loader loader = make_loader(sampler, data);
  std::mutex mutex;
  std::map<std::uint64_t, std::vector<std::uint64_t>> got;
  {
    std::vector<std::unique_ptr<Background>> threads;
    for (int t = 0; t < 3; ++t) {
      threads.push_back(std::make_unique<Background>([&] {
        const Stream stream = device_->create_stream();
        for (int i = 0; i < 20; ++i) {
          const auto batch = loader.next(stream);
          const std::lock_guard lock(mutex);
          got.emplace(batch->index(), batch->indices());
        }
      }));
    }
  }
  ASSERT_EQ(got.size(), batches.size());
  for (std::size_t i = 0; i < batches.size(); ++i) EXPECT_EQ(got.at(i), batches[i]);
}

TEST_P(BatchSamplerTest, ManyWaitForFewBatches) {
  const Dataset data = dataset();
  for (int round = 0; round < 10; ++round) {
    std::map<std::uint64_t, Batches> epochs;
    for (std::uint64_t epoch = 0; epoch < 12; ++epoch) epochs[epoch] = {{epoch}, {epoch + 50}};
    const auto sampler = std::make_shared<ListedBatches>(epochs);
    sampler->takes = std::chrono::microseconds(100);
    Loader loader = make_loader(sampler, data);
    std::atomic<int> got{0};
    std::vector<Stream> streams;
    for (int t = 0; t < 6; ++t) streams.push_back(device_->create_stream());
    std::vector<std::unique_ptr<Background>> threads;
    threads.reserve(streams.size());
    // Each asks once, so that nobody comes back to draw for the others.
    for (const Stream& stream : streams) {
      threads.push_back(std::make_unique<Background>([&] { got += loader.next(stream) ? 1 : 100; }));
    }
    threads.clear();
    EXPECT_EQ(got, 4 + 2 * 100) << "two epochs of two batches, and their ends";
  }
}

TEST_P(BatchSamplerTest, NothingIsDrawnForAnEpochThatNobodyAsksFor) {
  const auto sampler = listed({{1}, {2}});
  const Dataset data = dataset();
  Loader loader = make_loader(sampler, data);
  EXPECT_TRUE(loader.next(*stream_));
  loader.start_epoch(3);
  EXPECT_EQ(sampler->begun, std::vector<std::uint64_t>{0});
  loader.close();
  EXPECT_THROW((void)loader.next(*stream_), Closed);
  EXPECT_EQ(sampler->begun, std::vector<std::uint64_t>{0});
}

TEST(DrawnBatchesTest, WhatAnEarlierGenerationGaveOutDoesNotCount) {
  const auto sampler = std::make_shared<ListedBatches>(
      std::map<std::uint64_t, Batches>{{0, {{1}, {2}, {3}}}, {4, {{4}, {5}, {6}, {7}}}});
  DrawnBatches drawn(sampler, kListedSamples, 16, 2);
  std::vector<std::uint64_t> indices;
  std::uint64_t generation = 0;
  for (const bool is_end : {false, true}) {
    auto asking = std::make_optional<DrawnBatches::Asking>(drawn);
    ASSERT_TRUE(drawn.wait());
    drawn.take(indices);
    drawn.restart(4, generation + 1);
    asking->has(generation++, is_end);
    asking.reset();
    sampler->drawn = 0;
    const DrawnBatches::Asking again(drawn);
    EXPECT_EQ(sampler->drawn, 2U);
    EXPECT_EQ(sampler->begun.back(), 4U);
  }
}

}  // namespace
}  // namespace penstock::testing
