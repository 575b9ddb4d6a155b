#include "data/support.hpp"

#include <penstock/core/host_workers.hpp>
#include <penstock/data/narrow.hpp>
#include <penstock/data/readers.hpp>
#include <penstock/data/rows.hpp>

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using test::expect_error;

FieldReaderPtr random_column(const Field& field, std::size_t samples, std::uint64_t seed) {
  return read_array(field, test::random_bytes(samples * field.sample_bytes(), seed));
}

const std::vector<Field> kFields{{"a", DType::uint8, {}},    {"b", DType::int64, {}},
                                 {"c", DType::float16, {3}}, {"d", DType::boolean, {}},
                                 {"e", DType::float32, {}},  {"f", DType::uint16, {2, 2}},
                                 {"g", DType::float64, {2}}, {"h", DType::uint8, {5}}};

TEST(Rows, EachValueIsAlignedToItsType) {
  const RowLayout layout = lay_out_row(kFields);
  std::size_t end = 0;
  std::size_t bytes = 0;
  for (std::size_t f = 0; f < kFields.size(); ++f) {
    EXPECT_EQ(layout.offsets[f] % dtype_bytes(kFields[f].dtype), 0U) << kFields[f].name;
    end = std::max(end, layout.offsets[f] + kFields[f].sample_bytes());
    bytes += kFields[f].sample_bytes();
  }
  EXPECT_EQ(end, bytes) << "there are no gaps between the fields";
  EXPECT_EQ(layout.row_bytes, 64U);
  EXPECT_EQ(bytes, 49U);
}

TEST(Rows, HoldTheFieldsSideBySide) {
  constexpr std::size_t kSamples = 20'000;  // several blocks
  std::vector<FieldReaderPtr> fields;
  for (const Field& field : kFields) fields.push_back(random_column(field, kSamples, fields.size()));
  const RowLayout layout = lay_out_row(kFields);
  const Dataset rows({read_rows("rows", fields, layout)});
  EXPECT_EQ(rows.field(0).dtype, DType::uint8);
  EXPECT_EQ(rows.field(0).shape, Shape{layout.row_bytes});
  EXPECT_EQ(rows.sample_count(), kSamples);

  std::mt19937_64 random(9);
  std::vector<std::uint64_t> indices(kSamples);
  for (std::uint64_t& index : indices) index = random() % kSamples;
  std::vector<std::byte> made(kSamples * layout.row_bytes, std::byte{0xA5});
  rows.gather(0, indices, made);
  std::vector<std::byte> expected(made.size());
  for (std::size_t f = 0; f < fields.size(); ++f) {
    const std::size_t bytes = kFields[f].sample_bytes();
    for (std::size_t i = 0; i < kSamples; ++i) {
      std::memcpy(expected.data() + i * layout.row_bytes + layout.offsets[f],
                  fields[f]->memory().data() + indices[i] * bytes, bytes);
    }
  }
  EXPECT_EQ(made, expected);
}

TEST(Rows, AreReadAsColumns) {
  constexpr std::size_t kSamples = 300;
  std::vector<FieldReaderPtr> fields;
  for (const Field& field : kFields) fields.push_back(random_column(field, kSamples, fields.size()));
  const RowLayout layout = lay_out_row(kFields);
  const auto rows = std::make_shared<std::vector<std::byte>>(kSamples * layout.row_bytes);
  std::vector<std::uint64_t> all(kSamples);
  std::iota(all.begin(), all.end(), 0);
  read_rows("rows", fields, layout)->gather(all, *rows, StoreKind::cached);
  for (std::size_t f = 0; f < fields.size(); ++f) {
    const std::span column_bytes = std::span(*rows).subspan(
        layout.offsets[f], (kSamples - 1) * layout.row_bytes + kFields[f].sample_bytes());
    const Dataset column({read_strided(kFields[f], column_bytes, layout.row_bytes, rows)});
    EXPECT_EQ(column.sample_count(), kSamples);
    EXPECT_TRUE(column.is_strided(0));
    EXPECT_TRUE(column.memory(0).empty());
    std::vector<std::uint64_t> indices{299, 0, 7, 7, 150};
    std::vector<std::byte> got(indices.size() * column.sample_bytes(0));
    std::vector<std::byte> expected(got.size());
    column.gather(0, indices, got);
    fields[f]->gather(indices, expected, StoreKind::cached);
    EXPECT_EQ(got, expected) << kFields[f].name;
  }
}

