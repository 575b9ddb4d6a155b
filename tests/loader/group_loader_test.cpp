#include "loader/batch_parts.hpp"
#include "loader/destination_fixture.hpp"
#include "support/gate.hpp"

#include <penstock/data/rows.hpp>

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

namespace penstock::testing {
namespace {

TEST(BatchSplit, CoversEachBatchOnceAndKeepsToItsLimits) {
  for (const std::vector<double>& weights :
       {std::vector<double>{1}, {1, 1}, {3, 1}, {1, 1, 1}, {0, 5}, {1e-9, 1, 2, 1e9}}) {
    const BatchSplit split(weights);
    for (std::uint64_t samples = 0; samples < 300; ++samples) {
      std::uint64_t end = 0;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const BatchSplit::Part part = split.part(samples, i);
        EXPECT_EQ(part.begin, end);
        end = part.begin + part.count;
        EXPECT_LE(part.count, split.largest(300, i));
        if (samples > 0) {
          EXPECT_LE(part.count, split.largest(samples, i));
        }
        EXPECT_LE(split.largest(split.batch_of(samples), i), samples);
      }
      EXPECT_EQ(end, samples);
    }
  }
  EXPECT_EQ(BatchSplit({3, 1}).part(100, 0).count, 75u);
}

TEST(BatchSplit, GivesTheSamplesOfSmallBatchesToTheNearest) {
  EXPECT_EQ(BatchSplit({2, 1}).part(1, 0).count, 1u);
  EXPECT_EQ(BatchSplit({1, 2}).part(1, 1).count, 1u);
  EXPECT_EQ(BatchSplit({98, 100}).part(16, 0).count, 8u);
}

TEST(BatchSplit, SaysHowLargeABatchMayBe) {
  EXPECT_EQ(BatchSplit({1, 1, 1}).batch_of(5), 15u);
  EXPECT_EQ(BatchSplit({1, 2, 1}).batch_of(5), 10u);
  EXPECT_EQ(BatchSplit({1, 3}).batch_of(1), 1u);
}

TEST(BatchSplit, IsEvenIfAllWeightsAreOne) {
  EXPECT_TRUE(BatchSplit({3, 3, 3}).is_even());
  EXPECT_FALSE(BatchSplit({2, 1, 3}).is_even());
}

TEST(BatchSplit, GivesNothingToAWeightOfNothing) {
  const BatchSplit split({1, 0, 1});
  EXPECT_EQ(split.part(100, 1).count, 0u);
  EXPECT_EQ(split.largest(100, 1), 0u);
}

TEST(BatchShares, AreTheSameForAllWhoAskAndGrowForTheReceiverIfOthersGiveWay) {
  BatchShares shares({1, 2, 1}, 0);
  const auto counts = [&](std::uint64_t batch) {
    std::vector<std::uint64_t> all;
    for (std::size_t i = 0; i < 3; ++i) {
      all.push_back(shares.of(batch).part(96, i).count);
      EXPECT_LE(all.back(), shares.largest(96, i));
    }
    return all;
  };
  using Counts = std::vector<std::uint64_t>;
  EXPECT_EQ(counts(2), (Counts{24, 48, 24}));
  shares.set_gives_way(1, true);
  EXPECT_EQ(counts(1), (Counts{24, 48, 24})) << "it was fixed with batch 2";
  std::uint64_t probes = 0;
  for (std::uint64_t batch = 3; batch < 3 + 2 * BatchShares::kBatchesToAProbe; ++batch) {
    const Counts all = counts(batch);
    EXPECT_EQ(counts(batch), all);
    if (all[1] == 0) {
      EXPECT_EQ(all, (Counts{48, 0, 48}));
    } else {
      EXPECT_EQ(all, (Counts{24, 48, 24}));
      EXPECT_GE(batch, 3 + BatchShares::kBatchesToAProbe - 1);
      ++probes;
    }
    shares.set_gives_way(1, true);  // as before
    shares.forget_before(batch);
  }
  EXPECT_EQ(probes, 2u);
  shares.set_gives_way(2, true);
  EXPECT_EQ(counts(40), (Counts{96, 0, 0}));
  shares.set_gives_way(1, false);
  EXPECT_EQ(counts(41)[1], 64u);
  shares.restart();
  EXPECT_EQ(counts(0)[1], 64u);
  shares.set_gives_way(2, false);
  EXPECT_EQ(shares.largest(96, 0), 96u);
  EXPECT_EQ(shares.largest(96, 1), 64u);
  shares.leave_out(1);
  EXPECT_EQ(counts(1), (Counts{48, 0, 48}));
  EXPECT_EQ(BatchShares({1, 1}).largest(96, 0), 48u) << "where nobody gives way";
}

TEST(PartSampler, EndsForEachBatchWithoutAPart) {
  const Sampler threes(10, {.batch_size = 3});  // 3, 3, 3 and 1
  std::vector<std::vector<std::uint64_t>> has(2);
  const auto shares = std::make_shared<BatchShares>(std::vector<double>{1, 2});
  for (std::size_t i = 0; i < 2; ++i) {
    PartSampler sampler(threes, nullptr, shares, i);
    std::vector<std::uint64_t> indices;
    for (int turn = 0; turn < 5; ++turn) {
      indices.clear();
      has[i].push_back(sampler.next(indices) ? indices.size() : 0);
    }
    sampler.go_to(threes);
    EXPECT_TRUE(sampler.next(indices));
    EXPECT_EQ(indices.front(), i == 0 ? 0u : 1u);
  }
  EXPECT_EQ(has[0], (std::vector<std::uint64_t>{1, 1, 1, 0, 1}));
  EXPECT_EQ(has[1], (std::vector<std::uint64_t>{2, 2, 2, 1, 2}));
}

class GroupLoaderTest : public DestinationTest {};
PENSTOCK_GROUP_SUITE(GroupLoaderTest);

TEST_P(GroupLoaderTest, SamplesWithGapsBetweenThemAreCopiedOnce) {
  constexpr std::size_t kSamples = 203;
  const auto matrix = random_field("matrix", DType::int64, {40}, kSamples, 4);
  const auto columns = [&](std::string name, std::size_t first, std::size_t wide) {
    const Field field{.name = std::move(name), .dtype = DType::int64, .shape = {wide}};
    return read_strided(field, matrix->memory().subspan(first * 8, (kSamples - 1) * 320 + wide * 8), 320,
                        matrix);
  };
  const Dataset data({columns("wide", 3, 30), columns("a", 0, 1), columns("b", 39, 1)});
  LoaderOptions options{.batch_size = 20, .shuffle = true, .seed = 7, .narrow = false};
  Loader loader(data, group(), options);
  EXPECT_FALSE(loader.dataset().is_strided(0)) << "each member would copy it";
  EXPECT_TRUE(loader.dataset().is_strided(1));
  Sampler sampler = sampler_of(data, options);
  expect_rest(data, sampler, read_epoch(loader));
}

TEST_P(GroupLoaderTest, EachByteCrossesOneLink) {
  const std::size_t samples = 4000;
  const Dataset data({random_field("images", DType::uint8, {64}, samples, 1)});
  Loader loader(data, group(), {.batch_size = 40, .gather = GatherPath::host});
  ASSERT_EQ(read_epoch(loader).size(), 100u);
  std::size_t crossed = 0;
  for (std::size_t i = 0; i < size(); ++i) {
    const std::size_t own = loader.member_stats(i).link_bytes;
    EXPECT_GE(own, samples * 64 / size() * 9 / 10);
    crossed += own;
  }
  // Some batches of the next epoch are read ahead.
  EXPECT_GE(crossed, samples * 64);
  EXPECT_LE(crossed, samples * 64 * 11 / 10);
  const FeedStatistics statistics = loader.stats();
  EXPECT_EQ(statistics.batches, 100u);
  EXPECT_EQ(statistics.samples, samples);
  EXPECT_EQ(statistics.delivered_bytes, samples * 64);
  EXPECT_GE(statistics.link_bytes, crossed);
}

TEST_P(GroupLoaderTest, UnlikeLinksHaveUnlikeParts) {
  const Dataset data({random_field("images", DType::uint8, {64}, 1200, 1)});
  const LoaderOptions options{.batch_size = 120, .shuffle = true, .gather = GatherPath::host};
  GroupLinks links{.measured = GroupProfile::named_after(group())};
  for (GroupProfile::Member& member : links.measured->members) member.link = 1e9;
  links.measured->members[0].link = 3e9;
  links.measured->replicated = 1e9;
  links.measured->fed_once = 2e9;
  const auto ratio = [&] {
    Loader loader(data, Destination(group(), links), options);
    Sampler sampler = sampler_of(data, options);
    expect_rest(data, sampler, read_epoch(loader));
    return static_cast<double>(loader.member_stats(0).link_bytes) /
           static_cast<double>(loader.member_stats(1).link_bytes);
  };
  EXPECT_GT(ratio(), 2.0);
  links.measured->fed_once = 1e9;  // feeding once does not pay
  Loader loader(data, Destination(group(), links), options);
  Sampler sampler = sampler_of(data, options);
  expect_rest(data, sampler, read_epoch(loader));
  for (std::size_t i = 0; i < size(); ++i) EXPECT_GE(loader.member_stats(i).link_bytes, 1200u * 64);
  links.measured->members.pop_back();
  EXPECT_THROW(Loader(data, Destination(group(), links), options), InvalidArgument);
}

// Member 0 has the batch, and the last member's slots are all held.
TEST_P(GroupLoaderTest, ABatchThatSomeHaveIsDroppedIfTheLoaderGoesElsewhere) {
  const Dataset data = dataset();
  const LoaderOptions options{
      .batch_size = 10, .prefetch_depth = 1, .ring_grows = false, .when_full = WhenFull::fail};
  Loader loader(data, group(), options);
  std::vector<DeviceBatch> kept;
  for (int i = 0; i < 2; ++i) kept.push_back(std::move(loader.next(streams_)->back()));
  EXPECT_THROW((void)loader.next(streams_), OutOfMemory);
  EXPECT_EQ(loader.state().consumed, 20u);
  kept.clear();
  loader.start_epoch(3);
  Sampler sampler = sampler_of(data, options);
  sampler.start_epoch(3);
  expect_rest(data, sampler, read_epoch(loader));
}

/// One batch is held on all members, and the next one on the last alone, whose slots are then all held. A
/// call of next() has a batch of the others, which have no further slot either, and waits for the last one's.
TEST_P(GroupLoaderTest, ABatchThatSomeHaveKeepsNoSlotFromTheNewPlace) {
  const Dataset data = dataset();
  const LoaderOptions options{.batch_size = 10, .prefetch_depth = 1, .ring_grows = false};
  struct GiveUp {};
  for (const bool goes_on : {false, true}) {  // next() goes on while the loader goes elsewhere
    Loader loader(data, group(), options);
    std::vector<DeviceBatch> held = *loader.next(streams_);
    DeviceBatch last = std::move(loader.next(streams_)->back());
    std::promise<void> waits;
    std::atomic<int> questions{0};
    auto asking = std::async(std::launch::async, [&] {
      return loader.next(streams_, [&] {
        if (questions++ == 1) waits.set_value();
        if (questions == 200 || (!goes_on && questions == 2)) throw GiveUp{};
      });
    });
    waits.get_future().wait();
    if (!goes_on) {
      EXPECT_THROW((void)asking.get(), GiveUp);
    }
    loader.start_epoch(3);
    last.release();
    held.back().release();
    questions = 2;
    if (!goes_on) {
      asking = std::async(std::launch::async, [&] {
        return loader.next(streams_, [&] {
          if (++questions == 200) throw GiveUp{};
        });
      });
    }
    const auto batches = asking.get();
    std::vector<std::uint64_t> indices(10);
    std::iota(indices.begin(), indices.end(), 0);
    expect_batch(data, read(*batches), 3, 0, indices);
  }
}

TEST_P(GroupLoaderTest, GoesElsewhereAndClosesBeforeAllResidentSamplesAreThere) {
  constexpr std::size_t kSample = std::size_t{8} << 20;  // a chunk of the fill
  constexpr std::size_t kSamples = 12;
  std::atomic<std::size_t> reads{0};
  std::atomic<bool> is_ready{false};
  std::atomic<bool> is_done{false};
  const auto read_slowly = [&](std::uint64_t, std::span<std::byte> to) {
    if (!is_done) ++reads;
    is_ready.wait(false);
    for (int i = 0; i < 200 && !is_done; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return to.size();
  };
  const Dataset data(
      {read_callback({.name = "slow", .dtype = DType::uint8, .shape = {kSample}}, kSamples, read_slowly)});
  for (const bool closes : {false, true}) {
    reads = 0;
    is_ready = is_done = false;
    Loader loader(data, group(),
                  {.batch_size = 1,
                   .residency = Residency::parse("all"),
                   .device_budget_bytes = std::size_t{220} << 20});
    while (reads == 0) std::this_thread::yield();
    is_ready = true;
    is_ready.notify_all();
    if (closes) {
      loader.close();
    } else {
      loader.start_epoch(1);
    }
    is_done = true;
    EXPECT_LT(reads, kSamples * size());
  }
}

TEST_P(GroupLoaderTest, ABatchThatStaysIsThereOnOtherStreams) {
  const Dataset data = dataset();
  Loader loader(data, group(),
                {.batch_size = 10, .prefetch_depth = 1, .ring_grows = false, .when_full = WhenFull::fail});
  std::vector<DeviceBatch> kept;
  for (int i = 0; i < 2; ++i) kept.push_back(std::move(loader.next(streams_)->back()));
  EXPECT_THROW((void)loader.next(streams_), OutOfMemory);
  kept.clear();
  const std::vector<Stream> before = std::exchange(streams_, {});
  for (const Device& device : plain_) streams_.push_back(device.create_stream());
  std::vector<std::uint64_t> indices(10);
  std::iota(indices.begin(), indices.end(), 20);
  expect_batch(data, read(*loader.next(streams_)), 0, 2, indices);
}

// What members had read ahead for the place before is not taken for the new one.
TEST_P(GroupLoaderTest, AFailureOfTheFirstBatchLeavesNoPartsOfIt) {
  const Dataset data = dataset();
  const LoaderOptions options{.batch_size = 20, .shuffle = true};
  for (std::size_t nth = 1; nth < 12; ++nth) {
    faulty_[0]->fail(Entry::stream_wait_event, nth);
    Loader loader(data, group(), options);
    const auto go_on = [&] {
      for (int i = 0; i < 30; ++i) {
        if (const auto batches = loader.next(streams_)) (void)read(*batches);
      }
    };
    EXPECT_THROW(go_on(), DeviceError) << nth;
    faulty_[0]->heal();
    loader.start_epoch(5);
    Sampler sampler = sampler_of(data, options);
    sampler.start_epoch(5);
    expect_rest(data, sampler, read_epoch(loader));
  }
}

TEST_P(GroupLoaderTest, MembersThatDoNotReachEachOtherPullForThemselves) {
  const Dataset data = dataset();
  const LoaderOptions options{.batch_size = 25, .shuffle = true};
  faulty_.back()->fail(Entry::enable_peer, 1);
  Loader loader(data, group(), options);
  Sampler sampler = sampler_of(data, options);
  expect_rest(data, sampler, read_epoch(loader));
  EXPECT_GE(loader.member_stats(size() - 1).samples, data.sample_count());
}

TEST_P(GroupLoaderTest, RefusesWhatHasNoMeaning) {
  const Dataset data = dataset();
  EXPECT_THROW(Loader(data, group(), {.data_may_change = true}), InvalidArgument);
  GroupLinks links;
  links.profiles.resize(size() + 1);
  EXPECT_THROW(Destination(group(), links), InvalidArgument);
  Loader loader(data, group(), {.batch_size = 4});
  EXPECT_THROW((void)loader.next(std::span(streams_).first(1)), InvalidArgument);
  EXPECT_EQ(loader.describe().size(), 4u);
}

}  // namespace
}  // namespace penstock::testing
