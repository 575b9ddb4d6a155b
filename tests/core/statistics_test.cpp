#include <penstock/core/statistics.hpp>

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace penstock {
namespace {

TEST(Statistics, EmptyIsZero) {
  const Summary summary = summarize({});
  EXPECT_EQ(summary.repetitions, 0u);
  EXPECT_EQ(summary.median, 0);
}

TEST(Statistics, OneValueIsEverything) {
  const double value = 4.5;
  const Summary summary = summarize({&value, 1});
  EXPECT_EQ(summary.median, 4.5);
  EXPECT_EQ(summary.minimum, 4.5);
  EXPECT_EQ(summary.maximum, 4.5);
  EXPECT_EQ(summary.p99, 4.5);
  EXPECT_EQ(summary.mean, 4.5);
  EXPECT_EQ(summary.repetitions, 1u);
}

TEST(Statistics, OddAndEvenMedians) {
  const std::vector<double> odd{5, 1, 3};
  EXPECT_EQ(summarize(odd).median, 3);
  const std::vector<double> even{4, 1, 3, 2};
  EXPECT_EQ(summarize(even).median, 2.5);
  EXPECT_EQ(summarize(even).mean, 2.5);
}

TEST(Statistics, P99IsTheNearestRank) {
  std::vector<double> values(99);
  std::iota(values.rbegin(), values.rend(), 1.0);
  EXPECT_EQ(summarize(values).p99, 99);
  values.resize(100);
  std::iota(values.rbegin(), values.rend(), 1.0);
  EXPECT_EQ(summarize(values).p99, 99);
  values.resize(1000);
  std::iota(values.rbegin(), values.rend(), 1.0);
  EXPECT_EQ(summarize(values).p99, 990);
  EXPECT_EQ(summarize(values).maximum, 1000);
}

}  // namespace
}  // namespace penstock
