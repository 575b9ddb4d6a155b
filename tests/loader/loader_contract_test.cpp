#include "loader/destination_fixture.hpp"
#include "support/gate.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <future>
#include <numeric>
#include <optional>
#include <thread>

/// What a loader promises, whatever its destination is.
namespace penstock::testing {
namespace {

/// Samples that say their number and the epoch in which they are read.
class EpochReader final : public FieldReader {
 public:
  using Sample = std::array<std::uint64_t, 2>;

  const Field& field() const noexcept override { return field_; }
  std::uint64_t sample_count() const noexcept override { return 40; }
  bool varies_by_epoch() const noexcept override { return true; }
  bool is_decoded() const noexcept override { return true; }
  void gather(std::span<const std::uint64_t> indices, std::span<std::byte> destination,
              StoreKind stores) const override {
    gather_in_epoch(0, indices, destination, stores);
  }
  void gather_in_epoch(std::uint64_t epoch, std::span<const std::uint64_t> indices,
                       std::span<std::byte> destination, StoreKind /*stores*/) const override {
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const Sample sample{indices[i], epoch};
      std::memcpy(destination.data() + i * sizeof(sample), sample.data(), sizeof(sample));
    }
  }

 private:
  Field field_{.name = "epoch", .dtype = DType::uint64, .shape = {2}};
};

/// Batches of samples 0 to 7, and of 8.
class TwoBatches final : public BatchSampler {
 public:
  void start_epoch(std::uint64_t /*epoch*/) override { drawn_ = 0; }
  bool next(std::vector<std::uint64_t>& indices) override {
    if (drawn_ == 0) indices = {0, 1, 2, 3, 4, 5, 6, 7};
    if (drawn_ == 1) indices = {8};
    return drawn_++ < 2;
  }

