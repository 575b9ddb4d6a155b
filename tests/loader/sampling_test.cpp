#include "loader/faulty_fixture.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <thread>

/// The samples and their order, across interruptions and world sizes.
namespace penstock::testing {
namespace {

class LoaderSampling : public LoaderTest {
 protected:
  /// `count` batches, fewer at the epoch's end, each checked against the dataset.
  std::vector<std::uint64_t> take(Loader& loader, const Dataset& dataset, std::uint64_t count) {
    std::vector<std::uint64_t> taken;
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto batch = loader.next(*stream_);
      if (!batch) break;
      const HostBatch host = read(*batch);
      expect_stored(dataset, host);
      taken.insert(taken.end(), host.indices.begin(), host.indices.end());
    }
    return taken;
  }
};
PENSTOCK_DEVICE_SUITE(LoaderSampling);

constexpr std::uint64_t kAll = ~std::uint64_t{0};

std::vector<std::uint64_t> order_of(std::uint64_t samples, std::uint64_t epoch, bool shuffle,
                                    std::uint64_t seed) {
  Sampler sampler(samples, {.shuffle = shuffle, .seed = seed});
  sampler.start_epoch(epoch);
  SampleRun run = sampler.next_run();
  run.count = samples;
  std::vector<std::uint64_t> order(samples);
  run.fill(order);
  return order;
}

/// The samples of the sampler's epoch, batch after batch.
std::vector<std::uint64_t> samples_of(Sampler sampler) {
  std::vector<std::uint64_t> samples;
  for (SampleRun run = sampler.next_run(); run.count > 0; run = sampler.next_run()) {
    samples.resize(samples.size() + run.count);
    run.fill(std::span(samples).last(run.count));
  }
  return samples;
}

TEST_P(LoaderSampling, ANewLoaderGoesOnAfterAnyNumberOfBatches) {
  const Dataset dataset({random_field("x", DType::uint8, {9}, 53, 1)});
  const LoaderOptions options{.batch_size = 8, .shuffle = true, .seed = 3, .prefetch_depth = 4};
  const auto order = order_of(53, 2, true, 3);
  for (std::uint64_t count = 0; count <= 7; ++count) {
    Loader first(dataset, *device_, options);
    first.start_epoch(2);
    const auto head = take(first, dataset, count);
    const SamplerState state = first.state();
    EXPECT_EQ(state.epoch, 2U);
    EXPECT_EQ(state.consumed, std::min<std::uint64_t>(53, 8 * count)) << "what is prefetched is not consumed";
    EXPECT_EQ(first.batches_left(), 7 - count);
    Loader second(dataset, *device_, options);
    second.restore(state);
    EXPECT_EQ(second.state(), state);
    EXPECT_EQ(second.batches_left(), 7 - count);
    auto whole = head;
    const auto tail = take(second, dataset, kAll);
    whole.insert(whole.end(), tail.begin(), tail.end());
    EXPECT_EQ(whole, order) << count;
    EXPECT_EQ(second.state().epoch, 3U);
    EXPECT_EQ(second.state().consumed, 0U);
    EXPECT_EQ(take(second, dataset, kAll), order_of(53, 3, true, 3));
  }
}

TEST_P(LoaderSampling, SeveralThreadsListTheSamplesOfALargeBatch) {
  constexpr std::uint64_t kSamples = 20'011;
  const Dataset dataset({random_field("x", DType::uint32, {}, kSamples, 7)});
  for (const bool shuffle : {false, true}) {
    for (const Shard shard : {Shard{}, Shard{.rank = 1, .world_size = 3}}) {
      const SamplerOptions sampling{.shuffle = shuffle, .seed = 5, .batch_size = 4500, .shard = shard};
      Loader loader(dataset, *device_,
                    {.batch_size = sampling.batch_size,
                     .shuffle = shuffle,
                     .seed = sampling.seed,
                     .shard = shard,
                     .gather = GatherPath::host,
                     .threads = 4});
      EXPECT_EQ(take(loader, dataset, kAll), samples_of(Sampler(kSamples, sampling)));
    }
  }
}

TEST_P(LoaderSampling, StartingTheEpochThatComesNextCostsNothing) {
  const Dataset plain({random_field("x", DType::uint8, {5}, 80, 6)});
  std::atomic<int> firsts{0};
  const Dataset dataset({read_callback(plain.field(0), 80, [&](std::uint64_t i, std::span<std::byte> out) {
    if (i == 0) ++firsts;
    plain.gather(0, std::span(&i, 1), out);
    return out.size();
  })});
  Loader loader(dataset, *device_, {.batch_size = 8, .threads = 1});
  while (firsts == 0) std::this_thread::yield();
  loader.start_epoch(0);
  EXPECT_EQ(take(loader, plain, 2).front(), 0U);
  EXPECT_EQ(firsts, 1);
  EXPECT_EQ(take(loader, plain, kAll).size(), 64U);
  while (firsts == 1) std::this_thread::yield();
  loader.start_epoch(1);
  EXPECT_EQ(take(loader, plain, 2).front(), 0U);
  EXPECT_EQ(firsts, 2);
  loader.start_epoch(1);
  EXPECT_EQ(take(loader, plain, 1).front(), 0U) << "in mid-epoch it begins again";
  EXPECT_EQ(firsts, 3);
}

TEST_P(LoaderSampling, SeveralThreadsMayGoElsewhereAtOnce) {
  const Dataset dataset({random_field("x", DType::uint8, {5}, 30, 8)});
  Loader loader(dataset, *device_, {.batch_size = 8, .shuffle = true});
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      for (std::uint64_t epoch = 1; epoch < 40; ++epoch) loader.start_epoch(3 * epoch + i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(loader.state().consumed, 0U);
  EXPECT_EQ(take(loader, dataset, kAll).size(), 30U);
}

TEST_P(LoaderSampling, TheStateNeverGoesBackWhileSeveralThreadsTakeBatches) {
  const Dataset dataset({random_field("x", DType::uint8, {5}, 300, 9)});
  Loader loader(dataset, *device_, {.batch_size = 1, .prefetch_depth = 8, .threads = 1});
  std::atomic<int> busy{3};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      const Stream stream = device_->create_stream();
      for (int j = 0; j < 300; ++j) static_cast<void>(loader.next(stream));
      stream.synchronize();
      --busy;
    });
  }
  SamplerState before = loader.state();
  while (busy > 0) {
    const SamplerState now = loader.state();
    EXPECT_LE(std::pair(before.epoch, before.consumed), std::pair(now.epoch, now.consumed));
    before = now;
  }
  for (std::thread& thread : threads) thread.join();
  // Of 900 calls, two ended epochs.
  EXPECT_EQ(loader.state().epoch, 2U);
  EXPECT_EQ(loader.state().consumed, 900U - 2 - 600);
}

