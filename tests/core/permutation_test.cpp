#include <penstock/core/error.hpp>
#include <penstock/core/permutation.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace penstock {
namespace {

std::vector<std::uint64_t> whole_order(const KeyedPermutation& order) {
  std::vector<std::uint64_t> indices(order.size());
  order.fill(0, 1, indices);
  return indices;
}

bool is_permutation_of_range(std::vector<std::uint64_t> indices) {
  std::sort(indices.begin(), indices.end());
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] != i) return false;
  }
  return true;
}

TEST(KeyedPermutation, ReachesEveryIndexOnce) {
  std::vector<std::uint64_t> sizes(300);
  std::iota(sizes.begin(), sizes.end(), 1);
  for (const std::uint64_t size : {511u, 512u, 513u, 1000u, 4095u, 4096u, 4097u, 60000u, 65537u})
    sizes.push_back(size);
  for (const std::uint64_t size : sizes) {
    EXPECT_TRUE(is_permutation_of_range(whole_order(KeyedPermutation(size, size * 7, 3)))) << size;
  }
}

TEST(KeyedPermutation, FillAgreesWithOneByOneAtAnyPositionAndStride) {
  std::mt19937_64 random(11);
  for (const std::uint64_t size : {1ull, 2ull, 7ull, 64ull, 65ull, 1000ull, 16384ull, 1ull << 32,
                                   (1ull << 33) + 5, 1000000000000ull, 1ull << 62}) {
    const KeyedPermutation order(size, random(), random());
    for (const std::size_t count : {0u, 1u, 15u, 16u, 17u, 255u, 256u, 257u, 1000u}) {
      // Also past the size, if that fits the limit.
      const std::uint64_t first = random() % size + (size < 1ull << 60 ? size * (count % 3) : 0);
      const std::uint64_t stride = random() % 5 + 1;
      std::vector<std::uint64_t> indices(count, ~0ull);
      order.fill(first, stride, indices);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(indices[i], order((first + i * stride) % size)) << "size " << size << " element " << i;
        ASSERT_LT(indices[i], size);
      }
    }
  }
}

TEST(KeyedPermutation, StaysTheSameFromVersionToVersion) {
  // Saved states rely on the order: a change of it needs a new kVersion, and new numbers here.
  ASSERT_EQ(KeyedPermutation::kVersion, 1u);
  const KeyedPermutation small(10, 1, 0);
  const KeyedPermutation large(1000000000000, 42, 7);
  std::vector<std::uint64_t> indices(6);
  small.fill(0, 1, indices);
  EXPECT_THAT(indices, ::testing::ElementsAre(5, 2, 7, 0, 3, 1));
  large.fill(0, 1, indices);
  EXPECT_THAT(indices, ::testing::ElementsAre(500270377274u, 47709651617u, 587619992204u, 700957131993u,
                                              977719907875u, 293066582836u));
}

TEST(KeyedPermutation, DiffersBetweenSeedsAndEpochsAndNotOtherwise) {
  std::set<std::vector<std::uint64_t>> orders;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (std::uint64_t epoch = 0; epoch < 20; ++epoch) {
      orders.insert(whole_order(KeyedPermutation(1000, seed, epoch)));
    }
  }
  EXPECT_EQ(orders.size(), 400u);
  EXPECT_EQ(whole_order(KeyedPermutation(1000, 5, 6)), whole_order(KeyedPermutation(1000, 5, 6)));
}

// Chi-squared of counts that should be equal, in standard deviations from chance. The inputs are fixed, so
// the result is too.
double deviation(const std::vector<double>& counts) {
  const double expected =
      std::accumulate(counts.begin(), counts.end(), 0.0) / static_cast<double>(counts.size());
  double sum = 0;
  for (const double count : counts) sum += (count - expected) * (count - expected) / expected;
  const double freedom = static_cast<double>(counts.size()) - 1;
  return (sum - freedom) / std::sqrt(2 * freedom);
}

TEST(KeyedPermutation, GivesEveryOrderOfFewSamplesEquallyOften) {
  for (const std::uint64_t size : {2u, 3u, 4u, 5u, 6u}) {
    std::vector<std::uint64_t> order(size);
    std::iota(order.begin(), order.end(), 0);
    std::map<std::vector<std::uint64_t>, double> seen;
    do seen[order] = 0;
    while (std::next_permutation(order.begin(), order.end()));
    for (std::uint64_t trial = 0; trial < seen.size() * 60; ++trial) {
      seen.at(whole_order(KeyedPermutation(size, trial / 10, trial % 10))) += 1;
    }
    std::vector<double> counts;
    for (const auto& [permutation, count] : seen) counts.push_back(count);
    EXPECT_GT(*std::min_element(counts.begin(), counts.end()), 0) << size;
    EXPECT_LT(deviation(counts), 4) << size;
  }
}

