#include "loader/group_loader_fixture.hpp"
#include "loader/listed_batches.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <stdexcept>

/// Batches that a sampler from outside chooses, on all devices of a group.
namespace penstock::testing {
namespace {

using Epochs = std::map<std::uint64_t, Batches>;

class GroupSamplerTest : public GroupLoaderTest {
 protected:
  static LoaderOptions options(std::shared_ptr<BatchSampler> sampler, std::size_t depth = 2) {
    return {.batch_size = 16,
            .batch_sampler = std::move(sampler),
            .prefetch_depth = depth,
            .copy_limit_bytes = 0,
            .threads = 2};
  }
  static void expect_batches(const Dataset& data, std::uint64_t epoch, const std::vector<HostBatches>& got,
                             const Batches& wanted) {
    ASSERT_EQ(got.size(), wanted.size());
    for (std::size_t i = 0; i < got.size(); ++i) expect_batch(data, got[i], epoch, i, wanted[i]);
  }
};
PENSTOCK_GROUP_SUITE(GroupSamplerTest);

TEST_P(GroupSamplerTest, EveryMemberGetsTheChosenSamples) {
  const Dataset data = dataset(kListedSamples);
  for (const std::size_t depth : {1U, 2U, 5U}) {
    for (const std::size_t most : {1U, 16U}) {
      const auto first = random_batches(9, most, 1);
      const auto second = random_batches(4, most, 2);
      const auto sampler = std::make_shared<ListedBatches>(Epochs{{0, first}, {1, second}});
      Loader loader(data, group(), options(sampler, depth));
      EXPECT_EQ(loader.batches_per_epoch(), 0U);
      expect_batches(data, 0, read_epoch(loader), first);
      EXPECT_EQ(sampler->begun, std::vector<std::uint64_t>{0}) << "the next epoch has not been asked for";
      EXPECT_EQ(loader.state().epoch, 1U);
      EXPECT_EQ(loader.state().consumed, 0U);
      expect_batches(data, 1, read_epoch(loader), second);
      EXPECT_TRUE(read_epoch(loader).empty());
      EXPECT_EQ(sampler->begun, (std::vector<std::uint64_t>{0, 1, 2}));
      EXPECT_EQ(sampler->threads, std::set<pid_t>{this_thread()});
    }
  }
}

TEST_P(GroupSamplerTest, AReceiverGetsTheChosenSamplesOverAllLinks) {
  const Dataset data = dataset(kListedSamples);
  const auto chosen = random_batches(9, 16, 3);
  const auto sampler = std::make_shared<ListedBatches>(Epochs{{0, chosen}});
  Loader loader(data, Destination::relayed(group()), options(sampler));
  std::vector<HostBatches> got;
  while (const auto batch = loader.next(std::span(streams_).first(1))) got.push_back(read(*batch));
  expect_batches(data, 0, got, chosen);
}

TEST_P(GroupSamplerTest, BatchesAheadAreMadeWhileNobodyAsks) {
  std::atomic<std::size_t> read{0};
  const Dataset data({read_callback({.name = "x", .dtype = DType::uint8, .shape = {1}}, kListedSamples,
                                    [&](std::uint64_t, std::span<std::byte> sample) {
                                      ++read;
                                      read.notify_all();
                                      return sample.size();
                                    })});
  Batches chosen(40, std::vector<std::uint64_t>(size(), 5));  // each member has one sample of each
  const auto sampler = std::make_shared<ListedBatches>(Epochs{{0, chosen}});
  Loader loader(data, group(), options(sampler, 3));
  for (std::size_t taken = 1; taken <= 30; ++taken) {
    EXPECT_TRUE(loader.next(streams_));
    EXPECT_EQ(sampler->drawn, taken + 3) << "as on one device";
    const std::size_t wanted = size() * (taken + 3);
    for (std::size_t seen = read; seen < wanted; seen = read) read.wait(seen);
  }
}

TEST_P(GroupSamplerTest, AnEpochThatIsLeftIsDropped) {
  const auto first = random_batches(9, 16, 4);
  const auto third = random_batches(5, 16, 5);
  const auto sampler = std::make_shared<ListedBatches>(Epochs{{0, first}, {2, third}});
  const Dataset data = dataset(kListedSamples);
  Loader loader(data, group(), options(sampler));
  loader.start_epoch(0);
  EXPECT_TRUE(sampler->begun.empty()) << "it comes next anyway";
  EXPECT_TRUE(loader.next(streams_));
  EXPECT_EQ(loader.state().consumed, 1U);
  EXPECT_THROW(loader.restore(loader.state()), InvalidArgument);
  loader.start_epoch(1);
  EXPECT_FALSE(loader.next(streams_));
  loader.start_epoch(0);
  EXPECT_TRUE(loader.next(streams_));
  loader.start_epoch(2);
  expect_batches(data, 2, read_epoch(loader), third);
  loader.start_epoch(0);
  expect_batches(data, 0, read_epoch(loader), first);
  EXPECT_EQ(sampler->begun, (std::vector<std::uint64_t>{0, 1, 0, 2, 0}));
}

TEST_P(GroupSamplerTest, ItsErrorsComeInTheirPlace) {
  const auto chosen = random_batches(9, 16, 6);
  const Dataset data = dataset(kListedSamples);
  for (const std::size_t good : {0U, 1U, 5U}) {
    const auto sampler = std::make_shared<ListedBatches>(Epochs{{0, chosen}});
    sampler->fails_at = good + 1;
    Loader loader(data, group(), options(sampler));
    for (std::size_t i = 0; i < good; ++i) {
      const auto batch = loader.next(streams_);
      ASSERT_TRUE(batch);
      EXPECT_EQ(batch->back().indices(), chosen[i]);
    }
    EXPECT_THROW((void)loader.next(streams_), std::runtime_error);
    EXPECT_THROW((void)loader.next(streams_), std::runtime_error) << "until an epoch is begun";
    loader.start_epoch(0);
    expect_batches(data, 0, read_epoch(loader), chosen);
  }
}

TEST_P(GroupSamplerTest, AnInterruptionIsThrownAtOnceAndNothingIsLost) {
  const Dataset data = dataset(kListedSamples);
  Loader loader(data, group(), options(std::make_shared<InterruptedBatches>()));
  EXPECT_THROW((void)loader.next(streams_), BatchSampler::Interrupted) << "the second batch is drawn ahead";
  expect_batches(data, 0, read_epoch(loader), {{0}, {1}, {2}, {3}});
}

TEST_P(GroupSamplerTest, WhoeverWaitsGetsTheEpochThatAnotherThreadBegins) {
  Hold hold;
  const Dataset data = dataset(kListedSamples);
  Loader loader(data, group(), options(std::make_shared<HeldBatches>(hold)));
  std::optional<std::vector<DeviceBatch>> batch;
  Background waiting([&] { batch = loader.next(streams_); });
  hold.wait_for(1);
  Background starting([&] { loader.start_epoch(5); });
  starting.wait_until_stuck();
  hold.let_go();
  starting.join();
  waiting.join();
  ASSERT_TRUE(batch);
  EXPECT_TRUE((*batch)[0].epoch() == 0 || (*batch)[0].epoch() == 5);
  EXPECT_EQ((*batch)[0].indices(), std::vector<std::uint64_t>{(*batch)[0].epoch()});
  EXPECT_EQ((*loader.next(streams_))[0].epoch(), 5U);
}

/// Waits until a group's thread stays asleep.
void wait_until_it_sleeps() {
  const auto waits = [](pid_t thread) { return name_of(thread) == "penstock-group" && is_asleep(thread); };
  for (int asleep = 0; asleep < 50; ++asleep) {
    if (std::ranges::none_of(live_threads(), waits)) asleep = 0;
  }
}

TEST_P(GroupSamplerTest, ClosesWhileNothingIsDrawn) {
  const Dataset data = dataset(kListedSamples);
  Loader loader(data, group(), options(std::make_shared<ListedBatches>(Epochs{})));
  wait_until_it_sleeps();
  loader.close();
  EXPECT_THROW((void)loader.next(streams_), Closed);
}

TEST_P(GroupSamplerTest, ClosesWhilePartsAheadAreNotDrawn) {
  const Dataset data = dataset(kListedSamples);
  Loader loader(data, group(),
                options(std::make_shared<ListedBatches>(Epochs{{0, random_batches(20, 16, 9)}})));
  EXPECT_TRUE(loader.next(streams_));
  wait_until_it_sleeps();
  loader.close();
  EXPECT_THROW((void)loader.next(streams_), Closed);
}

TEST_P(GroupSamplerTest, RefusesWhatTheSamplerDecides) {
  const Dataset data = dataset(kListedSamples);
  LoaderOptions shuffled = options(std::make_shared<ListedBatches>(Epochs{}));
  shuffled.shuffle = true;
  EXPECT_THROW(Loader(data, group(), shuffled), InvalidArgument);
  Batches far{{kListedSamples}};
  Loader loader(data, group(), options(std::make_shared<ListedBatches>(Epochs{{0, far}})));
  EXPECT_THROW((void)loader.next(streams_), InvalidArgument);
}

/// Arrays that the program writes to between epochs.
class GroupChangingDataTest : public GroupSamplerTest {
 protected:
  void write(std::uint64_t epoch) { std::ranges::copy(random_bytes(bytes_.size(), epoch), bytes_.begin()); }
  [[nodiscard]] Dataset images(bool copied) const {
    const Field field{.name = "images", .dtype = DType::uint8, .shape = {kPixels}};
    return copied ? Dataset({read_array(field, bytes_)}) : Dataset({read_array(field, bytes_, nullptr)});
  }
  static LoaderOptions options_of(GatherPath gather) {
    LoaderOptions all = options(std::make_shared<TwiceInOrder>(kListedSamples));
    all.gather = gather;
    all.data_may_change = true;
    return all;
  }

