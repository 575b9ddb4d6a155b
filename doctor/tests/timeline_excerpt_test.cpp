#include "doctor/report/timeline_excerpt.hpp"

#include "doctor/tests/timelines.hpp"
#include "support/matchers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {
namespace {

using test::TimelineBuilder;

TimelineExcerpt excerpt(const TimelineBuilder& builder, const ExcerptOptions& options = {}) {
  const Timeline timeline = builder.sorted();
  return excerpt_timeline(timeline, diagnose_timeline(timeline), options);
}

std::vector<std::string> lane_names(const TimelineExcerpt& excerpt) {
  std::vector<std::string> names;
  for (const ExcerptLane& lane : excerpt.lanes) names.push_back(lane.group + ": " + lane.name);
  return names;
}

std::vector<ExcerptBar> bars(const TimelineExcerpt& excerpt, std::string_view lane_name) {
  for (const ExcerptLane& lane : excerpt.lanes) {
    if (lane.name == lane_name) return lane.bars;
  }
  return {};
}

TimelineBuilder pageable_steps(int count) {
  TimelineBuilder builder;
  for (int i = 0; i < count; ++i) builder.pageable_step(i * 1000);
  return builder;
}

TEST(TimelineExcerpt, ShowsWhatRunsInItsSteps) {
  const TimelineExcerpt shown = excerpt(pageable_steps(8));
  EXPECT_EQ(shown.window, TimelineBuilder::us(0, 3000));
  EXPECT_THAT(shown.steps, SizeIs(3));
  EXPECT_EQ(shown.resolution, 0);
  EXPECT_THAT(lane_names(shown), ElementsAre("GPU 0: where the time goes", "GPU 0: kernels",
                                             "GPU 0: copies H2D", "thread 0: loader", "thread 0: calls",
                                             "findings: pageable-copies", "findings: waiting-for-data"));
  ASSERT_THAT(bars(shown, "copies H2D"), SizeIs(3));
  const ExcerptBar copy = bars(shown, "copies H2D")[1];
  EXPECT_EQ(copy.time, TimelineBuilder::us(1102, 1500));
  EXPECT_EQ(copy.kind, "copy from pageable memory");
  EXPECT_EQ(copy.bytes, 4'000'000U);
  EXPECT_THAT(bars(shown, "kernels"), SizeIs(3));
  EXPECT_THAT(bars(shown, "loader"), SizeIs(3));
  EXPECT_EQ(bars(shown, "pageable-copies")[1].time, TimelineBuilder::us(1102, 1500));
}

TEST(TimelineExcerpt, SaysWhereCallsWereMade) {
  const TimelineExcerpt shown = excerpt(pageable_steps(8));
  const std::vector<ExcerptBar> calls = bars(shown, "calls");
  ASSERT_THAT(calls, SizeIs(9));
  EXPECT_EQ(calls[0].kind, "copy");
  EXPECT_EQ(shown.places[calls[0].place], "train.py(3): main, aten::to");
  EXPECT_EQ(calls[1].kind, "stream synchronization");
  EXPECT_EQ(calls[2].kind, "kernel launch");
  EXPECT_EQ(shown.places[calls[2].place], "") << "places of launches are not looked for";
}

TEST(TimelineExcerpt, AccountsForEachMoment) {
  TimelineBuilder builder = pageable_steps(8);
  const Timeline timeline = builder.sorted();
  const Diagnosis diagnosis = diagnose_timeline(timeline);
  std::size_t finer = SIZE_MAX;
  for (const std::size_t most_bars : {1000, 60, 20}) {
    const TimelineExcerpt shown = excerpt_timeline(timeline, diagnosis, {.steps = 8, .most_bars = most_bars});
    const std::vector<ExcerptBar> parts = bars(shown, "where the time goes");
    EXPECT_LT(parts.size(), finer);
    finer = parts.size();
    TraceTime end = shown.window.begin;
    for (const ExcerptBar& part : parts) {
      EXPECT_EQ(part.time.begin, end) << "the parts are without gaps";
      end = part.time.end;
    }
    EXPECT_EQ(end, shown.window.end);
    for (const DevicePart part : kAllDeviceParts) {
      TraceTime sum = 0;
      for (const ExcerptBar& bar : parts) sum += bar.kind == device_part_label(part) ? bar.busy : 0;
      EXPECT_EQ(sum, diagnosis.accounts[0].part(part)) << device_part_label(part);
    }
  }
}

TEST(TimelineExcerpt, ChoosesStepsThatShowTheFindings) {
  // Most steps copy for 400 us; the first three do not copy, and two take three times as long.
  TimelineBuilder builder;
  std::int64_t t = 0;
  for (int i = 0; i < 20; ++i) {
    const bool is_long = i == 4 || i == 8;
    if (i < 3) {
      builder.step(t, t + 1000);
      builder.kernel(t, t + 10, t + 1000);
    } else {
      builder.pageable_step(t, 500, is_long ? 3000 : 1000);
    }
    t += is_long ? 3000 : 1000;
  }
  const TimelineExcerpt shown = excerpt(builder);
  EXPECT_EQ(shown.first_step, 5U);
  EXPECT_EQ(shown.window.end - shown.window.begin, 3'000'000);
}

TEST(TimelineExcerpt, ShowsAPartOfARecordingWithoutSteps) {
  TimelineBuilder builder = pageable_steps(60);
  builder.timeline.steps.clear();
  const TimelineExcerpt shown = excerpt(builder);
  EXPECT_THAT(shown.steps, IsEmpty());
  EXPECT_NEAR(static_cast<double>(shown.window.end - shown.window.begin), 3e6, 1e5);
  EXPECT_THAT(bars(shown, "kernels"), Not(IsEmpty()));
}

TEST(TimelineExcerpt, ShowsARecordingOfOneStep) {
  const TimelineExcerpt shown = excerpt(pageable_steps(1));
  EXPECT_EQ(shown.window, TimelineBuilder::us(0, 1000));
  EXPECT_THAT(shown.steps, SizeIs(1));
}

TEST(TimelineExcerpt, JoinsWhatIsTooSmallToSee) {
  TimelineBuilder builder;
  builder.step(0, 100'000);
  for (std::int64_t i = 0; i < 20'000; ++i) builder.kernel(5 * i, 5 * i + 2, 5 * i + 4);
  builder.copy(CopyDirection::h2d, MemoryKind::pinned, 1000, 10, 11, 20'000, 60'000, 20);
  builder.copy(CopyDirection::h2d, MemoryKind::pinned, 1000, 12, 13, 60'001, 60'002, 20);
  const TimelineExcerpt shown = excerpt(builder, {.most_bars = 500});
  EXPECT_GT(shown.resolution, 0);
  std::size_t count = 0;
  for (const ExcerptLane& lane : shown.lanes) count += lane.bars.size();
  EXPECT_LE(count, 500U);
  const std::vector<ExcerptBar> kernels = bars(shown, "kernels");
  EXPECT_GT(kernels.size(), 50U) << "a long row of short records is not one bar";
  const auto sum = [&kernels](auto figure) {
    return std::accumulate(kernels.begin(), kernels.end(), std::int64_t{0},
                           [&](std::int64_t all, const ExcerptBar& bar) {
                             return all + static_cast<std::int64_t>(figure(bar));
                           });
  };
  EXPECT_EQ(sum([](const ExcerptBar& bar) { return bar.count; }), 20'000);
  EXPECT_EQ(sum([](const ExcerptBar& bar) { return bar.busy; }), 40'000'000);
  const std::vector<ExcerptBar> copies = bars(shown, "copies H2D");
  ASSERT_THAT(copies, SizeIs(2)) << "a long record stays alone";
  EXPECT_EQ(copies[0].time, TimelineBuilder::us(20'000, 60'000));
}

TEST(TimelineExcerpt, HasALeastNumberOfBars) {
  const TimelineExcerpt shown = excerpt(pageable_steps(8), {.most_bars = 1});
  EXPECT_GE(shown.resolution, 3'000'000);
  for (const ExcerptLane& lane : shown.lanes) EXPECT_LE(lane.bars.size(), kDeviceParts) << lane.name;
}

TEST(TimelineExcerpt, NamesTheLongestOfJoinedRecords) {
  TimelineBuilder builder;
  builder.step(0, 10'000);
  builder.kernel(0, 1, 10'000);
  builder.call(CallKind::launch, 100, 101);
  builder.call(CallKind::device_synchronize, 102, 105);
  builder.call(CallKind::launch, 106, 107);
  const std::vector<ExcerptBar> calls = bars(excerpt(builder, {.most_bars = 4}), "calls");
  ASSERT_THAT(calls, Not(IsEmpty()));
  EXPECT_EQ(calls.back().kind, "device synchronization");
  EXPECT_EQ(calls.back().count, 4U);
}

TEST(TimelineExcerpt, LimitsItsLanes) {
  TimelineBuilder builder = pageable_steps(8);
  for (std::uint16_t i = 1; i < 12; ++i) {
    builder.timeline.work.push_back({TimelineBuilder::us(100, 900), 7, i});
    builder.call(CallKind::launch, 100, 101, i);
  }
  const TimelineExcerpt shown = excerpt(builder);
  EXPECT_EQ(shown.devices_left_out, 4U);
  EXPECT_EQ(shown.threads_left_out, 8U);
  EXPECT_THAT(lane_names(shown), Contains("thread 3: calls"));
  EXPECT_THAT(lane_names(shown), Not(Contains("thread 4: calls")));
  EXPECT_THAT(lane_names(shown), Contains("findings on GPU 0: pageable-copies"));
}

TEST(TimelineExcerpt, LeavesThreadsThatLaunchNothingOut) {
  TimelineBuilder builder = pageable_steps(8);
  builder.call(CallKind::device_synchronize, 100, 900, 1);
  builder.loader_wait(100, 900, 1);
  EXPECT_THAT(lane_names(excerpt(builder)), Not(Contains("thread 1: calls")));
  EXPECT_THAT(lane_names(excerpt(builder)), Not(Contains("thread 1: loader")));
}

TEST(TimelineExcerpt, ShowsThreadsThatCopyToAGpuWithoutKernels) {
  TimelineBuilder builder = pageable_steps(8);
  builder.copy(CopyDirection::h2d, MemoryKind::pinned, 1000, 100, 900, 200, 300);
  builder.timeline.copies.back().device = 1;
  builder.timeline.calls.back().thread = 1;
  EXPECT_THAT(lane_names(excerpt(builder)), Contains("thread 1: calls"));
}

}  // namespace
}  // namespace penstock
