#include "doctor/timeline/device_account.hpp"

#include "doctor/tests/timelines.hpp"
#include "doctor/timeline/time_spans.hpp"
#include "doctor/timeline/work_labels.hpp"
#include "support/matchers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace penstock {
namespace {

using test::device_accounts;
using test::TimelineBuilder;

DeviceAccount account_of(const TimelineBuilder& builder) {
  const std::vector<DeviceAccount> accounts = device_accounts(builder.sorted());
  EXPECT_EQ(accounts.size(), 1U);
  return accounts.at(0);
}

TraceTime sum_of(const DeviceAccount& account) {
  return std::accumulate(account.parts.begin(), account.parts.end(), TraceTime{0});
}

TEST(TimeSpans, AreMergedInAnyOrder) {
  EXPECT_THAT(span_list({{5, 7}, {0, 2}, {2, 3}, {9, 9}, {6, 8}}),
              ElementsAre(TimeSpan{0, 3}, TimeSpan{5, 8}));
}

TEST(TimeSpans, AreIntersectedAndSubtracted) {
  const SpanList a{{0, 10}, {20, 30}};
  const SpanList b{{5, 6}, {8, 22}, {40, 50}};
  EXPECT_THAT(intersect(a, b), ElementsAre(TimeSpan{5, 6}, TimeSpan{8, 10}, TimeSpan{20, 22}));
  EXPECT_EQ(overlap(a, b), 5);
  EXPECT_EQ(overlap(a, {}), 0);
  EXPECT_THAT(subtract(a, b), ElementsAre(TimeSpan{0, 5}, TimeSpan{6, 8}, TimeSpan{22, 30}));
  EXPECT_THAT(subtract(a, {{0, 100}}), IsEmpty());
  EXPECT_THAT(subtract(a, {}), ElementsAre(TimeSpan{0, 10}, TimeSpan{20, 30}));
}

TEST(TimeSpans, AreFoundByTime) {
  const SpanIndex index({{10, 20}, {30, 40}});
  EXPECT_EQ(index.covered({0, 100}), 20);
  EXPECT_EQ(index.covered({15, 35}), 10);
  EXPECT_EQ(index.covered({20, 30}), 0);
  EXPECT_EQ(index.covered({12, 13}), 1);
  EXPECT_EQ(index.end_before(10, -1), -1);
  EXPECT_EQ(index.end_before(11, -1), 20);
  EXPECT_EQ(index.end_before(25, -1), 20);
  EXPECT_EQ(index.begin_after(20, -1), 30);
  EXPECT_EQ(index.begin_after(19, -1), 10);
  EXPECT_EQ(index.begin_after(40, -1), -1);
}

/// A step with everything in it: what the account says of each microsecond is written beside.
TimelineBuilder whole_step() {
  TimelineBuilder builder;
  builder.step(0, 100);
  builder.loader_wait(0, 10);                                                  // 0-10 waiting for data
  builder.copy(CopyDirection::h2d, MemoryKind::pinned, 1000, 10, 12, 14, 24);  // 10-14 launch, 14-20 exposed
  builder.op("aten::mm", 10, 14);                                              //
  builder.kernel(12, 20, 40);                                                  // 20-40 kernel
  builder.copy(CopyDirection::d2h, MemoryKind::pinned, 500, 38, 39, 35, 50);   // 40-50 exposed
  builder.op("aten::item", 50, 60);                                            // 50-60 launch
  builder.kernel(69, 70, 100);                                                 // 60-69 other, 69-70 launch
  return builder;
}

TEST(DeviceAccount, SplitsTheTimeOfAStep) {
  const DeviceAccount account = account_of(whole_step());
  EXPECT_EQ(account.part(DevicePart::kernel), 50'000);
  EXPECT_EQ(account.part(DevicePart::exposed_copy), 16'000);
  EXPECT_EQ(account.part(DevicePart::waiting_for_data), 10'000);
  EXPECT_EQ(account.part(DevicePart::launch_or_sync), 15'000);
  EXPECT_EQ(account.part(DevicePart::other_idle), 9'000);
  EXPECT_EQ(account.part(DevicePart::not_observed), 0);
  EXPECT_EQ(sum_of(account), account.total());
  EXPECT_EQ(account.steps, 1U);
  EXPECT_EQ(account.kernels, 2U);
  EXPECT_DOUBLE_EQ(account.step_seconds(), 100e-6);
}

TEST(DeviceAccount, TellsHiddenFromExposedCopies) {
  const DeviceAccount account = account_of(whole_step());
  EXPECT_EQ(account.h2d.count, 1U);
  EXPECT_EQ(account.h2d.bytes, 1000U);
  EXPECT_EQ(account.h2d.busy, 10'000);
  EXPECT_EQ(account.h2d.exposed, 6'000);
  EXPECT_EQ(account.d2h.bytes, 500U);
  EXPECT_EQ(account.d2h.busy, 15'000);
  EXPECT_EQ(account.d2h.exposed, 10'000);
}

TEST(DeviceAccount, CountsOnlyWhatLiesInTheSteps) {
  TimelineBuilder builder = whole_step();
  builder.kernel(101, 100, 500);
  builder.copy(CopyDirection::h2d, MemoryKind::pinned, 1000, 100, 110, 110, 120);
  const DeviceAccount account = account_of(builder);
  EXPECT_EQ(account.total(), 100'000);
  EXPECT_EQ(account.part(DevicePart::kernel), 50'000);
  EXPECT_EQ(account.h2d.count, 1U);
}

TEST(DeviceAccount, TakesTheWholeRecordingIfNoStepsAreMarked) {
  TimelineBuilder builder = whole_step();
  builder.timeline.steps.clear();
  builder.op("aten::late", 100, 130);
  const DeviceAccount account = account_of(builder);
  EXPECT_EQ(account.steps, 0U);
  EXPECT_EQ(account.total(), 130'000);
  EXPECT_EQ(account.part(DevicePart::launch_or_sync), 45'000);
}

TEST(DeviceAccount, BlamesNobodyIfCallsWereLeftOut) {
  for (const auto part : {&Timeline::has_launches, &Timeline::has_calls}) {
    TimelineBuilder builder = whole_step();
    builder.timeline.*part = false;
    const DeviceAccount account = account_of(builder);
    EXPECT_EQ(account.part(DevicePart::kernel), 50'000);
    EXPECT_EQ(account.part(DevicePart::not_observed), 34'000);
  }
}

TEST(DeviceAccount, ObservesNothingIfKernelsWereLeftOut) {
  TimelineBuilder builder = whole_step();
  builder.timeline.has_kernels = false;
  builder.timeline.work.clear();
  const DeviceAccount account = account_of(builder);
  EXPECT_FALSE(account.has_kernels);
  EXPECT_EQ(account.part(DevicePart::not_observed), account.total());
  EXPECT_EQ(sum_of(account), account.total());
  EXPECT_EQ(account.h2d.bytes, 1000U);
}

TEST(DeviceAccount, ObservesOnlyKernelsIfCopiesWereNotRecorded) {
  TimelineBuilder builder = whole_step();
  builder.timeline.has_copies = false;
  builder.timeline.copies.clear();
  const DeviceAccount account = account_of(builder);
  EXPECT_FALSE(account.has_copies);
  EXPECT_EQ(account.part(DevicePart::kernel), 50'000);
  EXPECT_EQ(account.part(DevicePart::not_observed), account.total() - 50'000);
  EXPECT_EQ(sum_of(account), account.total());
}

TEST(DeviceAccount, BlamesNobodyIfNoCallLaunchedTheKernels) {
  TimelineBuilder builder = whole_step();
  std::erase_if(builder.timeline.calls,
                [](const TimelineCall& call) { return call.kind == CallKind::launch; });
  EXPECT_EQ(account_of(builder).part(DevicePart::not_observed), 34'000);
}

TEST(DeviceAccount, KeepsDevicesApart) {
  TimelineBuilder builder = whole_step();
  builder.kernel(5, 0, 5, 7, 3);
  builder.timeline.devices[3] = "Another";
  const auto accounts = device_accounts(builder.sorted());
  ASSERT_EQ(accounts.size(), 2U);
  EXPECT_EQ(accounts[0].part(DevicePart::kernel), 50'000);
  EXPECT_EQ(accounts[1].device, 3U);
  EXPECT_EQ(accounts[1].name, "Another");
  EXPECT_EQ(accounts[1].part(DevicePart::kernel), 5'000);
}

/// Random spans that overlap, also beyond the steps, on several threads, streams and devices.
Timeline random_timeline(std::mt19937_64& random) {
  TimelineBuilder builder;
  const auto number = [&random](std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(0, most)(random);
  };
  const std::int64_t count = number(60);
  const auto span = [&](const auto& add) {
    const std::int64_t begin = number(300);
    add(begin, begin + number(1) * number(60));
  };
  for (std::int64_t i = 0; i < number(4); ++i) builder.step(i * 60 + 20, i * 60 + 20 + number(60));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto device = static_cast<std::uint16_t>(number(1));
    const auto thread = static_cast<std::uint16_t>(number(2));
    span([&](auto begin, auto end) {
      builder.kernel(number(300), begin, end, 7, device);
      if (number(1) == 0) builder.timeline.work.back().label = communication_label(1);
    });
    span([&](auto begin, auto end) {
      const auto direction = static_cast<CopyDirection>(number(2));
      builder.copy(direction, MemoryKind::pageable, 1, begin, begin, begin, end);
    });
    span([&](auto begin, auto end) { builder.host(HostSpanKind::op, "op", begin, end, thread); });
    span([&](auto begin, auto end) { builder.loader_wait(begin, end, thread); });
    span([&](auto begin, auto end) {
      builder.call(number(4) == 0 ? CallKind::other : CallKind::launch, begin, end, thread);
    });
  }
  builder.timeline.has_ops = number(3) > 0;
  builder.timeline.has_frames = builder.timeline.has_ops;
  return builder.sorted();
}

/// The account of each microsecond on its own.
std::array<TraceTime, kDeviceParts> counted(const Timeline& timeline, const DeviceAccount& account) {
  std::array<TraceTime, kDeviceParts> parts{};
  const auto on = [](const TimeSpan& span, TraceTime time) { return span.begin <= time && time < span.end; };
  const auto any = [&](const auto& records, TraceTime time, const auto& test) {
    return std::any_of(records.begin(), records.end(),
                       [&](const auto& record) { return on(record.time, time) && test(record); });
  };
  const auto of_device = [&](const auto& record) { return record.device == account.device; };
  const bool has_kernels = std::ranges::any_of(timeline.work, of_device);
  std::set<std::uint16_t> launching;  // or copying, if the device runs no kernels
  for (const auto& call : timeline.calls) {
    const auto is_made = [&](const auto& copy) {
      return of_device(copy) && copy.correlation == call.correlation;
    };
    if (has_kernels ? call.kind == CallKind::launch : std::ranges::any_of(timeline.copies, is_made))
      launching.insert(call.thread);
  }
  const bool observed = timeline.has_ops || timeline.has_frames ||
                        std::any_of(timeline.host.begin(), timeline.host.end(), [&](const auto& span) {
                          return span.kind == HostSpanKind::loader_wait && launching.contains(span.thread) &&
                                 span.time.begin < span.time.end;
                        });
  for (TraceTime time = account.window.begin; time < account.window.end; time += 1000) {
    const auto within = [&](const auto& copy) {
      return of_device(copy) && copy.direction == CopyDirection::d2d;
    };
    const auto launches = [&](const auto& record) { return launching.contains(record.thread); };
    const auto waits = [&](const auto& span) {
      return launches(span) && span.kind == HostSpanKind::loader_wait;
    };
    const auto ops = [&](const auto& span) { return launches(span) && span.kind == HostSpanKind::op; };
    const auto computes = [&](const auto& work) { return of_device(work) && !is_communication(work.label); };
    const auto starts = [&](const auto& call) { return launches(call) && call.kind == CallKind::other; };
    const DevicePart part =
        any(timeline.work, time, computes) || any(timeline.copies, time, within) ? DevicePart::kernel
        : any(timeline.work, time, of_device)                                    ? DevicePart::communication
        : any(timeline.copies, time, of_device)                                  ? DevicePart::exposed_copy
        : !observed                                                              ? DevicePart::not_observed
        : any(timeline.host, time, waits)                                      ? DevicePart::waiting_for_data
        : any(timeline.calls, time, starts)                                    ? DevicePart::starting
        : any(timeline.host, time, ops) || any(timeline.calls, time, launches) ? DevicePart::launch_or_sync
                                                                               : DevicePart::other_idle;
    parts[static_cast<std::size_t>(part)] += 1000;
  }
  return parts;
}

TEST(DeviceAccount, AddsUpAndAgreesWithCountingOverRandomTimelines) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 400; ++round) {
    SCOPED_TRACE(round);
    const Timeline timeline = random_timeline(random);
    for (const DeviceAccount& account : device_accounts(timeline)) {
      ASSERT_EQ(sum_of(account), account.total());
      ASSERT_EQ(account.parts, counted(timeline, account));
      ASSERT_LE(account.h2d.exposed, account.h2d.busy);
      ASSERT_LE(account.d2h.exposed, account.d2h.busy);
    }
  }
}

}  // namespace
}  // namespace penstock
