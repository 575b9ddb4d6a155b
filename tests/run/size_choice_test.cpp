#include "run/size_choice.hpp"

#include <gtest/gtest.h>

namespace penstock::run {
namespace {

SizeFigures figures_of(std::uint64_t driver_calls, std::uint64_t taken_calls, std::uint64_t driver_rate,
                       std::uint64_t taken_rate) {
  SizeFigures figures;
  figures.driver.all.calls = driver_calls;
  figures.driver.best = driver_rate;
  figures.taken.all.calls = taken_calls;
  figures.taken.best = taken_rate;
  return figures;
}

constexpr std::size_t kSmall = 2 << 20, kLarge = 64 << 20;

TEST(SizeChoice, ComparesThenTriesThenDecides) {
  EXPECT_EQ(choose(figures_of(2, 0, 9, 0), kSmall), SizeChoice::compare);
  EXPECT_EQ(choose(figures_of(3, 2, 9, 1), kSmall), SizeChoice::take);
  EXPECT_EQ(choose(figures_of(3, 3, 100, 104), kSmall), SizeChoice::leave);
  EXPECT_EQ(choose(figures_of(3, 3, 100, 106), kSmall), SizeChoice::take);
  EXPECT_EQ(choose(figures_of(0, 0, 0, 0), kLarge), SizeChoice::compare);
  EXPECT_EQ(choose(figures_of(1, 0, 9, 0), kLarge), SizeChoice::take);
  EXPECT_EQ(choose(figures_of(1, 3, 9, 8), kLarge), SizeChoice::leave);
}

TEST(SizeChoice, TakesOnlyWhatGainsForCertainIfNothingWasTimed) {
  EXPECT_EQ(choose(figures_of(3, 3, 0, 0), kSmall), SizeChoice::leave);
  EXPECT_EQ(choose(figures_of(3, 3, 100, 0), kSmall), SizeChoice::leave);
  EXPECT_EQ(choose(figures_of(1, 3, 0, 100), kLarge), SizeChoice::take);
}

TEST(SizeClass, GrowsFourfoldFromOneMebibyte) {
  EXPECT_EQ(size_class(kSmallestCopy), 0u);
  EXPECT_EQ(size_class(4 * kSmallestCopy - 1), 0u);
  EXPECT_EQ(size_class(4 * kSmallestCopy), 1u);
  EXPECT_EQ(size_class(16 * kSmallestCopy), 2u);
  EXPECT_EQ(size_class(std::size_t{1} << 30), kSizeClasses - 1);
  EXPECT_EQ(size_class(std::size_t{1} << 40), kSizeClasses - 1);
}

}  // namespace
}  // namespace penstock::run
