#include "loader/faulty_fixture.hpp"
#include "loader/listed_batches.hpp"

#include <penstock/data/rows.hpp>

#include <gmock/gmock.h>

#include <random>

/// Fields of small samples that travel side by side, in rows.
namespace penstock::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kTableSamples = 1'003;
constexpr std::size_t kOff = 1;  // a budget in which no rows fit

/// Integers below `limit`, so that they can be narrowed.
template <typename T>
FieldReaderPtr integers(std::string name, DType dtype, Shape shape, std::uint64_t limit, std::uint64_t seed) {
  Field field{.name = std::move(name), .dtype = dtype, .shape = std::move(shape)};
  std::vector<T> values(kTableSamples * element_count(field.shape));
  std::mt19937_64 random(seed);
  for (T& value : values) value = static_cast<T>(random() % limit);
  return read_array(std::move(field), std::move(values));
}

/// Narrow columns of many types, a field that is too wide for rows, and one that is made by a function.
Dataset table(std::size_t integer_columns = 40) {
  std::vector<FieldReaderPtr> fields{
      random_field("image", DType::uint8, {12, 12}, kTableSamples, 1),
      random_field("u8", DType::uint8, {}, kTableSamples, 2),
      random_field("flag", DType::boolean, {}, kTableSamples, 3),
      random_field("f64", DType::float64, {}, kTableSamples, 4),
      as_callback(random_field("made", DType::int16, {}, kTableSamples, 5)),
      random_field("point", DType::float32, {3}, kTableSamples, 6),
      random_field("half", DType::float16, {}, kTableSamples, 7),
      random_field("pixel", DType::uint8, {3, 2}, kTableSamples, 8),
      random_field("i16", DType::int16, {}, kTableSamples, 11),
      integers<std::int32_t>("i32", DType::int32, {2}, 70'000, 9),
      random_field("i64", DType::int64, {}, kTableSamples, 10),
  };
  for (std::size_t c = 0; c < integer_columns; ++c) {
    const std::uint64_t limit = c % 3 == 0 ? 200 : c % 3 == 1 ? 60'000 : 1'000'000;
    fields.push_back(integers<std::int64_t>("c" + std::to_string(c), DType::int64, {}, limit, 100 + c));
  }
  return Dataset(std::move(fields));
}

/// The same without what a function makes: no kernel reads that.
Dataset in_memory(const Dataset& dataset) {
  std::vector<FieldReaderPtr> fields;
  for (std::size_t f = 0; f < dataset.field_count(); ++f) {
    if (!dataset.memory(f).empty()) fields.push_back(dataset.reader(f));
  }
  return Dataset(std::move(fields));
}

std::vector<FieldOptions> conversions() {
  return {{.name = "u8", .to = DType::float32, .scale = {0.1F}, .shift = {-3}},
          {.name = "pixel",
           .to = DType::bfloat16,
           .scale = {1.5F, 0.25F, 3},
           .shift = {1, 2, 3},
           .channel_axis = 0},
          {.name = "half", .to = DType::float32},
          {.name = "i16", .to = DType::float32, .scale = {0.001F}}};
}

class LoaderRows : public FaultyLoaderTest {
 protected:
  LoaderOptions options() const {
    LoaderOptions options;
    options.batch_size = 96;  // the last batch has 43 samples
    options.shuffle = true;
    options.seed = 5;
    options.fields = conversions();
    return options;
  }

  /// Two epochs with rows, compared with the same epochs without.
  void expect_the_same(const Dataset& dataset, LoaderOptions options, const char* what) {
    Loader with(dataset, *device_, options);
    EXPECT_NE(with.plan().rows(), nullptr) << what;
    options.row_budget_bytes = kOff;
    Loader without(dataset, *device_, options);
    EXPECT_EQ(without.plan().rows(), nullptr);
    for (int epoch = 0; epoch < 2; ++epoch) {
      const auto expected = read_epoch(without);
      const auto got = read_epoch(with);
      ASSERT_EQ(got.size(), expected.size());
      for (std::size_t b = 0; b < got.size(); ++b) {
        ASSERT_EQ(got[b].indices, expected[b].indices);
        for (std::size_t f = 0; f < dataset.field_count(); ++f) {
          ASSERT_EQ(got[b].fields[f], expected[b].fields[f])
              << what << ", epoch " << epoch << ", batch " << b << ", field " << dataset.field(f).name;
        }
      }
    }
  }
};
PENSTOCK_DEVICE_SUITE(LoaderRows);

TEST_P(LoaderRows, DeliverWhatFieldsByThemselvesDo) {
  const Dataset dataset = table();
  for (const GatherPath gather : {GatherPath::automatic, GatherPath::zero_copy, GatherPath::host}) {
    const Dataset fed = gather == GatherPath::zero_copy ? in_memory(dataset) : dataset;
    for (const char* residency : {"none", "0.4", "all", "auto"}) {
      LoaderOptions asked = options();
      asked.gather = gather;
      asked.residency = Residency::parse(residency);
      expect_the_same(fed, asked, residency);
    }
  }
}

TEST_P(LoaderRows, TravelInEveryOrder) {
  const Dataset dataset = table();
  LoaderOptions in_sequence = options();
  in_sequence.shuffle = false;
  in_sequence.seed = 0;
  expect_the_same(dataset, in_sequence, "in sequence");
  in_sequence.residency = Residency::parse("0.3");
  expect_the_same(dataset, in_sequence, "in sequence, partly resident");
  LoaderOptions sharded = options();
  sharded.shard = {.rank = 1, .world_size = 3, .drop_last = false};
  expect_the_same(dataset, sharded, "sharded");
  LoaderOptions wide = options();
  wide.narrow = false;
  expect_the_same(dataset, wide, "not narrowed");
}

TEST_P(LoaderRows, OfManySegments) {
  LoaderOptions plain = options();
  plain.fields.clear();
  plain.narrow = false;
  expect_the_same(table(150), plain, "rows of more than 1 KiB");
}

TEST_P(LoaderRows, ReplaceWhatTheyWereMadeOf) {
  const Dataset dataset = table();
  const Loader loader(dataset, *device_, options());
  ASSERT_NE(loader.plan().rows(), nullptr);
  ASSERT_EQ(loader.dataset().field_count(), dataset.field_count());
  const auto all = numbers(kTableSamples);
  for (std::size_t f = 0; f < dataset.field_count(); ++f) {
    if (dataset.field(f).dtype != loader.dataset().field(f).dtype) continue;
    std::vector<std::byte> expected(kTableSamples * dataset.sample_bytes(f));
    std::vector<std::byte> got(expected.size());
    dataset.gather(f, all, expected);
    loader.dataset().gather(f, all, got);
    EXPECT_EQ(got, expected) << dataset.field(f).name;
    EXPECT_EQ(loader.dataset().memory(f).empty(), loader.plan().fields[f].is_column() || f == 4);
  }
}

TEST_P(LoaderRows, TakeNoMoreThanTheBudget) {
  const Dataset dataset = table();
  LoaderOptions tight = options();
  tight.row_budget_bytes = 32 * kTableSamples;
  Loader loader(dataset, *device_, tight);
  ASSERT_NE(loader.plan().rows(), nullptr);
  EXPECT_EQ(loader.plan().rows()->sample_bytes, 32U);
  const auto is_column = [&](const char* name) {
    return loader.plan().fields[dataset.field_index(name)].is_column();
  };
  EXPECT_TRUE(is_column("flag"));
  EXPECT_FALSE(is_column("f64")) << "the widest fields stay where they are";
  expect_the_same(dataset, tight, "a tight budget");
}

TEST_P(LoaderRows, CrossTheLinkTogether) {
  const Dataset dataset = in_memory(table(100));
  LoaderOptions asked = options();
  asked.fields.clear();
  Loader loader(dataset, *device_, asked);
  const std::size_t row_bytes = loader.plan().rows()->sample_bytes;
  static_cast<void>(read_epoch(loader));
  EXPECT_EQ(loader.stats().link_bytes, kTableSamples * (row_bytes + dataset.sample_bytes(0)));
  EXPECT_THAT(loader.describe().back(), HasSubstr("in rows of " + std::to_string(row_bytes) + " bytes"));
}

TEST_P(LoaderRows, AreMadeByDrawnBatches) {
  const Dataset dataset = table();
  LoaderOptions drawn;
  drawn.batch_size = 16;
  drawn.fields = conversions();
  const std::vector<std::vector<std::uint64_t>> wanted{{5, 5, 1002, 0}, numbers(16), {7}};
  const auto make = [&](std::size_t budget) {
    LoaderOptions asked = drawn;
    asked.row_budget_bytes = budget;
    asked.batch_sampler = std::make_shared<ListedBatches>(std::map<std::uint64_t, Batches>{{0, wanted}});
    return Loader(dataset, *device_, asked);
  };
  Loader with = make(0);
  Loader without = make(kOff);
  ASSERT_NE(with.plan().rows(), nullptr);
  const auto expected = read_epoch(without);
  const auto got = read_epoch(with);
  ASSERT_EQ(got.size(), 3U);
  for (std::size_t b = 0; b < 3; ++b) {
    EXPECT_EQ(got[b].indices, wanted[b]);
    EXPECT_EQ(got[b].fields, expected[b].fields);
  }
}

TEST_P(LoaderRows, AreLeftOutWithoutMemoryForThem) {
  const Dataset dataset({random_field("a", DType::int64, {}, kTableSamples, 1),
                         random_field("b", DType::float32, {2}, kTableSamples, 2)});
  faulty_->fail(Entry::host_register, 1, 1, [] { throw Unsupported("no locking today"); });
  faulty_->fail(Entry::host_allocate, 1, 1, [] { throw OutOfMemory("locked memory", 1, 1, 0); });
  LoaderOptions asked = options();
  asked.fields.clear();
  asked.narrow = false;
  Loader loader(dataset, *faulty_device_, asked);
  EXPECT_EQ(loader.plan().rows(), nullptr);
  expect_stored(dataset, read_epoch(loader));
}

TEST_P(LoaderRows, ThatCannotBeSplitEndTheEpoch) {
  const Dataset dataset = in_memory(table());
  LoaderOptions asked = options();
  asked.fields.clear();
  asked.narrow = false;
  Loader loader(dataset, *faulty_device_, asked);
  ASSERT_NE(loader.plan().rows(), nullptr);
  const HostBatch first = read(*loader.next(*stream_));
  expect_stored(dataset, first);
  faulty_->fail(Entry::split_rows);
  EXPECT_THROW(static_cast<void>(read_epoch(loader)), DeviceError);
  loader.start_epoch(1);
  expect_stored(dataset, read_epoch(loader));
}

/// Fields that are columns of one matrix of int64, 24 wide: 20 single ones, one of three values, and one of
/// all 24 which is too wide for rows, of every second row.
Dataset columns_of_a_matrix() {
  constexpr std::size_t kWide = 24;
  const auto matrix = integers<std::int64_t>("m", DType::int64, {2 * kWide}, 60'000, 17);
  const auto columns = [&](std::string name, std::size_t first, Shape shape) {
    const Field field{.name = std::move(name), .dtype = DType::int64, .shape = std::move(shape)};
    const std::size_t stride = 2 * kWide * 8;
    const auto memory =
        matrix->memory().subspan(first * 8, (kTableSamples - 1) * stride + field.sample_bytes());
    return read_strided(field, memory, stride, matrix);
  };
  std::vector<FieldReaderPtr> fields;
  for (std::size_t c = 0; c < 20; ++c) fields.push_back(columns("c" + std::to_string(c), c, {}));
  fields.push_back(columns("three", 21, {3}));
  fields.push_back(columns("all", 0, {kWide}));
  return Dataset(std::move(fields));
}

TEST_P(LoaderRows, AreMadeOfColumnsOfAMatrix) {
  const Dataset dataset = columns_of_a_matrix();
  LoaderOptions asked = options();
  asked.fields.clear();
  expect_the_same(dataset, asked, "narrowed");
  EXPECT_EQ(Loader(dataset, *device_, asked).plan().rows()->sample_bytes, 96U) << "`all`, too";
  asked.narrow = false;
  expect_the_same(dataset, asked, "as they are");
  Loader loader(dataset, *device_, asked);
  EXPECT_EQ(loader.plan().rows()->sample_bytes, (20 + 3 + 1) * 8U);
  expect_stored(dataset, read_epoch(loader));
  EXPECT_FALSE(loader.dataset().is_strided(21)) << "kernels read the field that is no column";
  asked.gather = GatherPath::zero_copy;
  Loader by_kernels(dataset, *device_, asked);
  expect_stored(dataset, read_epoch(by_kernels));
  asked.row_budget_bytes = kOff;
  Loader without(dataset, *device_, asked);
  EXPECT_EQ(without.plan().rows(), nullptr);
  expect_stored(dataset, read_epoch(without));
}

TEST_P(LoaderRows, ColumnsOfAMatrixAreCopiedWithoutMemoryForRows) {
  faulty_->fail(Entry::host_register, 1, 1, [] { throw Unsupported("no locking today"); });
  faulty_->fail(Entry::host_allocate, 1, 1, [] { throw OutOfMemory("locked memory", 1, 1, 0); });
  const Dataset all = columns_of_a_matrix();
  const Dataset dataset({all.reader(0), all.reader(1), all.reader(20)});
  LoaderOptions asked = options();
  asked.fields.clear();
  asked.narrow = false;
  Loader loader(dataset, *faulty_device_, asked);
  EXPECT_EQ(loader.plan().rows(), nullptr);
  for (std::size_t f = 0; f < dataset.field_count(); ++f) EXPECT_FALSE(loader.dataset().is_strided(f));
  expect_stored(dataset, read_epoch(loader));
}

TEST_P(LoaderRows, ColumnsOfAMatrixAreCopiedWithoutRoomForRows) {
  const Dataset all = columns_of_a_matrix();
  std::vector<FieldReaderPtr> singles;
  for (std::size_t f = 0; f < 20; ++f) singles.push_back(all.reader(f));
  const Dataset dataset(std::move(singles));
  LoaderOptions asked = options();
  asked.fields.clear();
  asked.narrow = false;
  asked.gather = GatherPath::zero_copy;
  bool without_rows = false;
  for (std::size_t budget = 30'000; budget < 200'000; budget += 2'000) {
    asked.device_budget_bytes = budget;
    try {
      Loader loader(dataset, *device_, asked);
      if (loader.plan().rows() != nullptr) continue;
      without_rows = true;
      EXPECT_FALSE(loader.dataset().is_strided(0));
      expect_stored(dataset, read_epoch(loader));
    } catch (const OutOfMemory&) {
      EXPECT_FALSE(without_rows) << "less was enough";
    }
  }
  EXPECT_TRUE(without_rows);
}

TEST_P(LoaderRows, ColumnsOfAMatrixThatMayChangeAreReadWhereTheyLie) {
  const Dataset dataset = columns_of_a_matrix();
  LoaderOptions asked = options();
  asked.fields.clear();
  asked.data_may_change = true;
  Loader loader(dataset, *device_, asked);
  EXPECT_TRUE(loader.dataset().is_strided(0));
  expect_stored(dataset, read_epoch(loader));
}

TEST_P(LoaderRows, AreNotMadeOfDataThatMayChange) {
  LoaderOptions asked = options();
  asked.data_may_change = true;
  const Loader loader(table(), *device_, asked);
  EXPECT_EQ(loader.plan().rows(), nullptr);
}

}  // namespace
}  // namespace penstock::testing
