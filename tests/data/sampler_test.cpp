#include "data/support.hpp"

#include <penstock/data/batch_sampler.hpp>
#include <penstock/data/sampler.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace penstock {
namespace {

using Indices = std::vector<std::uint64_t>;

Indices next_batch(Sampler& sampler) {
  Indices indices(sampler.options().batch_size, ~0ull);
  const std::size_t count = sampler.next(indices);
  for (std::size_t i = count; i < indices.size(); ++i) EXPECT_EQ(indices[i], ~0ull);
  indices.resize(count);
  return indices;
}

std::vector<Indices> rest_of_epoch(Sampler& sampler) {
  std::vector<Indices> batches;
  for (Indices batch = next_batch(sampler); !batch.empty(); batch = next_batch(sampler))
    batches.push_back(batch);
  return batches;
}

Indices flatten(const std::vector<Indices>& batches) {
  Indices all;
  for (const Indices& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

/// `count` samples of the epoch's order over all ranks, from `first` in steps of `stride`.
Indices epoch_order(Sampler sampler, std::uint64_t first, std::uint64_t stride, std::uint64_t count) {
  SampleRun run = sampler.next_run();
  run.first = first;
  run.stride = stride;
  run.count = count;
  Indices order(count);
  run.fill(order);
  return order;
}

Indices epoch_order(const Sampler& sampler) { return epoch_order(sampler, 0, 1, sampler.sample_count()); }

// PyTorch's rules with lists, from its documentation. Pad by repeating the list from its beginning, or cut
// its tail, until it divides evenly. Then take every world_size-th element from the rank on.
Indices deal(Indices order, const Shard& shard) {
  const std::size_t world = shard.world_size;
  if (shard.drop_last) {
    order.resize(order.size() / world * world);
  } else {
    for (std::size_t i = 0; order.size() % world != 0; ++i) order.push_back(order[i]);
  }
  Indices mine;
  for (std::size_t i = shard.rank; i < order.size(); i += world) mine.push_back(order[i]);
  return mine;
}

std::vector<Indices> cut(const Indices& mine, std::size_t batch_size, bool drop_last) {
  std::vector<Indices> batches;
  for (std::size_t i = 0; i < mine.size(); i += batch_size) {
    const std::size_t end = std::min(mine.size(), i + batch_size);
    if (drop_last && end - i < batch_size) break;
    batches.emplace_back(mine.begin() + static_cast<std::ptrdiff_t>(i),
                         mine.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return batches;
}

TEST(Sampler, SequentialGivesTheSamplesInOrder) {
  Sampler sampler(10, {.batch_size = 4});
  EXPECT_EQ(rest_of_epoch(sampler), (std::vector<Indices>{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9}}));
  EXPECT_EQ(next_batch(sampler), Indices{});
}

TEST(Sampler, TellsIndicesThatAreNotBelowACount) {
  constexpr std::uint64_t kHighest = std::uint64_t{1} << 63;
  EXPECT_TRUE(are_below({}, 0));
  for (const std::uint64_t count : {std::uint64_t{1}, std::uint64_t{97}, kHighest}) {
    for (const std::size_t place : {0U, 3U, 6U}) {
      Indices indices(7);
      indices[place] = count - 1;
      EXPECT_TRUE(are_below(indices, count));
      for (const std::uint64_t index : {count, count + 1, kHighest, kHighest + 1, ~std::uint64_t{0}}) {
        indices[place] = index;
        EXPECT_FALSE(are_below(indices, count)) << index << " of " << count;
      }
    }
  }
  EXPECT_FALSE(are_below(Indices{0}, 0));
}

TEST(Sampler, FollowsPyTorchsCounts) {
  // torch.utils.data.DistributedSampler(range(n), num_replicas=w, rank=r, shuffle=False, drop_last=d)
  // of 2.11.
  const auto dealt = [](std::uint64_t n, std::uint64_t world, std::uint64_t rank, bool drop) {
    Sampler sampler(n, {.batch_size = 100, .shard = {rank, world, drop}});
    return next_batch(sampler);
  };
  EXPECT_EQ(dealt(10, 4, 0, false), (Indices{0, 4, 8}));
  EXPECT_EQ(dealt(10, 4, 2, false), (Indices{2, 6, 0}));
  EXPECT_EQ(dealt(10, 4, 3, false), (Indices{3, 7, 1}));
  EXPECT_EQ(dealt(10, 4, 0, true), (Indices{0, 4}));
  EXPECT_EQ(dealt(10, 4, 3, true), (Indices{3, 7}));
  EXPECT_EQ(dealt(12, 4, 1, true), (Indices{1, 5, 9}));
  EXPECT_EQ(dealt(12, 4, 1, false), (Indices{1, 5, 9}));
  EXPECT_EQ(dealt(3, 8, 7, false), (Indices{1}));
  EXPECT_EQ(dealt(1, 5, 4, false), (Indices{0}));
}

TEST(Sampler, DealsAndBatchesAsTheListsDo) {
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 1500; ++trial) {
    SamplerOptions options;
    options.shuffle = random() % 2 == 0;
    options.seed = random();
    options.batch_size = random() % 9 + 1;
    options.drop_last = random() % 2 == 0;
    options.shard.world_size = random() % 7 + 1;
    options.shard.drop_last = random() % 2 == 0;
    const std::uint64_t n = random() % 60 + options.shard.world_size * options.batch_size;
    std::size_t count = 0;
    for (options.shard.rank = 0; options.shard.rank < options.shard.world_size; ++options.shard.rank) {
      Sampler sampler(n, options);
      sampler.start_epoch(static_cast<std::uint64_t>(trial));
      const auto expected =
          cut(deal(epoch_order(sampler), options.shard), options.batch_size, options.drop_last);
      ASSERT_EQ(sampler.batches_per_epoch(), expected.size());
      ASSERT_EQ(sampler.samples_per_epoch(), flatten(expected).size());
      ASSERT_EQ(sampler.batches_left(), expected.size());
      ASSERT_EQ(rest_of_epoch(sampler), expected) << "n " << n << " rank " << options.shard.rank;
      ASSERT_EQ(sampler.batches_left(), 0u);
      ASSERT_EQ(sampler.samples_left(), 0u);
      if (options.shard.rank == 0) count = expected.size();
      ASSERT_EQ(expected.size(), count) << "every rank gets the same number of batches";
    }
  }
}

TEST(Sampler, EachEpochHasItsOwnOrderAndEverySample) {
  Sampler sampler(997, {.shuffle = true, .seed = 3, .batch_size = 64});
  std::set<Indices> orders;
  for (std::uint64_t epoch = 0; epoch < 5; ++epoch) {
    sampler.start_epoch(epoch);
    EXPECT_EQ(sampler.epoch(), epoch);
    Indices all = flatten(rest_of_epoch(sampler));
    EXPECT_EQ(all, epoch_order(sampler));
    orders.insert(all);
    std::sort(all.begin(), all.end());
    Indices expected(997);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(all, expected);
  }
  EXPECT_EQ(orders.size(), 5u);
}

TEST(Sampler, ResumesAtTheSameWorldSizeAsIfNeverInterrupted) {
  std::mt19937_64 random(6);
  for (int trial = 0; trial < 300; ++trial) {
    SamplerOptions options{.shuffle = true, .seed = random(), .batch_size = random() % 5 + 1};
    options.drop_last = random() % 2 == 0;
    options.shard = {0, random() % 4 + 1, random() % 2 == 0};
    options.shard.rank = random() % options.shard.world_size;
    const std::uint64_t n = random() % 50 + options.shard.world_size * options.batch_size;
    Sampler whole(n, options);
    whole.start_epoch(7);
    const auto batches = rest_of_epoch(whole);
    for (std::size_t stop = 0; stop <= batches.size(); ++stop) {
      Sampler before(n, options);
      before.start_epoch(7);
      for (std::size_t i = 0; i < stop; ++i) next_batch(before);
      Sampler after(n, options);
      after.restore(before.state());
      EXPECT_EQ(after.state(), before.state());
      EXPECT_EQ(after.batches_left(), batches.size() - stop);
      const std::vector<Indices> rest(batches.begin() + static_cast<std::ptrdiff_t>(stop), batches.end());
      ASSERT_EQ(rest_of_epoch(after), rest) << "n " << n << " stopped after " << stop;
    }
  }
}

// One epoch in several legs, each with its own world and batch size, interrupted at random.
TEST(Sampler, ResumesAtOtherWorldSizesWithoutLosingOrRepeatingASample) {
  std::mt19937_64 random(8);
  for (int trial = 0; trial < 2000; ++trial) {
    const std::uint64_t n = random() % 200 + 1;
    SamplerOptions options{.shuffle = random() % 4 != 0, .seed = random()};
    Sampler reference(n, options);
    reference.start_epoch(static_cast<std::uint64_t>(trial));
    const Indices order = epoch_order(reference);
    SamplerState state = reference.state();
    Indices seen;
    std::uint64_t padding = 0;
    for (int leg = 0; state.consumed < n; ++leg) {
      ASSERT_LT(leg, 300);
      options.batch_size = random() % 6 + 1;
      options.shard.world_size = random() % 8 + 1;
      const std::uint64_t steps = leg < 5 ? random() % 6 : n;
      std::vector<SamplerState> states;
      std::size_t taken = 0;
      for (options.shard.rank = 0; options.shard.rank < options.shard.world_size; ++options.shard.rank) {
        Sampler sampler(n, options);
        sampler.restore(state);
        for (std::uint64_t step = 0; step < steps; ++step) {
          const Indices batch = next_batch(sampler);
          seen.insert(seen.end(), batch.begin(), batch.end());
          taken += batch.size();
        }
        states.push_back(sampler.state());
      }
      for (const SamplerState& other : states) ASSERT_EQ(other, states.front()) << "the ranks agree";
      padding += state.consumed + taken - states.front().consumed;
      state = states.front();
    }
    ASSERT_LT(padding, options.shard.world_size) << "only the last leg pads";
    Indices expected = order;
    for (std::uint64_t i = 0; i < padding; ++i) expected.push_back(order[i % n]);
    std::sort(seen.begin(), seen.end());
    std::sort(expected.begin(), expected.end());
    ASSERT_EQ(seen, expected) << "n " << n;
  }
}

TEST(Sampler, ResumesAtOtherWorldSizesUnderDropLastWithoutRepeatingASample) {
  std::mt19937_64 random(9);
  for (int trial = 0; trial < 500; ++trial) {
    SamplerOptions options{
        .shuffle = true, .seed = random(), .batch_size = random() % 4 + 1, .drop_last = true};
    options.shard = {0, random() % 4 + 1, true};
    const std::uint64_t n = random() % 100 + 64;
    SamplerState state = Sampler(n, options).state();
    Indices seen;
    for (int leg = 0; leg < 3; ++leg) {
      options.shard.world_size = random() % 4 + 1;
      SamplerState after;
      for (options.shard.rank = 0; options.shard.rank < options.shard.world_size; ++options.shard.rank) {
        Sampler sampler(n, options);
        sampler.restore(state);
        for (std::uint64_t step = 0; step < (leg == 2 ? 1000u : 3u); ++step) {
          const Indices batch = next_batch(sampler);
          ASSERT_TRUE(batch.empty() || batch.size() == options.batch_size);
          seen.insert(seen.end(), batch.begin(), batch.end());
        }
        after = sampler.state();
      }
      state = after;
    }
    ASSERT_EQ(std::set<std::uint64_t>(seen.begin(), seen.end()).size(), seen.size());
    ASSERT_EQ(seen.size(), state.consumed);
    ASSERT_LT(n - seen.size(), options.batch_size * options.shard.world_size)
        << "no more is lost than a batch";
  }
}

TEST(Sampler, StateGoesThroughJson) {
  Sampler sampler(1ull << 60, {.shuffle = true, .seed = ~0ull, .batch_size = 3, .shard = {2, 5, false}});
  sampler.start_epoch(12345678901234567890ull);
  next_batch(sampler);
  const SamplerState state = sampler.state();
  const std::string text =
      nlohmann::json{
          {"sample_count", state.sample_count},   {"seed", state.seed},   {"shuffle", state.shuffle},
          {"order_version", state.order_version}, {"epoch", state.epoch}, {"consumed", state.consumed}}
          .dump();
  const auto json = nlohmann::json::parse(text);
  const SamplerState read{json.at("sample_count"),  json.at("seed"),  json.at("shuffle"),
                          json.at("order_version"), json.at("epoch"), json.at("consumed")};
  EXPECT_EQ(read, state);
  EXPECT_EQ(read.consumed, 15u);
  Sampler other(1ull << 60, {.shuffle = true, .seed = ~0ull, .batch_size = 3, .shard = {2, 5, false}});
  other.restore(read);
  EXPECT_EQ(next_batch(other), next_batch(sampler));
}

TEST(Sampler, TakesATrillionSamples) {
  Sampler sampler(1000000000000,
                  {.shuffle = true, .seed = 1, .batch_size = 100000, .shard = {3, 1024, false}});
  EXPECT_EQ(sampler.samples_per_epoch(), 976562500u);
  EXPECT_EQ(sampler.batches_per_epoch(), 9766u);
  SamplerState state = sampler.state();
  state.consumed = 999999000000;
  sampler.restore(state);
  const Indices last = next_batch(sampler);
  EXPECT_EQ(last.size(), 977u);  // 1,000,000 left for 1024 ranks
  EXPECT_EQ(last, epoch_order(sampler, 999999000000 + 3, 1024, 977));
  EXPECT_TRUE(next_batch(sampler).empty());
}

TEST(Sampler, RefusesWhatCannotMeanAnything) {
  using test::expect_error;
  expect_error<InvalidArgument>([] { Sampler(0, {}); }, {"zero samples"});
  expect_error<InvalidArgument>([] { Sampler((1ull << 61) + 1, {}); }, {"2^61"});
  expect_error<InvalidArgument>([] { Sampler(5, {.batch_size = 0}); }, {"batch size of 0"});
  expect_error<InvalidArgument>([] { Sampler(5, {.batch_size = 6, .drop_last = true}); },
                                {"batch of 6", "5 samples"});
  expect_error<InvalidArgument>([] { Sampler(5, {.shard = {0, 0, false}}); },
                                {"world size of 0", "use 1 to"});
  const std::uint64_t absurd = std::uint64_t{1} << 62;
  expect_error<InvalidArgument>([&] { Sampler(5, {.shard = {0, absurd, false}}); },
                                {"A world size of 4611686018427387904 was asked for; use 1 to 2147483648."});
  expect_error<InvalidArgument>([] { Sampler(5, {.shard = {3, 3, false}}); },
                                {"Rank 3", "world size of 3", "0 to 2"});
  expect_error<InvalidArgument>([] { Sampler(5, {.shard = {0, 6, true}}); }, {"5 samples", "6 ranks"});
  EXPECT_EQ(Sampler(5, {.batch_size = 6}).batches_per_epoch(), 1u);
}

TEST(Sampler, RefusesAForeignStateAndStaysAsItWas) {
  using test::expect_error;
  Sampler sampler(100, {.shuffle = true, .seed = 1, .batch_size = 7});
  next_batch(sampler);
  const SamplerState good = sampler.state();
  const auto refuses = [&](auto change, const std::string& part) {
    SamplerState bad = good;
    change(bad);
    expect_error<InvalidArgument>([&] { sampler.restore(bad); }, {part});
    EXPECT_EQ(sampler.state(), good);
  };
  refuses([](SamplerState& state) { state.sample_count = 101; }, "sample_count 101");
  refuses([](SamplerState& state) { state.seed = 2; }, "seed 2");
  refuses([](SamplerState& state) { state.shuffle = false; }, "shuffle 0");
  refuses([](SamplerState& state) { state.order_version = 9; }, "order_version 9");
  refuses([](SamplerState& state) { state.consumed = 101; }, "consumed 101 of 100");
}

TEST(Sampler, RefusesASpanShorterThanTheBatchAndLosesNothing) {
  Sampler sampler(10, {.batch_size = 4});
  Indices small(3);
  test::expect_error<InvalidArgument>([&] { sampler.next(small); }, {"4 indices", "room for 3"});
  EXPECT_EQ(next_batch(sampler), (Indices{0, 1, 2, 3}));
}

}  // namespace
}  // namespace penstock
