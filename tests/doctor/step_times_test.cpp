#include <penstock/doctor/step_times.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

namespace penstock {
namespace {

/// Steps of these microseconds, one after the other.
std::vector<TimeSpan> steps_of(const std::vector<TraceTime>& microseconds) {
  std::vector<TimeSpan> steps;
  TraceTime end = 0;
  for (const TraceTime time : microseconds) {
    steps.push_back({end, end + 1000 * time});
    end = steps.back().end;
  }
  return steps;
}

TEST(StepTimes, AreOrderStatistics) {
  const auto times = step_times(steps_of({90, 20, 30, 40, 50, 60, 70, 80, 10, 100}));
  ASSERT_TRUE(times);
  EXPECT_DOUBLE_EQ(times->tenth, 10e-6);
  EXPECT_DOUBLE_EQ(times->median, 50e-6);
  EXPECT_DOUBLE_EQ(times->nine_tenths, 90e-6);
}

TEST(StepTimes, AreNotKnownOfAFewSteps) {
  EXPECT_FALSE(step_times(steps_of(std::vector<TraceTime>(9, 10))));
  const auto times = step_times(steps_of(std::vector<TraceTime>(10, 10)));
  ASSERT_TRUE(times);
  EXPECT_DOUBLE_EQ(times->median, 10e-6);
  EXPECT_NEAR(times->mean_error, 0, 1e-12);
}

TEST(StepTimes, CountThePausesBetweenSteps) {
  std::vector<TimeSpan> steps;
  for (TraceTime i = 0; i < 10; ++i) steps.push_back({i * 50'000, i * 50'000 + 20'000});
  const auto times = step_times(steps);
  ASSERT_TRUE(times);
  EXPECT_DOUBLE_EQ(times->median, 50e-6);
  EXPECT_DOUBLE_EQ(times->tenth, 20e-6);  // the last one
}

TEST(StepTimes, HoldTheErrorOfAnEvenSpread) {
  // Ten batches of two steps, whose means are 1 to 10 us: a standard deviation of 3.0277 us.
  std::vector<TraceTime> microseconds;
  for (TraceTime batch = 1; batch <= 10; ++batch) {
    microseconds.push_back(batch);
    microseconds.push_back(batch);
  }
  const auto times = step_times(steps_of(microseconds));
  ASSERT_TRUE(times);
  EXPECT_NEAR(times->mean_error, 2.262 * 3.0277e-6 / 3.1623, 1e-9);
}

TEST(StepTimes, HoldThePauseOfAMachineThatDoesOtherWork) {
  std::vector<TraceTime> microseconds(98, 2500);
  microseconds[40] = 102'500;
  const auto times = step_times(steps_of(microseconds));
  ASSERT_TRUE(times);
  EXPECT_DOUBLE_EQ(times->nine_tenths, 2500e-6);
  EXPECT_GT(times->mean_error, 1e-3) << "the true mean of 2.5 ms is 1.02 ms from the measured one";
}

/// Each step depends on the one before: steps that are taken for independent ones have too small an error.
TEST(StepTimes, HoldTheErrorOfStepsThatDependOnTheirNeighbours) {
  std::mt19937 random(7);  // NOLINT(bugprone-random-generator-seed): the same steps each time
  std::normal_distribution<double> normal(0, 100);
  constexpr int kRuns = 400;
  int held = 0;
  double errors = 0;
  for (int run = 0; run < kRuns; ++run) {
    std::vector<TraceTime> microseconds;
    double drift = normal(random);
    double sum = 0;
    for (std::size_t i = 0; i < 200; ++i) {
      drift = 0.7 * drift + normal(random);
      microseconds.push_back(static_cast<TraceTime>(5000 + drift));
      sum += static_cast<double>(microseconds.back());
    }
    const auto times = step_times(steps_of(microseconds));
    ASSERT_TRUE(times);
    const double error = std::abs(sum / 200 - 5000) * 1e-6;
    if (error <= times->mean_error) ++held;
    errors += times->mean_error;
  }
  EXPECT_GE(held, kRuns * 9 / 10);
  // The mean of 200 such steps has a standard deviation of about 100 us / (1 - 0.7) / sqrt(200) = 23.6 us.
  EXPECT_LT(errors / kRuns, 1.3 * 2.262 * 23.6e-6) << "larger than it need be";
}

}  // namespace
}  // namespace penstock