TEST(Rows, RefuseWhatDoesNotFit) {
  const auto three = random_column({"three", DType::uint8, {}}, 3, 1);
  const auto four = random_column({"four", DType::uint8, {}}, 4, 1);
  const auto wide = random_column({"wide", DType::uint8, {16 * 1024 + 1}}, 3, 1);
  const auto layout_of = [](const std::vector<FieldReaderPtr>& fields) {
    std::vector<Field> described;
    for (const auto& field : fields) described.push_back(field->field());
    return lay_out_row(described);
  };
  expect_error<InvalidArgument>([&] { (void)read_rows("rows", {three, four}, layout_of({three, four})); },
                                {"'three' has 3 samples", "'four' has 4"});
  expect_error<InvalidArgument>([&] { (void)read_rows("rows", {three}, layout_of({three, four})); },
                                {"1 fields were given for a row with 2"});
  expect_error<InvalidArgument>([&] { (void)read_rows("rows", {}, {}); }, {"0 fields"});
  expect_error<InvalidArgument>([&] { (void)read_rows("rows", {wide}, layout_of({wide})); },
                                {"'wide' is too wide to lie in rows"});
}

TEST(StridedField, RefusesWhatDoesNotFit) {
  const std::vector<std::byte> memory(56);
  const Field number{"number", DType::int64, {}};
  for (const auto& [bytes, stride] :
       {std::pair<std::size_t, std::size_t>{56, 0}, {56, 5}, {55, 16}, {48, 16}, {7, 16}, {0, 8}}) {
    expect_error<InvalidArgument>(
        [&] { (void)read_strided(number, std::span(memory).first(bytes), stride, nullptr); },
        {"'number' have 8 bytes"});
  }
  expect_error<InvalidArgument>([&] { (void)read_strided({"none", DType::int64, {0}}, memory, 16, nullptr); },
                                {"'none' have 0 bytes"});
  EXPECT_EQ(read_strided(number, memory, 16, nullptr)->sample_count(), 4U);
  EXPECT_EQ(read_strided(number, std::span(memory).first(8), 16, nullptr)->sample_count(), 1U);
}

TEST(StridedField, WindowsOverlap) {
  const std::vector<std::uint16_t> series = {0, 1, 2, 3, 4, 5, 6};
  const Dataset windows(
      {read_strided({"window", DType::uint16, {3}}, std::as_bytes(std::span(series)), 4, nullptr)});
  EXPECT_EQ(windows.sample_count(), 3U);
  EXPECT_FALSE(windows.is_strided(0));  // or a loader would copy them one behind the other
  EXPECT_TRUE(windows.memory(0).empty());
  std::vector<std::uint16_t> got(6, 99);
  const std::uint64_t indices[] = {2, 0};
  windows.gather(0, indices, std::as_writable_bytes(std::span(got)));
  EXPECT_EQ(got, (std::vector<std::uint16_t>{4, 5, 6, 0, 1, 2}));
}

TEST(StridedField, IsCopied) {
  constexpr std::size_t kSamples = 200'001;  // more than one part of a copy
  const auto matrix = random_column({"matrix", DType::int32, {5}}, kSamples, 3);
  const Field pair{"pair", DType::int32, {2}};
  const auto memory = matrix->memory().subspan(8, (kSamples - 1) * 20 + 8);
  const Dataset strided({read_strided(pair, memory, 20, matrix)});
  HostWorkers workers({.threads = 3, .on_start = {}});
  for (HostWorkers* team : {static_cast<HostWorkers*>(nullptr), &workers}) {
    const auto copy = copy_field(strided, 0, team);
    ASSERT_EQ(copy->memory().size(), kSamples * 8);
    EXPECT_FALSE(copy->is_strided());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < kSamples; ++i) {
      wrong += std::memcmp(copy->memory().data() + i * 8, memory.data() + i * 20, 8) != 0 ? 1 : 0;
    }
    EXPECT_EQ(wrong, 0U);
  }
}

}  // namespace
}  // namespace penstock