  static constexpr std::size_t kPixels = 300;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(kListedSamples * kPixels);
};
PENSTOCK_GROUP_SUITE(GroupChangingDataTest);

TEST_P(GroupChangingDataTest, EachEpochGivesWhatTheArraysHold) {
  for (const GatherPath gather : {GatherPath::automatic, GatherPath::host, GatherPath::copy_engine}) {
    write(0);
    Loader loader(images(false), group(), options_of(gather));
    for (std::uint64_t epoch = 1; epoch <= 3; ++epoch) {
      const auto got = read_epoch(loader);
      ASSERT_EQ(got.size(), (2 * kListedSamples + 15) / 16);
      for (std::size_t i = 0; i < got.size(); ++i) {
        expect_batch(loader.dataset(), got[i], epoch - 1, i, got[i][0].indices);
      }
      loader.synchronize();
      write(epoch);
    }
  }
}

TEST_P(GroupChangingDataTest, AnEpochThatIsLeftReadsNothingMore) {
  for (int turn = 0; turn < 5; ++turn) {
    write(0);
    Loader loader(images(false), group(), options_of(GatherPath::automatic));
    const Dataset before = images(true);
    const auto held = loader.next(streams_);
    loader.start_epoch(1);
    loader.synchronize();
    write(1);
    ASSERT_TRUE(held);
    const HostBatches first = read(*held);
    expect_batch(before, first, 0, 0, first[0].indices);
    const auto next = loader.next(streams_);
    const HostBatches second = read(*next);
    expect_batch(loader.dataset(), second, 1, 0, second[0].indices);
  }
}

}  // namespace
}  // namespace penstock::testing
