#include "loader/destination_fixture.hpp"
#include "loader/listed_batches.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <optional>
#include <stdexcept>

/// Batches that a sampler from outside chooses, whatever the loader's destination is.
namespace penstock::testing {
namespace {

using Epochs = std::map<std::uint64_t, Batches>;

class SamplerContract : public DestinationTest {
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
  /// Waits until the line's thread stays asleep.
  static void wait_until_it_sleeps() {
    const auto waits = [](pid_t thread) {
      const std::string name = name_of(thread);
      return (name == "penstock-group" || name == "penstock-loader") && is_asleep(thread);
    };
    for (int asleep = 0; asleep < 50; ++asleep) {
      if (std::ranges::none_of(live_threads(), waits)) asleep = 0;
    }
  }
};
PENSTOCK_DESTINATION_SUITE(SamplerContract);

TEST_P(SamplerContract, EveryReceiverGetsTheChosenSamples) {
  const Dataset data = dataset(kListedSamples);
  for (const std::size_t depth : {1U, 2U, 5U}) {
    for (const std::size_t most : {1U, 16U}) {
      const auto first = random_batches(9, most, 1);
      const auto second = random_batches(4, most, 2);
      const auto sampler = std::make_shared<ListedBatches>(Epochs{{0, first}, {1, second}});
      Loader loader(data, destination(), options(sampler, depth));
      EXPECT_EQ(loader.batches_per_epoch(), 0U);
      expect_batches(data, 0, read_epoch(loader), first);
      EXPECT_EQ(sampler->begun, std::vector<std::uint64_t>{0}) << "the next epoch has not been asked for";
      expect_batches(data, 1, read_epoch(loader), second);
      EXPECT_TRUE(read_epoch(loader).empty());
      EXPECT_EQ(sampler->begun, (std::vector<std::uint64_t>{0, 1, 2}));
      EXPECT_EQ(sampler->threads, std::set<pid_t>{this_thread()});
    }
  }
}

TEST_P(SamplerContract, BatchesAheadAreMadeWhileNobodyAsks) {
  std::atomic<std::size_t> read{0};
  const Dataset data({read_callback({.name = "x", .dtype = DType::uint8, .shape = {1}}, kListedSamples,
                                    [&](std::uint64_t, std::span<std::byte> sample) {
                                      ++read;
                                      read.notify_all();
                                      return sample.size();
                                    })});
  const Batches chosen(40, std::vector<std::uint64_t>(size(), 5));  // each member has one sample of each
  const auto sampler = std::make_shared<ListedBatches>(Epochs{{0, chosen}});
  Loader loader(data, destination(), options(sampler, 3));
  EXPECT_EQ(sampler->drawn, 0U) << "nobody has asked yet";
  for (std::size_t taken = 1; taken <= 30; ++taken) {
    EXPECT_TRUE(loader.next(consumers()));
    EXPECT_EQ(sampler->drawn, taken + 3);
    const std::size_t wanted = size() * (taken + 3);
    for (std::size_t seen = read; seen < wanted; seen = read) read.wait(seen);
  }
}

TEST_P(SamplerContract, AnEpochThatIsLeftIsDropped) {
  const auto first = random_batches(9, 16, 4);
  const auto third = random_batches(5, 16, 5);
  const auto sampler = std::make_shared<ListedBatches>(Epochs{{0, first}, {2, third}});
  const Dataset data = dataset(kListedSamples);
  Loader loader(data, destination(), options(sampler));
  loader.start_epoch(0);
  EXPECT_TRUE(sampler->begun.empty()) << "it comes next anyway";
  for (std::uint64_t taken = 1; taken <= 3; ++taken) {
    EXPECT_TRUE(loader.next(consumers()));
    EXPECT_EQ(loader.state().consumed, taken) << "the state counts batches";
  }
  EXPECT_THROW(loader.restore(loader.state()), InvalidArgument);
  loader.start_epoch(1);
  EXPECT_FALSE(loader.next(consumers()));
  EXPECT_EQ(loader.state().epoch, 2U);
  EXPECT_EQ(loader.state().consumed, 0U);
  loader.start_epoch(0);
  EXPECT_TRUE(loader.next(consumers()));
  loader.start_epoch(2);
  expect_batches(data, 2, read_epoch(loader), third);
  loader.start_epoch(0);
  expect_batches(data, 0, read_epoch(loader), first);
  EXPECT_EQ(sampler->begun, (std::vector<std::uint64_t>{0, 1, 0, 2, 0}));
}

TEST_P(SamplerContract, ItsErrorsComeInTheirPlace) {
  const auto chosen = random_batches(9, 16, 6);
  const Dataset data = dataset(kListedSamples);
  for (const std::size_t good : {0U, 1U, 5U}) {
    const auto sampler = std::make_shared<ListedBatches>(Epochs{{0, chosen}});
    sampler->fails_at = good + 1;
    Loader loader(data, destination(), options(sampler));
    for (std::size_t i = 0; i < good; ++i) {
      const auto batch = loader.next(consumers());
      ASSERT_TRUE(batch);
      EXPECT_EQ(batch->back().indices(), chosen[i]);
    }
    EXPECT_THROW((void)loader.next(consumers()), std::runtime_error);
    EXPECT_THROW((void)loader.next(consumers()), std::runtime_error) << "until an epoch is begun";
    loader.start_epoch(0);
    expect_batches(data, 0, read_epoch(loader), chosen);
  }
}

TEST_P(SamplerContract, AnInterruptionIsThrownAtOnceAndNothingIsLost) {
  const Dataset data = dataset(kListedSamples);
  Loader loader(data, destination(), options(std::make_shared<InterruptedBatches>()));
  EXPECT_THROW((void)loader.next(consumers()), BatchSampler::Interrupted) << "the second is drawn ahead";
  expect_batches(data, 0, read_epoch(loader), {{0}, {1}, {2}, {3}});
}

TEST_P(SamplerContract, WhoeverWaitsGetsTheEpochThatAnotherThreadBegins) {
  Hold hold;
  const Dataset data = dataset(kListedSamples);
  Loader loader(data, destination(), options(std::make_shared<HeldBatches>(hold)));
  std::optional<std::vector<DeviceBatch>> batch;
  Background waiting([&] { batch = loader.next(consumers()); });
  hold.wait_for(1);
  Background starting([&] { loader.start_epoch(5); });
  starting.wait_until_stuck();
  hold.let_go();
  starting.join();
  waiting.join();
  ASSERT_TRUE(batch);
  EXPECT_TRUE((*batch)[0].epoch() == 0 || (*batch)[0].epoch() == 5);
  EXPECT_EQ((*batch)[0].indices(), std::vector<std::uint64_t>{(*batch)[0].epoch()});
  EXPECT_EQ((*loader.next(consumers()))[0].epoch(), 5U);
}

TEST_P(SamplerContract, ClosesWhileNothingIsDrawn) {
  const Dataset data = dataset(kListedSamples);
  Loader loader(data, destination(), options(std::make_shared<ListedBatches>(Epochs{})));
  wait_until_it_sleeps();
  loader.close();
  EXPECT_THROW((void)loader.next(consumers()), Closed);
}

TEST_P(SamplerContract, ClosesWhilePartsAheadAreNotDrawn) {
  const Dataset data = dataset(kListedSamples);
  Loader loader(data, destination(),
                options(std::make_shared<ListedBatches>(Epochs{{0, random_batches(20, 16, 9)}})));
  EXPECT_TRUE(loader.next(consumers()));
  wait_until_it_sleeps();
  loader.close();
  EXPECT_THROW((void)loader.next(consumers()), Closed);
}

TEST_P(SamplerContract, RefusesWhatTheSamplerDecides) {
  const Dataset data = dataset(kListedSamples);
  const auto sampler = std::make_shared<ListedBatches>(Epochs{{0, {{kListedSamples}}}});
  std::array<LoaderOptions, 4> refused;
  refused.fill(options(sampler));
  refused[0].shuffle = true;
  refused[1].seed = 1;
  refused[2].drop_last = true;
  refused[3].shard = {0, 2};
  for (const LoaderOptions& each : refused) EXPECT_THROW(Loader(data, destination(), each), InvalidArgument);
  Loader loader(data, destination(), options(sampler));
  EXPECT_EQ(loader.samples_per_epoch(), 0U);
  EXPECT_EQ(loader.batches_left(), 0U);
  EXPECT_THROW((void)loader.next(consumers()), InvalidArgument) << "there is no such sample";
}

/// Arrays that the program writes to between epochs.
class ChangingDataContract : public SamplerContract {
 protected:
  /// A label fits a byte in the first epoch, and needs eight in the next.
  void write(std::uint64_t epoch) {
    std::ranges::copy(random_bytes(images_.size(), epoch), images_.begin());
    const auto labels = random_bytes(labels_.size(), 100 + epoch);
    std::ranges::fill(labels_, std::byte{0});
    for (std::size_t i = 0; i < labels_.size(); i += epoch == 0 ? 8 : 1) labels_[i] = labels[i];
  }
  [[nodiscard]] Dataset arrays() const {
    return Dataset({read_array(kImages, images_, nullptr), read_array(kLabels, labels_, nullptr)});
  }
  [[nodiscard]] Dataset copy_of_arrays() const {
    return Dataset({read_array(kImages, images_), read_array(kLabels, labels_)});
  }
  /// The device reads the images where they lie; the labels are small.
  [[nodiscard]] LoaderOptions options_of(GatherPath gather = GatherPath::automatic) const {
    LoaderOptions all = options(std::make_shared<TwiceInOrder>(kListedSamples));
    all.gather = gather;
    all.data_may_change = true;
    all.copy_limit_bytes = labels_.size();
    return all;
  }
  void expect_stored(const Dataset& data, const HostBatches& got, std::uint64_t epoch, std::uint64_t index) {
    expect_batch(data, got, epoch, index, got[0].indices);
  }
  std::vector<std::vector<DeviceBatch>> hold_epoch(Loader& loader) {
    std::vector<std::vector<DeviceBatch>> held;
    while (auto batches = loader.next(consumers())) held.push_back(*std::move(batches));
    return held;
  }