 private:
  int drawn_ = 0;
};

class LoaderContract : public DestinationTest {
 protected:
  /// `count` batches, or ends in their place.
  void take(Loader& loader, int count) {
    for (int i = 0; i < count; ++i) {
      if (const auto batches = loader.next(consumers())) (void)read(*batches);
    }
  }
  /// Expects the batches of an epoch from its beginning on.
  void expect_epoch(Loader& loader, const Dataset& data, const LoaderOptions& options, std::uint64_t epoch) {
    Sampler sampler = sampler_of(data, options);
    sampler.start_epoch(epoch);
    expect_rest(data, sampler, read_epoch(loader));
  }
  /// Expects that the rest of an epoch was read in it.
  void expect_read_in(Loader& loader, std::uint64_t epoch, std::size_t batches_left) {
    const std::vector<HostBatches> batches = read_epoch(loader);
    EXPECT_EQ(batches.size(), batches_left);
    for (const HostBatches& all : batches) {
      for (const HostBatch& batch : all) {
        for (std::size_t i = 0; i < batch.indices.size(); ++i) {
          EpochReader::Sample sample{};
          std::memcpy(sample.data(), batch.fields[0].data() + i * sizeof(sample), sizeof(sample));
          EXPECT_EQ(sample, (EpochReader::Sample{batch.indices[i], epoch}));
        }
      }
    }
  }
  static std::vector<std::uint64_t> numbers(std::uint64_t first, std::size_t count) {
    std::vector<std::uint64_t> values(count);
    std::iota(values.begin(), values.end(), first);
    return values;
  }
};
PENSTOCK_DESTINATION_SUITE(LoaderContract);

TEST_P(LoaderContract, EveryReceiverGetsTheBatchesOfTheOrder) {
  const Dataset data = dataset();
  for (const std::uint64_t batch : {1, 2, 16, 50, 203, 1000}) {
    for (const bool shuffle : {false, true}) {
      LoaderOptions options{.batch_size = batch, .shuffle = shuffle, .seed = 7, .drop_last = batch == 16};
      if (batch == 50) options.shard = {.rank = 1, .world_size = 3};
      if (batch < 3) options.prefetch_depth = 5;
      Loader loader(data, destination(), options);
      const Sampler sampler = sampler_of(data, options);
      EXPECT_EQ(loader.batches_per_epoch(), sampler.batches_per_epoch());
      EXPECT_EQ(loader.samples_per_epoch(), sampler.samples_per_epoch());
      for (const std::uint64_t epoch : {0, 1}) expect_epoch(loader, data, options, epoch);
      const auto batches = loader.next(consumers());
      ASSERT_EQ(batches->size(), consumers().size());
      EXPECT_EQ((*batches)[0].field(1).shape, Shape{(*batches)[0].size()});
    }
  }
}

TEST_P(LoaderContract, ReadsVaryingSamplesInTheEpochOfTheirBatch) {
  const Dataset data({std::make_shared<EpochReader>()});
  // The last batch has one sample, so that most members of a group have no part of it.
  Loader loader(data, destination(), {.batch_size = 13, .shuffle = true, .prefetch_depth = 4});
  for (const std::uint64_t epoch : {0, 1, 2}) expect_read_in(loader, epoch, 4);
  EXPECT_TRUE(loader.stats().decodes);
  loader.start_epoch(7);
  take(loader, 2);
  const SamplerState state = loader.state();
  expect_read_in(loader, 7, 2);
  expect_read_in(loader, 8, 4);
  loader.restore(state);
  expect_read_in(loader, 7, 2);

  Loader chosen(data, destination(), {.batch_size = 8, .batch_sampler = std::make_shared<TwoBatches>()});
  for (const std::uint64_t epoch : {0, 1}) expect_read_in(chosen, epoch, 2);
  chosen.start_epoch(5);
  expect_read_in(chosen, 5, 2);
}

TEST_P(LoaderContract, DeliversTheSameInEveryWay) {
  const std::size_t samples = 90;
  const Dataset data({random_field("images", DType::uint8, {3, 8, 8}, samples, 1),
                      random_field("a", DType::float32, {}, samples, 2),
                      random_field("b", DType::float32, {2}, samples, 3)});
  LoaderOptions options{.batch_size = 20, .shuffle = true};
  options.fields = {{.name = "images", .to = DType::float32, .scale = {0.5F}, .shift = {-1.0F}}};
  for (const GatherPath path : {GatherPath::automatic, GatherPath::host, GatherPath::zero_copy}) {
    for (const char* residency : {"none", "0.5", "all"}) {
      if (GetParam().kind == Destination::Kind::relayed && residency[0] != 'n') continue;
      LoaderOptions own = options;
      own.residency = Residency::parse(residency);
      own.gather = path;
      Loader loader(data, destination(), own);
      Loader plain(data, plain_[0], options);
      while (const auto batches = loader.next(consumers())) {
        auto same = plain.next(consumers().first(1));
        ASSERT_TRUE(same.has_value());
        const HostBatch expected = read(*same)[0];
        for (const HostBatch& batch : read(*batches)) EXPECT_EQ(batch.fields, expected.fields);
      }
      EXPECT_FALSE(plain.next(streams_[0]).has_value());
    }
  }
}

TEST_P(LoaderContract, GoesOnWhereAStateWasTaken) {
  const Dataset data = dataset();
  const LoaderOptions options{.batch_size = 16, .shuffle = true, .seed = 3};
  Loader loader(data, destination(), options);
  take(loader, 5);
  const SamplerState state = loader.state();
  EXPECT_EQ(state.consumed, 5u * 16) << "what is ahead is not consumed";
  EXPECT_EQ(loader.batches_left(), 8u);
  Sampler sampler = sampler_of(data, options);
  const auto kept = loader.next(consumers());
  for (int turn = 0; turn < 2; ++turn) {
    loader.restore(state);
    sampler.restore(state);
    expect_rest(data, sampler, read_epoch(loader), 5);
    EXPECT_EQ(loader.state(), sampler.state());
  }
  sampler.restore(state);
  std::vector<std::uint64_t> indices(16);
  sampler.next(indices);
  expect_batch(data, read(*kept), 0, 5, indices);  // what is held stays

  // Another one goes there, with other batches, and so does a loader of one device.
  Loader other(data, destination(), {.batch_size = 7, .shuffle = true, .seed = 3});
  other.restore(state);
  Sampler sevens(data.sample_count(), {.shuffle = true, .seed = 3, .batch_size = 7});
  sevens.restore(state);
  const std::uint64_t before = sevens.batches_per_epoch() - sevens.batches_left();
  expect_rest(data, sevens, read_epoch(other), before);
  Loader alone(data, plain_[0], options);
  alone.restore(state);
  EXPECT_EQ(alone.state(), state);

  SamplerState wrong = state;
  wrong.seed = 4;
  EXPECT_THROW(loader.restore(wrong), InvalidArgument);
  expect_epoch(loader, data, options, 1);  // which comes next, as if nothing had been asked
  loader.start_epoch(9);
  expect_epoch(loader, data, options, 9);
  (void)loader.next(consumers());
  loader.start_epoch(10);  // which has begun
  expect_epoch(loader, data, options, 10);
}

TEST_P(LoaderContract, AnEpochIsLeft) {
  const Dataset data = dataset();
  const LoaderOptions options{.batch_size = 16, .shuffle = true, .seed = 3};
  Loader loader(data, destination(), options);
  take(loader, 5);
  const auto kept = loader.next(consumers());
  const std::vector<std::uint64_t> indices = kept->front().indices();
  loader.leave_epoch();
  EXPECT_THROW((void)loader.next(consumers()), InvalidArgument);
  EXPECT_EQ(loader.state().consumed, 6u * 16);
  expect_batch(data, read(*kept), 0, 5, indices);
  loader.start_epoch(0);
  expect_epoch(loader, data, options, 0);
}

TEST_P(LoaderContract, KeptBatchesStayAndEndOneByOne) {
  const Dataset data = dataset(220);
  std::optional<Loader> loader(std::in_place, data, destination(),
                               LoaderOptions{.batch_size = 20, .shuffle = true});
  std::vector<std::vector<DeviceBatch>> kept;
  while (auto batches = loader->next(consumers())) {
    if (kept.size() == 3 && kept[1].front().index() == 1) {
      for (DeviceBatch& batch : kept[1]) batch.release();
      kept.erase(kept.begin() + 1);
    }
    kept.push_back(*std::move(batches));
  }
  EXPECT_EQ(kept.size(), 10u);  // more than the ring begins with; one was dropped
  loader.reset();
  for (const auto& batches : kept) {
    const std::vector<std::uint64_t> indices = batches[0].indices();
    expect_batch(data, read(batches), 0, batches[0].index(), indices);
  }
  kept.clear();
  EXPECT_EQ(live(), std::vector<LiveHandles>(size()));
}

TEST_P(LoaderContract, ASlotIsNotRefilledBeforeTheWorkOnItIsDone) {
  const Dataset data({random_field("images", DType::uint8, {100}, 600, 1)});
  for (std::size_t held = 0; held < consumers().size(); ++held) {
    Loader loader(data, destination(), {.batch_size = 30, .prefetch_depth = 1, .ring_grows = false});
    GatedStream gate(plain_[held]);
    auto batches = loader.next(consumers());
    const std::vector<std::uint64_t> indices = (*batches)[0].indices();
    const DeviceField field = (*batches)[held].field(0);
    const Buffer there = pinned_[held].allocate(field.bytes);
    (*batches)[held].use_on(gate.stream());
    gate.stream().copy(there.data(), field.data, field.bytes, CopyDirection::d2h);
    batches.reset();
    for (int i = 0; i < 4; ++i) (void)loader.next(consumers());
    gate.open();
    gate.stream().synchronize();
    std::vector<std::byte> expected(field.bytes);
    data.gather(0, indices, expected);
    EXPECT_EQ(first_difference(std::span(there.data(), field.bytes), expected), -1) << held;
    for (const Stream& stream : consumers()) stream.synchronize();
  }
}

TEST_P(LoaderContract, IfAllSlotsAreHeldTheErrorNamesTheBatches) {
  const Dataset data = dataset();
  for (std::size_t holder = 0; holder < consumers().size(); ++holder) {
    Loader loader(data, destination(),
                  {.batch_size = 10, .prefetch_depth = 1, .ring_grows = false, .when_full = WhenFull::fail});
    std::vector<DeviceBatch> kept;
    for (int i = 0; i < 2; ++i) kept.push_back(std::move((*loader.next(consumers()))[holder]));
    try {
      (void)loader.next(consumers());
      ADD_FAILURE() << "all slots are held";
    } catch (const OutOfMemory& error) {
      EXPECT_NE(std::string(error.what()).find("0 of epoch 0, 1 of epoch 0"), std::string::npos)
          << error.what();
    }
    EXPECT_THROW((void)loader.next(consumers()), OutOfMemory);
    kept.clear();
    expect_batch(data, read(*loader.next(consumers())), 0, 2, numbers(20, 10));  // it is not lost
  }
}

TEST_P(LoaderContract, GoesElsewhereBeforeThereIsABatch) {
  std::promise<void> may_go;
  const auto gate = may_go.get_future().share();
  const auto reader = random_field("slow", DType::uint8, {8}, 100, 1);
  const Dataset data(
      {read_callback(reader->field(), 100, [&, gate](std::uint64_t index, std::span<std::byte> to) {
        gate.wait();
        reader->gather(std::span(&index, 1), to, StoreKind::cached);
        return to.size();
      })});
  const LoaderOptions options{.batch_size = 10, .shuffle = true};
  Loader loader(data, destination(), options);
  SamplerState place = loader.state();
  place.consumed = 50;
  auto restored = std::async(std::launch::async, [&] { loader.restore(place); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  may_go.set_value();
  restored.get();
  Sampler sampler = sampler_of(data, options);
  sampler.restore(place);
  expect_rest(data, sampler, read_epoch(loader), 5);
}

TEST_P(LoaderContract, AnErrorOfTheDataIsThrownUntilTheLoaderGoesElsewhere) {
  std::atomic<bool> broken{true};
  const auto reader = random_field("images", DType::uint8, {100}, 200, 1);
  const Dataset data({read_callback(reader->field(), 200, [&](std::uint64_t index, std::span<std::byte> to) {
    if (index == 77 && broken) throw InvalidArgument("sample 77 is broken");
    reader->gather(std::span(&index, 1), to, StoreKind::cached);
    return to.size();
  })});
  const LoaderOptions options{.batch_size = 20};
  Loader loader(data, destination(), options);
  take(loader, 3);
  for (int i = 0; i < 3; ++i) EXPECT_THROW((void)loader.next(consumers()), Error);
  broken = false;
  loader.start_epoch(0);
  expect_epoch(loader, data, options, 0);
}

TEST_P(LoaderContract, AFailedBatchGivesItsSlotBack) {
  const Dataset data = dataset();
  const LoaderOptions options{.batch_size = 20, .prefetch_depth = 1, .ring_grows = false};
  Loader loader(data, destination(), options);
  for (std::uint64_t turn = 1; turn < 5; ++turn) {
    faulty_[0]->fail(Entry::copy, turn);
    EXPECT_THROW(take(loader, 20), DeviceError);
    faulty_[0]->heal();
    loader.start_epoch(turn);
    expect_epoch(loader, data, options, turn);
  }
}

TEST_P(LoaderContract, AFailureOfADeviceReachesAllAndLeavesNothingBehind) {
  const Dataset data = dataset();
  const LoaderOptions options{.batch_size = 20, .shuffle = true};
  for (std::size_t broken = 0; broken < size(); ++broken) {
    for (const Entry entry : {Entry::copy, Entry::event_record, Entry::stream_wait_event}) {
      for (const std::size_t nth : {1u, 4u, 9u}) {
        {
          Loader loader(data, destination(), options);
          take(loader, 1);
          faulty_[broken]->fail(entry, nth, FaultyBackend::kForever);
          EXPECT_THROW(take(loader, 100), DeviceError) << static_cast<int>(entry) << " " << nth;
          EXPECT_THROW((void)loader.next(consumers()), DeviceError);
          for (const auto& one : faulty_) one->heal();
          loader.start_epoch(5);
          try {
            expect_epoch(loader, data, options, 5);
          } catch (const OutOfMemory&) {  // all its slots may be lost
          }
        }
        EXPECT_EQ(live(), std::vector<LiveHandles>(size()));
      }
    }
  }
}

TEST_P(LoaderContract, ManyThreadsMayAskWhileTheLoaderGoesElsewhere) {
  const Dataset data = dataset(120);
  const LoaderOptions options{.batch_size = 8, .shuffle = true};
  Loader loader(data, destination(), options);
  std::atomic<bool> over{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      std::vector<Stream> streams;
      for (std::size_t i = 0; i < consumers().size(); ++i) streams.push_back(plain_[i].create_stream());
      while (!over) {
        const auto batches = loader.next(streams);
        if (!batches) continue;
        for (const DeviceBatch& batch : *batches) {
          const DeviceBatch& first = batches->front();
          if (batch.epoch() != first.epoch() || batch.index() != first.index()) ++wrong;
          if (batch.indices() != first.indices()) ++wrong;
        }
      }
      for (const Stream& stream : streams) stream.synchronize();
    });
  }
  for (std::uint64_t i = 0; i < 30; ++i) {
    if (i % 3 == 0) {
      loader.restore(loader.state());
    } else {
      loader.start_epoch(i);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  loader.start_epoch(100);
  expect_epoch(loader, data, options, 100);
}

TEST_P(LoaderContract, ClosesOnceItsCopiesAreDone) {
  const Dataset data = dataset();
  Loader loader(data, destination(), {.batch_size = 20, .prefetch_depth = 1, .ring_grows = false});
  GatedStream gate(plain_[0]);
  {
    auto batches = loader.next(consumers());
    batches->front().use_on(gate.stream());
  }
  (void)loader.next(consumers());
  const auto third = loader.next(consumers());  // in the slots of the first
  auto closed = std::async(std::launch::async, [&] { loader.close(); });
  EXPECT_EQ(closed.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  gate.open();
  closed.get();
}

TEST_P(LoaderContract, ClosesWhileSomebodyWaits) {
  std::promise<void> asked;
  std::promise<void> may_go;
  auto gate = may_go.get_future().share();
  std::atomic<bool> first{true};
  const Dataset data({read_callback({.name = "slow", .dtype = DType::uint8, .shape = {8}}, 64,
                                    [&](std::uint64_t, std::span<std::byte> to) {
                                      if (first.exchange(false)) asked.set_value();
                                      gate.wait();
                                      return to.size();
                                    })});
  auto loader = std::make_unique<Loader>(data, destination(), LoaderOptions{.batch_size = 16});
  asked.get_future().wait();
  struct GiveUp {};
  int questions = 0;
  const auto give_up = [&] {
    if (++questions == 2) throw GiveUp{};
  };
  EXPECT_THROW((void)loader->next(consumers(), give_up), GiveUp);
  auto waiting = std::async(std::launch::async, [&] { return loader->next(consumers()); });
  auto closing = std::async(std::launch::async, [&] { loader->close(); });
  may_go.set_value();
  closing.get();
  try {
    (void)waiting.get();  // it may have got one just before
  } catch (const Closed&) {
  }
  EXPECT_THROW((void)loader->next(consumers()), Closed);
  EXPECT_THROW(loader->start_epoch(1), Closed);
  loader.reset();
  EXPECT_EQ(live(), std::vector<LiveHandles>(size()));
}

TEST_P(LoaderContract, AccountsForItsBatches) {
  const Dataset data({random_field("images", DType::uint8, {64}, 400, 1)});
  Loader loader(data, destination(), {.batch_size = 40, .gather = GatherPath::host});
  EXPECT_EQ(read_epoch(loader).size(), 10u);
  const FeedStatistics statistics = loader.stats();
  EXPECT_EQ(statistics.batches, 10u);
  EXPECT_EQ(statistics.samples, 400u);
  EXPECT_EQ(statistics.delivered_bytes, 400u * 64);
  EXPECT_GE(statistics.link_bytes, 400u * 64);
  EXPECT_EQ(statistics.prefetch_depth, 2u);
  EXPECT_GE(statistics.slots, 3u);
  EXPECT_GE(statistics.ring_bytes, 3u * 40 * 64);
  std::size_t carried = 0;
  const bool over_several = is_group() || GetParam().kind == Destination::Kind::relayed;
  for (std::size_t i = 0; i < (over_several ? size() : 1); ++i) carried += loader.member_stats(i).link_bytes;
  EXPECT_GE(carried, statistics.link_bytes);  // batches of the next epoch may come meanwhile
  EXPECT_EQ(loader.epoch_stats(0)->batches, 10u);
  EXPECT_FALSE(loader.describe().empty());
}

TEST_P(LoaderContract, RefusesWhatHasNoMeaning) {
  const Dataset data = dataset();
  EXPECT_THROW(Loader(data, destination(), {.batch_size = 0}), InvalidArgument);
  EXPECT_THROW(Loader(data, destination(), {.fields = {{.name = "nobody"}}}), InvalidArgument);
  EXPECT_THROW(Loader(data, destination(), {.batch_size = 4, .prefetch_depth = 65}), InvalidArgument);
  EXPECT_THROW(Loader(data, destination(), {.batch_size = 100, .device_budget_bytes = 1000}), OutOfMemory);
  Loader loader(data, destination(), {.batch_size = 4});
  std::vector<Stream> one_more;
  for (std::size_t i = 0; i <= consumers().size(); ++i) one_more.push_back(plain_[0].create_stream());
  EXPECT_THROW((void)loader.next(one_more), InvalidArgument);
  if (is_group()) {
    EXPECT_THROW((void)loader.next(streams_[0]), InvalidArgument);
  }
}

}  // namespace
}  // namespace penstock::testing
