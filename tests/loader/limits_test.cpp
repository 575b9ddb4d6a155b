#include "loader/faulty_fixture.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>

/// Too little memory, and options without meaning.
namespace penstock::testing {
namespace {

using ::testing::HasSubstr;

class LoaderLimits : public FaultyLoaderTest {
 protected:
  const Dataset dataset_{
      {random_field("x", DType::uint8, {3, 100}, 200, 1), random_field("y", DType::float64, {}, 200, 2)}};
};
PENSTOCK_DEVICE_SUITE(LoaderLimits);

TEST_P(LoaderLimits, ADeviceThatHasNoMemoryToGrowTheRingIsToldAsTheBudgetIs) {
  Loader loader(dataset_, *faulty_device_,
                {.batch_size = 100, .shuffle = true, .full_patience = std::chrono::milliseconds(100)});
  faulty_->fail(Entry::device_allocate, 1, FaultyBackend::kForever,
                [] { throw OutOfMemory("memory of a device", 7, 5, 3); });
  std::vector<DeviceBatch> kept;
  std::string refused;
  for (int i = 0; i < 1000 && refused.empty(); ++i) {
    try {
      if (auto batch = loader.next(*stream_)) kept.push_back(std::move(*batch));
    } catch (const OutOfMemory& error) {
      refused = error.what();
    }
  }
  EXPECT_GE(kept.size(), 3U);
  EXPECT_THAT(refused, HasSubstr("0 of epoch 0"));
  EXPECT_THAT(refused, HasSubstr("memory of a device"));
  kept.clear();
  loader.start_epoch(9);
  expect_stored(dataset_, read_epoch(loader));
}

TEST_P(LoaderLimits, ADeviceWithoutMemoryForARingWithoutASlotIsTold) {
  faulty_->fail(Entry::device_allocate, 1, FaultyBackend::kForever,
                [] { throw OutOfMemory("memory of a device", 7, 5, 3); });
  EXPECT_THROW(Loader(dataset_, *faulty_device_, {.batch_size = 8}), OutOfMemory);
  faulty_->heal();
  EXPECT_EQ(faulty_->live(), LiveHandles{});
}

TEST_P(LoaderLimits, WhatDoesNotFitIsNamedWithBothSizes) {
  const std::size_t budget = 40000;
  const auto refusal = [&](LoaderOptions options) -> OutOfMemory {
    options.device_budget_bytes = budget;
    try {
      const Loader loader(dataset_, *faulty_device_, options);
    } catch (const OutOfMemory& error) {
      return error;
    }
    ADD_FAILURE() << "it was made";
    return OutOfMemory("", 0, 0, 0);
  };
  const OutOfMemory all = refusal({.batch_size = 8, .residency = Residency::parse("all")});
  EXPECT_GE(all.asked(), 200U * 308);
  EXPECT_LE(all.asked(), 200U * 308 + 1024);
  EXPECT_LT(all.free(), budget);
  EXPECT_GT(all.free(), 0U);
  const OutOfMemory part = refusal({.batch_size = 8, .residency = Residency::parse("60%")});
  EXPECT_GE(part.asked(), 120U * 308);
  const OutOfMemory batch = refusal({.batch_size = 150});
  EXPECT_GE(batch.asked(), 150U * 308);
  EXPECT_EQ(batch.free(), budget);
  EXPECT_THAT(batch.what(), HasSubstr("one batch does not fit"));
  EXPECT_EQ(faulty_->live(), LiveHandles{});
}

TEST_P(LoaderLimits, AutomaticResidencyTakesWhatFitsAnyBudget) {
  std::mt19937_64 random(3);
  bool some = false;
  bool all = false;
  for (int i = 0; i < 25; ++i) {
    const std::size_t budget = 3 * (8 * 308 + 1024) + random() % 90000;
    LoaderOptions options{.batch_size = 8,
                          .shuffle = true,
                          .residency = Residency::parse("auto"),
                          .device_budget_bytes = budget};
    if (i % 3 == 0) options.fields = {{.name = "x", .to = DType::float16, .scale = {1, 2, 3}}};
    const std::size_t slot = 8 * (i % 3 == 0 ? 608 : 308) + 1024;
    if (3 * slot > budget) continue;
    SCOPED_TRACE("budget " + std::to_string(budget));
    Loader loader(dataset_, *faulty_device_, options);
    const auto batches = read_epoch(loader);
    EXPECT_EQ(indices_of(batches).size(), 200U);
    if (i % 3 != 0) expect_stored(dataset_, batches);
    const FeedStatistics statistics = loader.stats();
    EXPECT_LE(statistics.resident_bytes + statistics.ring_bytes, budget);
    EXPECT_EQ(statistics.slots, 3U) << "the ring does not pay for it";
    some |= statistics.resident_bytes > 1600 && statistics.resident_bytes < 200 * 308;
    all |= statistics.resident_bytes == 200 * 308;
  }
  EXPECT_TRUE(some && all);
}

TEST_P(LoaderLimits, WhatIsResidentAndTheRingShareAnyBudget) {
  // Fields of any size side by side. None of them may leave the ring short of a slot.
  std::mt19937_64 random(4);
  for (int i = 0; i < 25; ++i) {
    const std::size_t samples = 20 + random() % 80;
    const Dataset dataset({random_field("x", DType::uint8, {1 + random() % 20000}, samples, 1),
                           random_field("y", DType::uint8, {1 + random() % 9000}, samples, 2),
                           random_field("z", DType::uint8, {1 + random() % 10}, samples, 3)});
    const std::size_t batch = 1 + random() % 20;
    const std::size_t ring = 3 * (batch * dataset.sample_bytes() + 4 * 256 + batch * 8);
    const std::size_t budget = ring + random() % (samples * dataset.sample_bytes() * 5 / 4);
    SCOPED_TRACE("round " + std::to_string(i));
    Loader loader(dataset, *device_,
                  {.batch_size = batch,
                   .shuffle = true,
                   .residency = Residency::parse("auto"),
                   .device_budget_bytes = budget});
    expect_stored(dataset, read_epoch(loader));
    EXPECT_EQ(loader.stats().slots, 3U);
  }
}

TEST_P(LoaderLimits, AFieldMayBeginInAPageThatIsLockedForAnother) {
  // The wide field's last page, which is locked because it streams, is the first of the narrow one.
  const auto page = static_cast<std::byte*>(std::aligned_alloc(4096, 32768));
  const std::shared_ptr<const void> owner(page, [](const void* data) { std::free(const_cast<void*>(data)); });
  const auto bytes = random_bytes(25000, 6);
  std::ranges::copy(bytes, page);
  const Dataset dataset(
      {read_array({.name = "wide", .dtype = DType::uint8, .shape = {200}}, std::span(page, 20000), owner),
       read_array({.name = "narrow", .dtype = DType::uint8, .shape = {50}}, std::span(page + 20000, 5000),
                  owner)});
  for (const std::size_t beside_ring : {6000U, 16000U}) {
    Loader loader(dataset, *device_,
                  {.batch_size = 10,
                   .shuffle = true,
                   .residency = Residency::parse("auto"),
                   .gather = GatherPath::zero_copy,
                   .device_budget_bytes = 3 * (2048 + 512 + 256) + beside_ring,
                   .copy_limit_bytes = 0});
    expect_stored(dataset, read_epoch(loader));
    EXPECT_GE(loader.stats().resident_bytes, 5000U);
    EXPECT_LT(loader.stats().resident_bytes, 25000U);
  }
}

TEST_P(LoaderLimits, OptionsThatCannotMeanAnythingAreRefused) {
  const auto refusal = [&](LoaderOptions options) -> std::string {
    options.batch_size = options.batch_size == 1 ? 8 : options.batch_size;
    try {
      const Loader loader(dataset_, *faulty_device_, options);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refusal({.batch_size = 0}), HasSubstr("batch size of 0"));
  EXPECT_THAT(refusal({.prefetch_depth = 0}), HasSubstr("depth of 0"));
  EXPECT_THAT(refusal({.prefetch_depth = 65}), HasSubstr("1 to 64"));
  EXPECT_THAT(refusal({.threads = LoaderOptions::kMostThreads + 1}), HasSubstr("use 1 to 16"));
  EXPECT_THAT(refusal({.threads = 4294967295U}), HasSubstr("4294967295 threads"));
  EXPECT_THAT(refusal({.shard = {.rank = 2, .world_size = 2}}), HasSubstr("ank 2"));
  EXPECT_THAT(refusal({.fields = {{.name = "x", .to = DType::float64}}}), HasSubstr("float64"));
  EXPECT_THAT(refusal({.fields = {{.name = "x", .to = DType::int16, .scale = {2}}}}), HasSubstr("int16"));
  const auto scaled = [&](std::vector<float> scale, std::vector<float> shift, std::size_t axis) {
    return refusal({.fields = {{.name = "x",
                                .to = DType::float32,
                                .scale = std::move(scale),
                                .shift = std::move(shift),
                                .channel_axis = axis}}});
  };
  EXPECT_THAT(scaled({1, 2}, {}, 0), HasSubstr("2 channels in axis 0"));
  EXPECT_THAT(scaled({1, 2, 3}, {}, 1), HasSubstr("3 channels in axis 1"));
  EXPECT_THAT(scaled({1, 2, 3}, {}, 2), HasSubstr("axis 2"));
  EXPECT_THAT(scaled({1, 2, 3}, {1, 2}, 0), HasSubstr("shift"));
  EXPECT_EQ(scaled({1, 2, 3}, {1}, 0), "accepted");
  for (const double fraction : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(refusal({.residency = {.kind = Residency::Kind::fraction, .fraction = fraction}}),
                HasSubstr("0 to 1"));
  }
  EXPECT_EQ(faulty_->live(), LiveHandles{});
}

TEST(LoaderNames, AreReadAsTheyAreWritten) {
  for (const GatherPath path :
       {GatherPath::automatic, GatherPath::host, GatherPath::zero_copy, GatherPath::copy_engine}) {
    EXPECT_EQ(parse_gather_path(gather_path_name(path)), path);
  }
  EXPECT_THROW(static_cast<void>(parse_gather_path("zero")), InvalidArgument);
  EXPECT_EQ(Residency::parse("none").kind, Residency::Kind::none);
  EXPECT_EQ(Residency::parse("all").kind, Residency::Kind::all);
  EXPECT_EQ(Residency::parse("auto").kind, Residency::Kind::automatic);
  EXPECT_EQ(Residency::parse("0.25").fraction, 0.25);
  EXPECT_EQ(Residency::parse("25%").fraction, 0.25);
  for (const char* text : {"", "%", "most", "1.5", "-1", "101%", "0.5x", "nan"}) {
    EXPECT_THROW(static_cast<void>(Residency::parse(text)), InvalidArgument) << text;
  }
}

}  // namespace
}  // namespace penstock::testing