  static constexpr std::size_t kPixels = 300;
  static constexpr std::size_t kBatches = (2 * kListedSamples + 15) / 16;
  const Field kImages{.name = "images", .dtype = DType::uint8, .shape = {kPixels}};
  const Field kLabels{.name = "labels", .dtype = DType::uint64, .shape = {}};
  std::vector<std::byte> images_ = std::vector<std::byte>(kListedSamples * kPixels);
  std::vector<std::byte> labels_ = std::vector<std::byte>(kListedSamples * sizeof(std::uint64_t));
};
PENSTOCK_DESTINATION_SUITE(ChangingDataContract);

TEST_P(ChangingDataContract, EachEpochGivesWhatTheArraysHold) {
  for (const GatherPath gather : {GatherPath::automatic, GatherPath::host, GatherPath::copy_engine}) {
    write(0);
    Loader loader(arrays(), destination(), options_of(gather));
    for (std::uint64_t epoch = 1; epoch <= 3; ++epoch) {
      const auto got = read_epoch(loader);
      ASSERT_EQ(got.size(), kBatches);
      for (std::size_t i = 0; i < got.size(); ++i) expect_stored(loader.dataset(), got[i], epoch - 1, i);
      loader.synchronize();
      write(epoch);
    }
  }
}

TEST_P(ChangingDataContract, AnEpochThatIsLeftReadsNothingMore) {
  for (const bool leaves : {false, true}) {
    write(0);
    Loader loader(arrays(), destination(), options_of());
    const Dataset before = copy_of_arrays();
    const auto held = loader.next(consumers());
    if (leaves) {
      loader.leave_epoch();
    } else {
      loader.start_epoch(1);
      loader.synchronize();
    }
    write(1);
    ASSERT_TRUE(held);
    expect_stored(before, read(*held), 0, 0);
    if (leaves) {
      EXPECT_THROW((void)loader.next(consumers()), InvalidArgument);
      loader.start_epoch(1);
    }
    const auto next = loader.next(consumers());
    expect_stored(loader.dataset(), read(*next), 1, 0);
  }
}

TEST_P(ChangingDataContract, WhatWasHandedOutStaysAndTheNextEpochBegins) {
  write(0);
  Loader loader(arrays(), destination(), options_of());
  const Dataset before = copy_of_arrays();
  const auto held = hold_epoch(loader);
  loader.leave_epoch();
  write(1);
  ASSERT_EQ(held.size(), kBatches);
  for (std::size_t i = 0; i < held.size(); ++i) expect_stored(before, read(held[i]), 0, i);
  const auto next = loader.next(consumers());
  ASSERT_TRUE(next) << "the epoch had ended";
  expect_stored(loader.dataset(), read(*next), 1, 0);
}

TEST_P(ChangingDataContract, CannotBeResident) {
  write(0);
  LoaderOptions resident = options_of();
  resident.residency = Residency::parse("auto");
  EXPECT_THROW(Loader(arrays(), destination(), resident), InvalidArgument);
}

}  // namespace
}  // namespace penstock::testing
