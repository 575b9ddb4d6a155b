#include "doctor/timeline/step_times.hpp"

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
  EXPECT_DOUBLE_EQ(times->tenth, 20e-6);
  EXPECT_DOUBLE_EQ(times->median, 50e-6);
  EXPECT_DOUBLE_EQ(times->nine_tenths, 90e-6);
}

TEST(StepTimes, AreNotKnownOfAFewSteps) {
  EXPECT_FALSE(step_times(steps_of(std::vector<TraceTime>(9, 10))));
  const auto some = step_times(steps_of(std::vector<TraceTime>(10, 10)));
  ASSERT_TRUE(some);
  EXPECT_DOUBLE_EQ(some->median, 10e-6);
  EXPECT_FALSE(step_times(steps_of(std::vector<TraceTime>(39, 10)))->mean_error);
  const auto enough = step_times(steps_of(std::vector<TraceTime>(40, 10)));
  ASSERT_TRUE(enough && enough->mean_error);
  EXPECT_NEAR(*enough->mean_error, 0, 1e-12);
}

TEST(StepTimes, CountThePausesBetweenSteps) {
  std::vector<TimeSpan> steps;
  steps.reserve(10);
  for (TraceTime i = 0; i < 10; ++i) steps.push_back({i * 50'000, i * 50'000 + 20'000});
  const auto times = step_times(steps);
  ASSERT_TRUE(times);
  EXPECT_DOUBLE_EQ(times->tenth, 50e-6);  // the last one has none
  EXPECT_DOUBLE_EQ(times->median, 50e-6);
}

TEST(StepTimes, HoldTheErrorOfAnEvenSpread) {
  // Ten batches of four steps, whose means are 1 to 10 us: a standard deviation of 3.0277 us.
  std::vector<TraceTime> microseconds;
  for (TraceTime batch = 1; batch <= 10; ++batch) microseconds.insert(microseconds.end(), 4, batch);
  const auto times = step_times(steps_of(microseconds));
  ASSERT_TRUE(times && times->mean_error);
  EXPECT_NEAR(*times->mean_error, 2.262 * 3.0277e-6 / 3.1623, 1e-9);
}

TEST(StepTimes, HoldThePauseOfAMachineThatDoesOtherWork) {
  std::vector<TraceTime> microseconds(98, 2500);
  microseconds[40] = 102'500;
  const auto times = step_times(steps_of(microseconds));
  ASSERT_TRUE(times && times->mean_error);
  EXPECT_DOUBLE_EQ(times->nine_tenths, 2500e-6);
  EXPECT_GT(*times->mean_error, 1e-3) << "the true mean of 2.5 ms is 1.02 ms from the measured one";
}

struct Coverage {
  double held = 0;   ///< the part of runs whose true mean was as near as they said
  double error = 0;  ///< what they said, in seconds and the mean
};

/// Of runs of so many steps of 5 ms, of which each depends by 0.7 on the one before.
Coverage coverage(std::size_t steps) {
  std::mt19937 random(7);  // NOLINT(bugprone-random-generator-seed): the same steps each time
  std::normal_distribution<double> normal(0, 100);
  constexpr int kRuns = 400;
  Coverage result;
  for (int run = 0; run < kRuns; ++run) {
    std::vector<TraceTime> microseconds;
    double drift = 0;
    double sum = 0;
    for (int before = 0; before < 50; ++before) drift = 0.7 * drift + normal(random);
    for (std::size_t i = 0; i < steps; ++i) {
      drift = 0.7 * drift + normal(random);
      microseconds.push_back(static_cast<TraceTime>(5000 + drift));
      sum += static_cast<double>(microseconds.back());
    }
    const double said = step_times(steps_of(microseconds))->mean_error.value();
    if (std::abs(sum / static_cast<double>(steps) - 5000) * 1e-6 <= said) result.held += 1.0 / kRuns;
    result.error += said / kRuns;
  }
  return result;
}

/// If steps were taken for independent ones, half of the intervals would not hold the mean.
TEST(StepTimes, HoldTheErrorOfStepsThatDependOnTheirNeighbours) {
  EXPECT_GE(coverage(40).held, 0.8);
  const Coverage many = coverage(200);
  EXPECT_GE(many.held, 0.9);
  // The mean of 200 such steps has a standard deviation of about 100 us / (1 - 0.7) / sqrt(200) = 23.6 us.
  EXPECT_LT(many.error, 1.3 * 2.262 * 23.6e-6) << "larger than it need be";
}

}  // namespace
}  // namespace penstock
