#include "data/support.hpp"

#include <penstock/data/packs.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace penstock {
namespace {

using test::expect_error;

/// Samples of these lengths, whose values count up over all samples.
RaggedField counting(const std::string& name, const std::vector<std::size_t>& lengths) {
  const auto values =
      std::make_shared<std::vector<std::int32_t>>(std::reduce(lengths.begin(), lengths.end()));
  std::iota(values->begin(), values->end(), 0);
  RaggedField ragged{
      .field = {.name = name, .dtype = DType::int32, .shape = {}}, .samples = {}, .keep_alive = values};
  std::size_t begin = 0;
  for (const std::size_t length : lengths) {
    ragged.samples.push_back(std::as_bytes(std::span(*values).subspan(begin, length)));
    begin += length;
  }
  return ragged;
}

std::vector<std::size_t> random_lengths(std::size_t count, std::size_t most) {
  std::mt19937 random(count);
  std::vector<std::size_t> lengths(count);
  for (std::size_t& length : lengths) length = random() % (most + 1);
  return lengths;
}

std::vector<std::int32_t> gathered(const FieldReaderPtr& reader, std::uint64_t epoch, std::uint64_t pack) {
  std::vector<std::int32_t> got(element_count(reader->field().shape), -1);
  Dataset({reader}).gather(0, {{pack}}, std::as_writable_bytes(std::span(got)), StoreKind::cached, epoch);
  got.resize(element_count(reader->shape_in_epoch(epoch, pack)));
  return got;
}

using Numbers = std::vector<std::int32_t>;

TEST(Packs, TakeTheFirstOneWithRoom) {
  const std::vector<RaggedField> fields{counting("ids", {3, 4, 2, 0, 5, 1})};
  const auto packing = std::make_shared<const Packing>(fields, PackOptions{.values = 6});
  const auto readers = read_packs(fields, packing);
  ASSERT_EQ(readers.size(), 2U);
  EXPECT_EQ(readers[0]->field().shape, (Shape{6}));
  EXPECT_EQ(readers[1]->field().name, "cu_seqlens");
  EXPECT_EQ(readers[0]->samples_in_epoch(7), 3U);
  // 3 and 2 and 1; 4; 5.
  std::vector<Numbers> packs;
  std::vector<Numbers> begins;
  for (std::uint64_t pack = 0; pack < 3; ++pack) {
    packs.push_back(gathered(readers[0], 0, pack));
    begins.push_back(gathered(readers[1], 0, pack));
  }
  EXPECT_EQ(packs, (std::vector<Numbers>{{0, 1, 2, 7, 8, 14}, {3, 4, 5, 6}, {9, 10, 11, 12, 13}}));
  EXPECT_EQ(begins, (std::vector<Numbers>{{0, 3, 5, 6}, {0, 4}, {0, 5}}));
  EXPECT_EQ(packing->plan(0)->packs[0].longest, 3U);
  EXPECT_EQ(packing->describe(2), "3 packs of up to 6 values and 5 samples in epoch 2, 83.3 % full");
}

TEST(Packs, HaveEachSampleOnceInEveryEpoch) {
  const std::vector<std::size_t> lengths = random_lengths(5000, 300);
  const Packing packing({counting("ids", lengths)}, {.values = 2048, .shuffle = true, .seed = 3});
  std::vector<std::uint32_t> with_values;
  for (std::uint32_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] > 0) with_values.push_back(i);
  }
  std::set<std::vector<std::uint32_t>> orders;
  for (const std::uint64_t epoch : {0U, 1U, 2U, 3U, 0U}) {
    const auto plan = packing.plan(epoch);
    std::vector<std::uint32_t> packed;
    for (const Packing::Pack& pack : plan->packs) {
      ASSERT_LE(pack.values, 2048U);
      EXPECT_LE(pack.samples.size(), packing.most_samples());
      packed.insert(packed.end(), pack.samples.begin(), pack.samples.end());
    }
    orders.insert(packed);
    std::ranges::sort(packed);
    EXPECT_EQ(packed, with_values) << epoch;
    EXPECT_GT(plan->values, plan->packs.size() * 2048 * 98 / 100);
  }
  EXPECT_EQ(orders.size(), 4U);  // that of epoch 0 is the same again
}

TEST(Packs, MayBeMatrices) {
  const std::vector<RaggedField> fields{counting("ids", {1, 3, 2, 0, 0}),
                                        counting("labels", {1, 3, 2, 0, 0})};
  const auto packing = std::make_shared<const Packing>(fields, PackOptions{.samples = 2});
  const auto readers = read_packs(fields, packing);
  ASSERT_EQ(readers.size(), 3U);
  EXPECT_EQ(readers[2]->field().name, "lengths");
  EXPECT_EQ(readers[0]->samples_in_epoch(0), 3U);
  EXPECT_EQ(readers[0]->shape_in_epoch(0, 0), (Shape{2, 3}));
  EXPECT_EQ(gathered(readers[1], 0, 0), (Numbers{0, 0, 0, 1, 2, 3}));
  EXPECT_EQ(gathered(readers[2], 0, 0), (Numbers{1, 3}));
  EXPECT_EQ(gathered(readers[0], 0, 1), (Numbers{4, 5, 0, 0}));
  EXPECT_EQ(readers[0]->shape_in_epoch(0, 2), (Shape{1, 0}));
  const Packing whole(fields, PackOptions{.samples = 2, .drop_last = true});
  EXPECT_EQ(whole.plan(0)->packs.size(), 2U);
}

TEST(Packs, RefuseWhatDoesNotFit) {
  const auto refuses = [](const std::vector<RaggedField>& fields, PackOptions options,
                          const std::vector<std::string>& words) {
    expect_error<InvalidArgument>([&] { const Packing packing(fields, options); }, words);
  };
  refuses({counting("ids", {3, 9, 2})}, {.values = 8}, {"Sample 1 of field 'ids' has 9 values", "holds 8"});
  refuses({counting("ids", {3, 2}), counting("labels", {3, 1})}, {.values = 8},
          {"Sample 1 of field 'ids' has 2 values, and that of 'labels' has 1"});
  refuses({counting("ids", {3, 2}), counting("labels", {3})}, {.values = 8},
          {"'ids' has 2 samples", "'labels' has 1"});
  refuses({counting("ids", {0, 0})}, {.values = 8}, {"field 'ids' have no values"});
  refuses({counting("ids", {1})}, {.samples = 2, .drop_last = true}, {"Matrices of 2 of the 1 samples"});
  const std::vector<RaggedField> fields{counting("ids", {1, 2})};
  const auto readers = read_packs(fields, std::make_shared<const Packing>(fields, PackOptions{.values = 3}));
  expect_error<InvalidArgument>([&] { (void)gathered(readers[0], 0, 1); },
                                {"Pack 1 of epoch 0", "there are 1"});
}

}  // namespace
}  // namespace penstock