TEST_P(LoaderSampling, AnyInterruptionsLoseNothingAndRepeatNothing) {
  std::mt19937_64 random(42);
  const auto up_to = [&](std::uint64_t most) { return 1 + random() % most; };
  for (int round = 0; round < 12; ++round) {
    const std::uint64_t samples = up_to(150);
    const bool shuffle = random() % 4 != 0;
    const std::uint64_t seed = random() % 3;
    const Dataset dataset({random_field("x", DType::uint8, {up_to(40)}, samples, round)});
    SamplerState state{.sample_count = samples, .seed = seed, .shuffle = shuffle, .epoch = random() % 100};
    SCOPED_TRACE("round " + std::to_string(round) + ", samples " + std::to_string(samples));
    std::map<std::uint64_t, std::uint64_t> seen;
    const std::uint64_t epoch = state.epoch;
    std::uint64_t padding = 0;
    while (state.epoch == epoch && state.consumed < samples) {
      const std::uint64_t world = up_to(3);
      const std::uint64_t batch = up_to(samples);
      const std::uint64_t count = up_to(4);
      SamplerState after;
      std::uint64_t came = 0;
      for (std::uint64_t rank = 0; rank < world; ++rank) {
        const Way way = kWays[random() % std::size(kWays)];
        Loader loader(dataset, *device_,
                      {.batch_size = batch,
                       .shuffle = shuffle,
                       .seed = seed,
                       .shard = {.rank = rank, .world_size = world},
                       .prefetch_depth = static_cast<std::size_t>(up_to(5)),
                       .residency = Residency::parse(way.residency),
                       .gather = way.gather,
                       .threads = 1});
        loader.restore(state);
        for (const std::uint64_t index : take(loader, dataset, count)) ++seen[index], ++came;
        EXPECT_EQ(loader.state(), rank > 0 ? after : loader.state());
        after = loader.state();
      }
      const std::uint64_t left = samples - state.consumed;
      if (came > left) padding = came - left;
      EXPECT_LT(padding, world);
      state = after;
    }
    std::uint64_t total = 0;
    for (const auto& [index, count] : seen) total += count;
    EXPECT_EQ(seen.size(), samples);
    EXPECT_EQ(total, samples + padding);
  }
}

}  // namespace
}  // namespace penstock::testing