TEST(KeyedPermutation, PutsEveryIndexAtEveryPositionEquallyOften) {
  for (const std::uint64_t size : {10u, 17u, 64u, 100u}) {
    std::vector<double> counts(size * size);
    for (std::uint64_t trial = 0; trial < 2000; ++trial) {
      const auto order = whole_order(KeyedPermutation(size, 77, trial));
      for (std::size_t position = 0; position < size; ++position)
        counts[position * size + order[position]] += 1;
    }
    // The table's rows and columns have fixed sums, which leaves (size - 1)^2 degrees of freedom.
    const double expected = 2000.0 / static_cast<double>(size);
    double sum = 0;
    for (const double count : counts) sum += (count - expected) * (count - expected) / expected;
    const double freedom = static_cast<double>((size - 1) * (size - 1));
    EXPECT_LT(std::abs(sum - freedom) / std::sqrt(2 * freedom), 4) << size;
  }
}

TEST(KeyedPermutation, HasAsManyFixedPointsAndAscentsAsChanceGives) {
  double fixed = 0;
  double ascents = 0;
  double neighbours = 0;
  constexpr int kTrials = 3000;
  constexpr std::uint64_t kSize = 1000;
  for (std::uint64_t trial = 0; trial < kTrials; ++trial) {
    const auto order = whole_order(KeyedPermutation(kSize, trial, 1));
    for (std::size_t i = 0; i < kSize; ++i) {
      fixed += order[i] == i;
      if (i == 0) continue;
      ascents += order[i] > order[i - 1];
      neighbours += order[i] == order[i - 1] + 1;
    }
  }
  // By chance, a permutation has one fixed point with variance 1, (n - 1) / 2 ascents with variance (n + 1) /
  // 12, and about one pair of neighbours with variance 1. The limits are five standard deviations.
  EXPECT_NEAR(fixed / kTrials, 1, 5 / std::sqrt(kTrials));
  EXPECT_NEAR(ascents / kTrials, (kSize - 1) / 2.0, 5 * std::sqrt((kSize + 1) / 12.0 / kTrials));
  EXPECT_NEAR(neighbours / kTrials, 1 - 1.0 / kSize, 5 / std::sqrt(kTrials));
}

TEST(KeyedPermutation, ConsecutiveEpochsAreUncorrelated) {
  constexpr std::uint64_t kSize = 5000;
  for (const auto& [first, second] :
       {std::pair{KeyedPermutation(kSize, 9, 0), KeyedPermutation(kSize, 9, 1)},
        std::pair{KeyedPermutation(kSize, 9, 0), KeyedPermutation(kSize, 10, 0)}}) {
    const auto a = whole_order(first);
    const auto b = whole_order(second);
    const double mean = (kSize - 1) / 2.0;
    double covariance = 0;
    double variance = 0;
    for (std::size_t i = 0; i < kSize; ++i) {
      covariance += (static_cast<double>(a[i]) - mean) * (static_cast<double>(b[i]) - mean);
      variance += (static_cast<double>(a[i]) - mean) * (static_cast<double>(a[i]) - mean);
    }
    EXPECT_LT(std::abs(covariance / variance), 5 / std::sqrt(kSize));
  }
}

TEST(KeyedPermutation, SpreadsATrillionSamplesEvenly) {
  constexpr std::uint64_t kSize = 1000000000000;
  const KeyedPermutation order(kSize, 3, 4);
  std::vector<std::uint64_t> indices(100000);
  order.fill(kSize / 2, 1, indices);
  std::vector<double> counts(1000);
  for (const std::uint64_t index : indices) counts[index / (kSize / 1000)] += 1;
  EXPECT_LT(std::abs(deviation(counts)), 4);
  EXPECT_EQ(std::set<std::uint64_t>(indices.begin(), indices.end()).size(), indices.size());
}

TEST(KeyedPermutation, RefusesNoneAndTooMany) {
  const auto message = [](std::uint64_t size) -> std::string {
    try {
      KeyedPermutation(size, 1, 1);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message(0), ::testing::HasSubstr("0 elements"));
  EXPECT_THAT(message((1ull << 62) + 1), ::testing::HasSubstr("2^62"));
}

}  // namespace
}  // namespace penstock
