#include "data/support.hpp"

#include <penstock/data/chunks.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

namespace penstock {
namespace {

using test::expect_error;

const Field kPair{"pair", DType::int32, {2}};

FieldReaderPtr pairs(std::vector<std::int32_t> values) { return read_array(kPair, std::move(values)); }

std::vector<std::int32_t> gathered(const FieldReaderPtr& reader, const std::vector<std::uint64_t>& indices) {
  std::vector<std::int32_t> got(2 * indices.size(), -1);
  Dataset({reader}).gather(0, indices, std::as_writable_bytes(std::span(got)));
  return got;
}

TEST(Chunks, AreOneField) {
  const FieldReaderPtr all = read_chunks("all", {pairs({0, 1, 2, 3}), pairs({4, 5}), pairs({6, 7, 8, 9})});
  EXPECT_EQ(all->field().name, "all");
  EXPECT_EQ(all->sample_count(), 5U);
  EXPECT_TRUE(all->memory().empty());
  EXPECT_EQ(gathered(all, {0, 1, 2, 3, 4}), (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(gathered(all, {4, 2, 0}), (std::vector<std::int32_t>{8, 9, 4, 5, 0, 1}));
}

TEST(Chunks, MayHaveAnOrder) {
  const FieldReaderPtr some = read_chunks("some", {pairs({0, 1, 2, 3}), pairs({4, 5})}, {2, 0, 2});
  EXPECT_EQ(some->sample_count(), 3U);
  EXPECT_EQ(gathered(some, {0, 1, 2}), (std::vector<std::int32_t>{4, 5, 0, 1, 4, 5}));
}

TEST(Chunks, RefusesWhatDoesNotFit) {
  expect_error<InvalidArgument>([] { (void)read_chunks("x", {}); }, {"'x' has no chunks"});
  expect_error<InvalidArgument>([] { (void)read_chunks("x", {pairs({0, 1})}, {0, 1}); },
                                {"Row 1 of field 'x' is past its end", "1 rows"});
  const auto of_three = read_array(Field{"wide", DType::int32, {3}}, std::vector<std::int32_t>(3));
  const auto made = read_callback(kPair, 2, [](std::uint64_t, std::span<std::byte>) { return 0; });
  for (const FieldReaderPtr& other : {of_three, made}) {
    expect_error<InvalidArgument>([&] { (void)read_chunks("x", {pairs({0, 1}), other}); },
                                  {"The chunks of field 'x'", "one type and shape"});
  }
}

TEST(Draws, AreSharesOfEachSource) {
  const FieldReaderPtr draws =
      read_draws("draws", {pairs({0, 0, 1, 1, 2, 2, 3, 3, 4, 4}), pairs({5, 5, 6, 6})}, {3, 5}, 7);
  EXPECT_EQ(draws->sample_count(), 8U);
  EXPECT_TRUE(draws->varies_by_epoch());
  std::set<std::vector<std::int32_t>> orders;
  for (std::uint64_t epoch = 0; epoch < 8; ++epoch) {
    std::vector<std::int32_t> got(16, -1);
    Dataset({draws}).gather(0, std::vector<std::uint64_t>{0, 1, 2, 3, 4, 5, 6, 7},
                            std::as_writable_bytes(std::span(got)), StoreKind::cached, epoch);
    orders.insert(got);
    EXPECT_EQ(std::set(got.begin(), got.begin() + 6).size(), 3U) << "three of the five";
    EXPECT_LT(*std::max_element(got.begin(), got.begin() + 6), 5);
    EXPECT_EQ(got[6] + got[8], 11) << "both, one after the other";
    EXPECT_EQ(std::vector(got.begin() + 6, got.begin() + 10),
              std::vector(got.begin() + 10, got.begin() + 14));
  }
  EXPECT_GT(orders.size(), 4U);
  expect_error<InvalidArgument>([] { (void)read_draws("x", {pairs({0, 1})}, {1, 2}, 0); },
                                {"1 sources and 2 shares"});
}

}  // namespace
}  // namespace penstock
