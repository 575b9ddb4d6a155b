#include "doctor/report/copy_rates.hpp"

#include "doctor/tests/timelines.hpp"
#include "support/matchers.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace penstock {
namespace {

using test::TimelineBuilder;

void copy(TimelineBuilder& builder, CopyDirection direction, MemoryKind kind, std::uint64_t bytes,
          std::int64_t begin, std::int64_t took) {
  builder.copy(direction, kind, bytes, begin, begin + 1, begin, begin + took);
}

TEST(CopyRates, JoinCopiesOfAboutOneSizeAndRate) {
  TimelineBuilder builder;
  copy(builder, CopyDirection::h2d, MemoryKind::pinned, 1'000'000, 0, 100);
  copy(builder, CopyDirection::h2d, MemoryKind::pinned, 1'010'000, 200, 101);
  const std::vector<CopyRate> rates = copy_rates(builder.sorted());
  ASSERT_THAT(rates, SizeIs(1));
  EXPECT_EQ(rates[0].count, 2U);
  EXPECT_EQ(rates[0].bytes, 2'010'000U);
  EXPECT_NEAR(rates[0].seconds, 201e-6, 1e-12);
  EXPECT_EQ(rates[0].host, MemoryKind::pinned);
}

TEST(CopyRates, TellOthersApart) {
  TimelineBuilder builder;
  copy(builder, CopyDirection::h2d, MemoryKind::pinned, 1'000'000, 0, 100);
  copy(builder, CopyDirection::h2d, MemoryKind::pageable, 1'000'000, 200, 100);
  copy(builder, CopyDirection::d2h, MemoryKind::pinned, 1'000'000, 400, 100);
  copy(builder, CopyDirection::h2d, MemoryKind::pinned, 2'000'000, 600, 200);
  copy(builder, CopyDirection::h2d, MemoryKind::pinned, 1'000'000, 900, 200);
  EXPECT_THAT(copy_rates(builder.sorted()), SizeIs(5));
}

TEST(CopyRates, LeaveOutWhatHasNoRate) {
  TimelineBuilder builder;
  copy(builder, CopyDirection::h2d, MemoryKind::pinned, 1'000'000, 0, 0);
  copy(builder, CopyDirection::h2d, MemoryKind::pinned, 0, 100, 10);
  copy(builder, CopyDirection::d2d, MemoryKind::device, 1000, 200, 10);
  EXPECT_THAT(copy_rates(builder.sorted()), IsEmpty());
}

TEST(CopyRates, LeaveOutCopiesBeforeAndAfterTheSteps) {
  TimelineBuilder builder;
  builder.step(1000, 2000);
  for (const std::int64_t begin : {0, 1500, 2000})
    copy(builder, CopyDirection::h2d, MemoryKind::pinned, 1000, begin, 10);
  const std::vector<CopyRate> rates = copy_rates(builder.sorted());
  ASSERT_THAT(rates, SizeIs(1));
  EXPECT_EQ(rates[0].count, 1U);
}

TEST(CopyRates, AreThoseThatTakeTheMostTimeIfThereAreMany) {
  TimelineBuilder builder;
  std::int64_t now = 0;
  for (int size = 0; size < 50; ++size) {
    for (int rate = 0; rate < 50; ++rate) {
      const auto bytes = static_cast<std::uint64_t>(1e4 * std::pow(1.4, size));
      const auto took = static_cast<std::int64_t>(1e3 * std::pow(1.3, rate));
      copy(builder, CopyDirection::h2d, MemoryKind::pinned, bytes, now, took);
      now += took + 1;
    }
  }
  const std::vector<CopyRate> rates = copy_rates(builder.sorted());
  EXPECT_LE(rates.size(), 2000U);
  EXPECT_GT(rates.size(), 1500U);
  for (const CopyRate& rate : rates) EXPECT_GT(rate.seconds, 2e-3);
}

}  // namespace
}  // namespace penstock
