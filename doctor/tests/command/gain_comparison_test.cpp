#include "doctor/report/gain_comparison.hpp"

#include "support/matchers.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace penstock::cli {
namespace {

constexpr TraceTime kTraceMillisecond = 1'000'000;

/// A report of one GPU, whose steps take `milliseconds`, 4 of them with kernels. No steps: of the recording.
TraceReport report(double milliseconds, std::size_t steps, std::vector<Finding> findings = {}) {
  TraceReport report;
  DeviceAccount account;
  account.steps = steps;
  const auto count = static_cast<TraceTime>(steps == 0 ? 1 : steps);
  account.window = {0, static_cast<TraceTime>(milliseconds * kTraceMillisecond) * count};
  account.parts[static_cast<std::size_t>(DevicePart::kernel)] = 4 * kTraceMillisecond * count;
  report.recorded_seconds = 2 * static_cast<double>(account.total()) * 1e-9;
  report.diagnosis.accounts.push_back(std::move(account));
  report.diagnosis.findings = std::move(findings);
  return report;
}

Finding finding(const std::string& id, double low_milliseconds, double high_milliseconds) {
  Finding finding;
  finding.id = id;
  finding.gain = {1e-3 * low_milliseconds, 1e-3 * high_milliseconds};
  return finding;
}

GainComparison compared(const TraceReport& before, const TraceReport& after) {
  const auto comparisons = compare_gains(before, after);
  return comparisons.size() == 1 ? comparisons[0] : GainComparison{};
}

std::string text(const GainComparison& comparison) { return gain_comparison_text(comparison, 200); }

TEST(GainComparisons, SetTheGainBesideThePrediction) {
  const auto result = compared(report(10, 20, {finding("pageable-copies", 1, 3)}), report(8, 30));
  EXPECT_TRUE(result.by_step);
  EXPECT_NEAR(result.gained(), 2e-3, 1e-9);
  ASSERT_TRUE(result.predicted);
  EXPECT_NEAR(result.predicted->low, 1e-3, 1e-9);
  EXPECT_NEAR(result.predicted->high, 3e-3, 1e-9);
  EXPECT_TRUE(result.in_range);
  EXPECT_EQ(text(result),
            "GPU 0: a step takes 8.00 ms in place of 10.0 ms: 2.00 ms less, 20.0 %\n"
            "  pageable-copies: gone\n"
            "  predicted for what is gone: 1.00 ms to 3.00 ms. The gain is as predicted.\n");
}

TEST(GainComparisons, TellAGainThatIsNotAsPredicted) {
  const auto before = report(10, 20, {finding("pageable-copies", 1, 3)});
  EXPECT_THAT(text(compared(before, report(6, 20))), HasSubstr("The gain is more than predicted."));
  EXPECT_THAT(text(compared(before, report(9.5, 20))), HasSubstr("The gain is less than predicted."));
  EXPECT_THAT(text(compared(before, report(11, 20))),
              AllOf(HasSubstr("1.00 ms more, 10.0 %"), HasSubstr("less than predicted")));
}

TEST(GainComparisons, AllowForWhatCountsAsNothing) {
  const auto before = report(10, 20, {finding("pageable-copies", 1, 3)});
  EXPECT_TRUE(compared(before, report(9.15, 20)).in_range);
  EXPECT_FALSE(compared(before, report(9.25, 20)).in_range);
  EXPECT_TRUE(compared(before, report(6.85, 20)).in_range);
  EXPECT_FALSE(compared(before, report(6.75, 20)).in_range);
}

/// The same, with a true mean as near to the measured one as `error`.
TraceReport varying(TraceReport report, double error_milliseconds) {
  report.diagnosis.accounts[0].step_times = StepTimes{.mean_error = 1e-3 * error_milliseconds};
  return report;
}

TEST(GainComparisons, TellWhatMayBeBecauseStepsVary) {
  const auto before = varying(report(10, 20, {finding("pageable-copies", 1, 3)}), 1.2);
  const auto result = compared(before, varying(report(10.5, 20), 0.9));  // together 1.5
  ASSERT_TRUE(result.error);
  EXPECT_NEAR(*result.error, 1.5e-3, 1e-9);
  EXPECT_FALSE(result.in_range);
  EXPECT_TRUE(result.uncertain);
  EXPECT_THAT(text(result),
              AllOf(HasSubstr("steps vary: with about 95 % confidence, a step truly takes from 2.00 ms more "
                              "to 1.00 ms less\n"),
                    HasSubstr("The gain is less than predicted, unless that is because steps vary: ")));
  EXPECT_EQ(gain_comparison_json(result).at("uncertain"), true);
  EXPECT_NEAR(gain_comparison_json(result).at("error_seconds"), 1.5e-3, 1e-9);
}

TEST(GainComparisons, DoNotExcuseAGainThatIsFartherThanStepsVary) {
  const auto before = varying(report(10, 20, {finding("pageable-copies", 1, 3)}), 1.2);
  const auto far = compared(before, varying(report(10.8, 20), 0.9));
  EXPECT_FALSE(far.uncertain);
  EXPECT_THAT(text(far), HasSubstr("The gain is less than predicted.\n"));
  EXPECT_FALSE(compared(before, varying(report(5.2, 20), 0.9)).uncertain);
  const auto as_predicted = compared(before, varying(report(8, 20), 0.9));
  EXPECT_FALSE(as_predicted.uncertain);
  EXPECT_THAT(text(as_predicted), AllOf(HasSubstr("a step truly takes from 500 µs less to 3.50 ms less"),
                                        HasSubstr("The gain is as predicted.\n")));
}

TEST(GainComparisons, SayHowStepsVaryIfThatMayBeWhy) {
  const auto before = varying(report(10, 20, {finding("pageable-copies", 1, 3)}), 0.1);
  EXPECT_THAT(text(compared(before, varying(report(9.28, 20), 0.1))),
              AllOf(HasSubstr("a step truly takes from 579 µs less to 861 µs less"),
                    HasSubstr("less than predicted, unless that is because steps vary")));
}

TEST(GainComparisons, SayNothingOfStepsThatHardlyVary) {
  const auto before = varying(report(10, 20, {finding("pageable-copies", 1, 3)}), 0.1);
  EXPECT_THAT(text(compared(before, varying(report(8, 20), 0.1))), Not(HasSubstr("vary")));
  EXPECT_FALSE(compared(before, report(8, 20)).error) << "one has too few steps to tell";
  EXPECT_FALSE(compared(before, varying(report(800, 0), 0.1)).error) << "whole recordings";
}

TEST(GainComparisons, TakeOnlyFindingsThatAreGone) {
  const auto before = report(10, 20, {finding("pageable-copies", 1, 3), finding("synchronizations", 2, 5)});
  const auto after = report(8, 20, {finding("pageable-copies", 0, 0.1), finding("synchronizations", 2, 4)});
  const auto result = compared(before, after);
  ASSERT_TRUE(result.predicted);
  EXPECT_NEAR(result.predicted->high, 3e-3, 1e-9);
  EXPECT_THAT(text(result),
              AllOf(HasSubstr("pageable-copies: gone"), HasSubstr("synchronizations: still found")));
}

TEST(GainComparisons, PredictNothingIfNoFindingIsGone) {
  const auto before = report(10, 20, {finding("pageable-copies", 0, 0.1)});
  const auto result = compared(before, report(8, 20, {finding("pageable-copies", 0, 0.1)}));
  EXPECT_FALSE(result.predicted);
  EXPECT_THAT(text(result), HasSubstr("predicted: nothing, as no finding is gone"));
  EXPECT_TRUE(gain_comparison_json(result).at("in_range").is_null());
}

TEST(GainComparisons, TakeWhatFindingsLostThatAreLess) {
  const auto before = report(20, 20, {finding("waiting-for-data", 0, 9), finding("host-work", 2, 5)});
  const auto result = compared(before, report(12, 20, {finding("waiting-for-data", 0, 4)}));
  ASSERT_TRUE(result.predicted);
  EXPECT_NEAR(result.predicted->low, 2e-3, 1e-9);
  EXPECT_NEAR(result.predicted->high, 10e-3, 1e-9);
  EXPECT_THAT(text(result), AllOf(HasSubstr("waiting-for-data: less, at most 4.00 ms left\n"),
                                  HasSubstr("predicted for what is gone or less: 2.00 ms to 10.0 ms.")));
  const auto half = compared(before, report(12, 20, {finding("waiting-for-data", 0, 4.5)}));
  EXPECT_NEAR(half.predicted->high, 5e-3, 1e-9);
  EXPECT_THAT(text(half), AllOf(HasSubstr("waiting-for-data: still found\n"), Not(HasSubstr("less:"))));
}

TEST(GainComparisons, ListFindingsThatAreNew) {
  const auto before = report(10, 20, {finding("pageable-copies", 1, 3)});
  auto after = report(8, 20, {finding("pinning", 0, 2), finding("small-copies", 0, 0.1)});
  EXPECT_EQ(text(compared(before, after)),
            "GPU 0: a step takes 8.00 ms in place of 10.0 ms: 2.00 ms less, 20.0 %\n"
            "  pageable-copies: gone\n"
            "  pinning: new, at most 2.00 ms\n"
            "  predicted for what is gone: 1.00 ms to 3.00 ms. The gain is as predicted.\n");
  const auto change = gain_comparison_json(compared(before, after)).at("findings").at(1);
  EXPECT_EQ(change.at("id"), "pinning");
  EXPECT_EQ(change.at("new"), true);
  EXPECT_EQ(change.at("gain_seconds_per_step"), nullptr);
  auto unexamined = before;
  unexamined.diagnosis.not_examined.push_back({{"pinning"}, "Nobody looked."});
  EXPECT_THAT(text(compared(unexamined, after)),
              HasSubstr("pinning: found, but not examined before, at most 2.00 ms"));
  after.diagnosis.findings[0].device = 1;
  EXPECT_THAT(text(compared(before, after)), Not(HasSubstr("pinning")));
}

TEST(GainComparisons, BoundTheSumOfSeveralFindings) {
  const auto before = report(10, 20, {finding("pageable-copies", 1, 4), finding("synchronizations", 2, 5)});
  const auto result = compared(before, report(5, 20));
  ASSERT_TRUE(result.predicted);
  EXPECT_NEAR(result.predicted->low, 2e-3, 1e-9);   // they may be the same time
  EXPECT_NEAR(result.predicted->high, 6e-3, 1e-9);  // kernels take the rest
}

TEST(GainComparisons, AreOfWholeRecordingsIfOneHasNoSteps) {
  const auto result = compared(report(10, 20, {finding("pageable-copies", 1, 3)}), report(360, 0));
  EXPECT_FALSE(result.by_step);
  EXPECT_NEAR(result.before, 0.4, 1e-9);
  EXPECT_NEAR(result.after, 0.72, 1e-9);
  ASSERT_TRUE(result.predicted);
  EXPECT_NEAR(result.predicted->low, 20e-3, 1e-9);
  EXPECT_NEAR(result.predicted->high, 60e-3, 1e-9);
  EXPECT_THAT(text(result), AllOf(HasSubstr("GPU 0: the whole recording takes 720 ms in place of 400 ms"),
                                  HasSubstr("Steps were not found in both programs.")));
  EXPECT_EQ(gain_comparison_json(result).at("of"), "recording");
  // Without steps, findings are of the recording already.
  const auto none = compared(report(300, 0, {finding("pageable-copies", 10, 30)}), report(290, 0));
  ASSERT_TRUE(none.predicted);
  EXPECT_NEAR(none.predicted->high, 30e-3, 1e-9);
}

TEST(GainComparisons, AreOfWholeRecordingsIfStepsAreNotTheSameWork) {
  const auto with_kernels = [](std::uint64_t kernels, double milliseconds,
                               std::vector<Finding> findings = {}) {
    TraceReport of = report(milliseconds, 20, std::move(findings));
    of.diagnosis.accounts[0].kernels = kernels;
    return of;
  };
  const auto result =
      compared(with_kernels(180, 8.1, {finding("pageable-copies", 1, 3)}), with_kernels(20, 0.9));
  EXPECT_FALSE(result.by_step);
  EXPECT_THAT(
      text(result),
      AllOf(HasSubstr("GPU 0: the whole recording takes 36.0 ms in place of 324 ms"),
            HasSubstr("Their steps are not the same work: of 9 kernels before, and of 1 now. Whole ")));
  EXPECT_EQ(gain_comparison_json(result).at("of"), "recording");
  EXPECT_FALSE(compared(with_kernels(20, 8), with_kernels(180, 8)).by_step);
  EXPECT_TRUE(compared(with_kernels(180, 8), with_kernels(280, 8)).by_step) << "not 1.5 times as many";
  EXPECT_TRUE(compared(with_kernels(20, 8), with_kernels(45, 8)).by_step) << "one more";
  EXPECT_TRUE(compared(with_kernels(180, 8, {finding("widened-copies", 1, 3)}), with_kernels(90, 8)).by_step)
      << "the conversions are gone";
  auto unrecorded = with_kernels(0, 8);
  unrecorded.diagnosis.accounts[0].has_kernels = false;
  EXPECT_TRUE(compared(with_kernels(180, 8), unrecorded).by_step);
}

TEST(GainComparisons, AreOfTheSameGpu) {
  auto before = report(10, 20, {finding("pageable-copies", 1, 3)});
  auto after = report(8, 20);
  after.diagnosis.accounts[0].device = 1;
  EXPECT_THAT(compare_gains(before, after), IsEmpty());
  before.diagnosis.accounts.push_back(before.diagnosis.accounts[0]);
  before.diagnosis.accounts[1].device = 1;
  const auto comparisons = compare_gains(before, after);
  ASSERT_THAT(comparisons, SizeIs(1));
  EXPECT_EQ(comparisons[0].device, 1);
  EXPECT_THAT(comparisons[0].findings, IsEmpty());  // it is of the other GPU
  EXPECT_THAT(text(comparisons[0]), Not(HasSubstr("pageable-copies")));
}

TEST(GainComparisons, AreJson) {
  const auto json = gain_comparison_json(compared(report(10, 20, {finding("pageable-copies", 1, 3)}),
                                                  report(8, 30, {finding("pageable-copies", 0, 0.1)})));
  EXPECT_EQ(json.at("of"), "step");
  EXPECT_DOUBLE_EQ(json.at("seconds"), 10e-3);
  EXPECT_DOUBLE_EQ(json.at("changed_seconds"), 8e-3);
  EXPECT_NEAR(json.at("gained_seconds"), 2e-3, 1e-9);
  EXPECT_DOUBLE_EQ(json.at("predicted_seconds").at("high"), 3e-3);
  EXPECT_EQ(json.at("in_range"), true);
  EXPECT_EQ(json.at("uncertain"), false);
  EXPECT_EQ(json.at("error_seconds"), nullptr);
  const auto& change = json.at("findings").at(0);
  EXPECT_EQ(change.at("id"), "pageable-copies");
  EXPECT_EQ(change.at("gone"), true);
  EXPECT_DOUBLE_EQ(change.at("gain_seconds_per_step").at("low"), 1e-3);
  EXPECT_DOUBLE_EQ(change.at("changed_gain_seconds_per_step").at("high"), 0.1e-3);
}

}  // namespace
}  // namespace penstock::cli
