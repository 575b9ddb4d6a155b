#include "loader/loader_fixture.hpp"

#include <algorithm>

/// The bytes of batches, gathered in every way.
namespace penstock::testing {
namespace {

Dataset small_dataset(std::size_t samples = 103) {
  return Dataset({random_field("images", DType::uint8, {3, 5, 7}, samples, 1),
                  random_field("labels", DType::int64, {}, samples, 2),
                  random_field("weights", DType::float32, {4}, samples, 3)});
}

class LoaderBytes : public LoaderTest {};
PENSTOCK_DEVICE_SUITE(LoaderBytes);

TEST_P(LoaderBytes, EveryWayGivesTheSameBatches) {
  const Dataset dataset = small_dataset();
  for (const GatherPath gather :
       {GatherPath::automatic, GatherPath::host, GatherPath::zero_copy, GatherPath::copy_engine}) {
    for (const char* residency : {"none", "all", "0.4", "auto", "0"}) {
      SCOPED_TRACE(std::string(gather_path_name(gather)) + ", " + residency);
      Loader loader(dataset, *device_,
                    {.batch_size = 16,
                     .shuffle = true,
                     .seed = 7,
                     .residency = Residency::parse(residency),
                     .gather = gather,
                     .copy_limit_bytes = std::strcmp(residency, "auto") == 0 ? 1U << 20 : 0U,
                     .threads = 2});
      for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
        const auto batches = read_epoch(loader);
        ASSERT_EQ(batches.size(), 7U);
        EXPECT_EQ(batches.back().indices.size(), 103U % 16);
        expect_stored(dataset, batches);
        Sampler sampler(103, {.shuffle = true, .seed = 7, .batch_size = 103});
        sampler.start_epoch(epoch);
        std::vector<std::uint64_t> order(103);
        sampler.next(order);
        EXPECT_EQ(indices_of(batches), order);
      }
    }
  }
}

TEST_P(LoaderBytes, LoadersShareMemoryThatEitherLocked) {
  const Dataset dataset = small_dataset();
  const LoaderOptions options{
      .batch_size = 16, .shuffle = true, .gather = GatherPath::zero_copy, .copy_limit_bytes = 0};
  auto first = std::make_unique<Loader>(dataset, *device_, options);
  Loader second(dataset, *device_, options);
  expect_stored(dataset, read_epoch(*first));
  first.reset();
  expect_stored(dataset, read_epoch(second));
}

TEST_P(LoaderBytes, MemoryThatWasLockedBeforeIsReadAsItIs) {
  const std::size_t samples = 200;
  Buffer pinned = pinned_->allocate(samples * 100);
  const auto bytes = random_bytes(pinned.size(), 9);
  std::memcpy(pinned.data(), bytes.data(), bytes.size());
  const Dataset dataset(
      {read_array({.name = "x", .dtype = DType::uint8, .shape = {100}}, pinned.bytes(), nullptr)});
  Loader loader(dataset, *device_, {.batch_size = 16, .shuffle = true, .gather = GatherPath::zero_copy});
  expect_stored(dataset, read_epoch(loader));
}

TEST_P(LoaderBytes, FieldsThatTheDeviceCannotReadAreGatheredByTheHost) {
  const Dataset plain = small_dataset();
  const Dataset dataset({as_callback(plain.reader(0)), plain.reader(1), as_callback(plain.reader(2))});
  for (const char* residency : {"none", "all", "0.4", "auto"}) {
    SCOPED_TRACE(residency);
    Loader loader(
        dataset, *device_,
        {.batch_size = 16, .shuffle = true, .residency = Residency::parse(residency), .threads = 3});
    expect_stored(plain, read_epoch(loader));
  }
  EXPECT_THROW(Loader(dataset, *device_, {.batch_size = 16, .gather = GatherPath::zero_copy}),
               InvalidArgument);
}

TEST_P(LoaderBytes, NarrowedIntegersComeBackExactly) {
  std::vector<std::int64_t> labels(500);
  std::vector<std::int32_t> words(500 * 3);
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<std::int64_t>(i % 200);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = static_cast<std::int32_t>(i * 40 % 65536);
  const Dataset dataset({read_array({.name = "labels", .dtype = DType::int64, .shape = {}}, labels),
                         read_array({.name = "words", .dtype = DType::int32, .shape = {3}}, words)});
  for (const GatherPath gather : {GatherPath::host, GatherPath::zero_copy, GatherPath::copy_engine}) {
    LoaderOptions options{.batch_size = 64, .shuffle = true, .gather = gather};
    options.row_budget_bytes = 1;  // rows would be padded
    Loader loader(dataset, *device_, options);
    expect_stored(dataset, read_epoch(loader));
    EXPECT_EQ(loader.stats().link_bytes, 500U * (1 + 3 * 2));
    EXPECT_EQ(loader.stats().delivered_bytes, 500U * (8 + 3 * 4));
    options.narrow = false;
    Loader wide(dataset, *device_, options);
    expect_stored(dataset, read_epoch(wide));
    EXPECT_EQ(wide.stats().link_bytes, 500U * (8 + 3 * 4));
  }
}

TEST_P(LoaderBytes, FieldsWidenOnArrival) {
  const std::size_t samples = 70;
  const Dataset dataset({random_field("images", DType::uint8, {3, 4, 5}, samples, 4)});
  const auto pixels = dataset.memory(0);
  for (const GatherPath gather : {GatherPath::host, GatherPath::zero_copy, GatherPath::copy_engine}) {
    for (const char* residency : {"none", "0.5", "all"}) {
      SCOPED_TRACE(std::string(gather_path_name(gather)) + ", " + residency);
      Loader loader(
          dataset, *device_,
          {.batch_size = 32,
           .shuffle = true,
           .residency = Residency::parse(residency),
           .gather = gather,
           .fields = {
               {.name = "images", .to = DType::float32, .scale = {0.5F, 2.0F, 3.0F}, .shift = {1.0F}}}});
      std::size_t seen = 0;
      for (const HostBatch& batch : read_epoch(loader)) {
        std::vector<float> values(batch.fields[0].size() / sizeof(float));
        std::memcpy(values.data(), batch.fields[0].data(), batch.fields[0].size());
        ASSERT_EQ(values.size(), batch.indices.size() * 60);
        for (std::size_t i = 0; i < values.size(); ++i) {
          const auto pixel = std::to_integer<unsigned>(pixels[batch.indices[i / 60] * 60 + i % 60]);
          const float scale = std::array{0.5F, 2.0F, 3.0F}[i % 60 / 20];
          ASSERT_EQ(values[i], static_cast<float>(pixel) * scale + 1.0F) << "element " << i;
          ++seen;
        }
      }
      EXPECT_EQ(seen, samples * 60);
      EXPECT_EQ(loader.next(*stream_)->field("images").dtype, DType::float32);
    }
  }
}

TEST_P(LoaderBytes, ABatchKnowsItsFields) {
  Loader loader(small_dataset(), *device_, {.batch_size = 8});
  const auto batch = loader.next(*stream_);
  EXPECT_EQ(batch->field(1).name, small_dataset().field(1).name);
  EXPECT_THROW(static_cast<void>(batch->field(batch->field_count())), InvalidArgument);
  EXPECT_THROW(static_cast<void>(batch->field("no such field")), InvalidArgument);
}

}  // namespace
}  // namespace penstock::testing
