#include "doctor/rules/findings.hpp"
#include "doctor/tests/timelines.hpp"
#include "doctor/tests/traces.hpp"
#include "support/matchers.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace penstock {
namespace {

using test::TimelineBuilder;

constexpr double kMs = 1e-3;

/// Eight steps of 4000 us: a launch, which takes 1, and its kernel from 5 to `busy`. `act` adds what the host
/// does after the launch of each.
TimelineBuilder working_host(const std::function<void(TimelineBuilder&, std::int64_t)>& act,
                             std::int64_t busy = 1005) {
  TimelineBuilder builder;
  builder.timeline.source = TimelineSource::recorder;
  builder.timeline.has_ops = false;
  builder.timeline.has_looks = true;
  for (std::int64_t t = 0; t < 32'000; t += 4000) {
    builder.step(t, t + 4000);
    builder.kernel(t, t + 5, t + busy);
    act(builder, t);
  }
  return builder;
}

void decode(TimelineBuilder& builder, std::int64_t t) { builder.look("train.py(7): decode", t + 2000); }

std::vector<Finding> works_found(const TimelineBuilder& builder) {
  std::vector<Finding> findings = diagnose_timeline(builder.sorted()).findings;
  std::erase_if(findings, [](const Finding& finding) { return finding.id != "host-work"; });
  return findings;
}

TEST(HostWork, IsNamedWithItsLine) {
  const std::vector<Finding> all = diagnose_timeline(working_host(decode).sorted()).findings;
  ASSERT_THAT(all, SizeIs(1));
  const Finding& finding = all[0];
  EXPECT_EQ(finding.id, "host-work");
  EXPECT_EQ(finding.severity, Severity::high);
  EXPECT_THAT(finding.text, HasSubstr("in its own code on the host: 3.00 ms of 4.00 ms a step."));
  // Of the 3999 us without a call, the kernel runs in 1000.
  EXPECT_NEAR(finding.seconds, 2.999 * kMs, 1e-9);
  EXPECT_DOUBLE_EQ(finding.count, 1);
  EXPECT_EQ(finding.gain.low, 0);
  EXPECT_NEAR(finding.gain.high, 3 * kMs, 1e-9) << "all that the GPU idles";
  ASSERT_THAT(finding.places, SizeIs(1));
  EXPECT_EQ(finding.places[0].function, "train.py(7): decode");
  EXPECT_EQ(finding.places[0].count, 8U);
  EXPECT_NEAR(finding.places[0].seconds, 8 * 2.999 * kMs, 1e-9);
}

TEST(HostWork, TakesAMillisecondWithoutACall) {
  const auto launching = [](std::int64_t gap) {
    return working_host([gap](TimelineBuilder& b, std::int64_t t) {
      for (std::int64_t at = gap; at + gap <= 4000; at += gap) b.call(CallKind::launch, t + at, t + at + 1);
      for (std::int64_t at = 100; at < 4000; at += 500) b.look("train.py(7): decode", t + at);
    });
  };
  EXPECT_THAT(works_found(launching(2000)), SizeIs(1));
  EXPECT_THAT(works_found(launching(1000)), IsEmpty()) << "999 us";
}

TEST(HostWork, IsSeen) {
  const auto seen_by = [](std::uint16_t thread) {
    return working_host(
        [thread](TimelineBuilder& b, std::int64_t t) { b.look("train.py(7): decode", t + 2000, thread); });
  };
  EXPECT_THAT(works_found(seen_by(0)), SizeIs(1));
  EXPECT_THAT(works_found(seen_by(3)), IsEmpty()) << "this thread launches nothing";
  EXPECT_THAT(works_found(working_host([](TimelineBuilder&, std::int64_t) {})), IsEmpty());
  EXPECT_THAT(works_found(working_host([](TimelineBuilder& b, std::int64_t t) {
                b.call(CallKind::stream_synchronize, t + 1, t + 1900);
                b.look("train.py(7): decode", t + 1800);
              })),
              IsEmpty())
      << "it was in the call";
}

TEST(HostWork, CountsOnlyWhatTheGpuIdles) {
  EXPECT_THAT(works_found(working_host(decode, 3850)), IsEmpty()) << "less than 5 %";
  const std::vector<Finding> found = works_found(working_host(decode, 3700));
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_NEAR(found[0].gain.high, 0.305 * kMs, 1e-9);
  EXPECT_NEAR(found[0].places.at(0).seconds, 8 * 0.304 * kMs, 1e-9);
  TimelineBuilder hidden = working_host(decode);
  for (std::size_t i = 2; i < 5; ++i) hidden.timeline.work[i].time.end += 3'000'000;
  hidden.timeline.work[1].time.end += 3'000'000;
  ASSERT_THAT(works_found(hidden), SizeIs(1));
  EXPECT_DOUBLE_EQ(works_found(hidden)[0].count, 5.0 / 8) << "of these, three after the first quarter";
}

TEST(HostWork, IsNoPartOfWhatOtherFindingsGain) {
  // The same 4 MiB are copied again when the host has worked.
  const TimelineBuilder builder = working_host([](TimelineBuilder& b, std::int64_t t) {
    decode(b, t);
    b.copy(CopyDirection::h2d, MemoryKind::pinned, 4 << 20, t + 3800, t + 3802, t + 3810, t + 3900);
    b.timeline.copies.back().contents = 7;
  });
  for (const Finding& finding : diagnose_timeline(builder.sorted()).findings) {
    if (finding.id != "same-data-again") continue;
    EXPECT_NEAR(finding.gain.high, (90 + 10) * 1e-6 * 7 / 8, 1e-6) << "the copies, and 10 us before each";
    return;
  }
  FAIL() << "not found";
}

TEST(HostWork, IsNoWaitForALoader) {
  EXPECT_THAT(works_found(working_host([](TimelineBuilder& b, std::int64_t t) {
                b.loader_wait(t + 900, t + 3900);
                decode(b, t);
              })),
              IsEmpty());
}

TEST(HostWork, IsNoneIfAnotherThreadLaunches) {
  // As that of autograd does during backward().
  EXPECT_THAT(works_found(working_host([](TimelineBuilder& b, std::int64_t t) {
                for (std::int64_t at = 500; at < 4000; at += 500)
                  b.call(CallKind::launch, t + at, t + at + 1, 1);
                decode(b, t);
              })),
              IsEmpty());
}

/// It works in the steps from `first` up to `last`, and launches in the others.
TimelineBuilder working_in(std::int64_t first, std::int64_t last) {
  return working_host([=](TimelineBuilder& b, std::int64_t t) {
    if (t >= first * 4000 && t < last * 4000) return decode(b, t);
    for (std::int64_t at = 500; at < 4000; at += 500) b.call(CallKind::launch, t + at, t + at + 1);
  });
}

TEST(HostWork, ComesInEverySecondStepAfterTheFirst) {
  EXPECT_THAT(works_found(working_in(0, 4)), IsEmpty());
  EXPECT_THAT(works_found(working_in(0, 5)), SizeIs(1));
  const std::vector<Finding> late = works_found(working_in(5, 8));
  ASSERT_THAT(late, SizeIs(1));
  EXPECT_NEAR(late[0].seconds, 3 * 2.999 * kMs / 8, 1e-9);
  TimelineBuilder short_run = working_host(decode);
  short_run.timeline.steps.resize(3);
  EXPECT_THAT(works_found(short_run), IsEmpty()) << "fewer than 4 steps";
}

TEST(HostWork, LeavesPausesOut) {
  TimelineBuilder builder = working_host(decode);
  // A checkpoint behind the last step, which the ninth one ends.
  builder.timeline.steps.back().end = 100'000'000;
  for (std::int64_t at = 33'000; at < 100'000; at += 2000) builder.look("train.py(9): save", at);
  builder.step(100'000, 104'000);
  builder.kernel(100'000, 100'005, 101'005);
  builder.look("train.py(7): decode", 102'000);
  const std::vector<Finding> found = works_found(builder);
  ASSERT_THAT(found, SizeIs(1));
  ASSERT_THAT(found[0].places, SizeIs(1));
  EXPECT_EQ(found[0].places[0].function, "train.py(7): decode");
  EXPECT_NEAR(found[0].seconds, 8 * 2.999 * kMs / 9, 1e-9);
}

TEST(HostWork, IsOfTheThreadThatCallsNext) {
  const auto two_threads = [](bool worker_is_seen) {
    TimelineBuilder builder = working_host([worker_is_seen](TimelineBuilder& b, std::int64_t t) {
      for (std::int64_t at = 500; at < 4000; at += 700) b.look("train.py(3): join", t + at, 1);
      if (worker_is_seen) decode(b, t);
    });
    builder.call(CallKind::launch, 2, 3, 1);
    return builder;
  };
  const auto function = [](const TimelineBuilder& builder) {
    const std::vector<Finding> found = works_found(builder);
    return found.empty() || found[0].places.size() != 1 ? std::string() : found[0].places[0].function;
  };
  EXPECT_EQ(function(two_threads(true)), "train.py(7): decode");
  EXPECT_EQ(function(two_threads(false)), "train.py(3): join") << "as if it waits for that of autograd";
}

TEST(HostWork, IsSharedOutByTheLooks) {
  const std::vector<Finding> found = works_found(working_host([](TimelineBuilder& b, std::int64_t t) {
    b.look("train.py(8): crop", t + 1000);
    decode(b, t);
    b.look("train.py(7): decode", t + 3000);
  }));
  ASSERT_THAT(found, SizeIs(1));
  ASSERT_THAT(found[0].places, SizeIs(2));
  EXPECT_EQ(found[0].places[0].function, "train.py(7): decode");
  EXPECT_NEAR(found[0].places[0].seconds, 8 * 2.999 * kMs * 2 / 3, 1e-9);
  EXPECT_NEAR(found[0].places[1].seconds, 8 * 2.999 * kMs / 3, 1e-9);
}

TEST(HostWork, IsNotExaminedIfNobodyLooked) {
  TimelineBuilder builder = working_host(decode);
  const auto why = [&builder] {
    std::string text;
    for (const NotExamined& missing : diagnose_timeline(builder.sorted()).not_examined) {
      if (std::ranges::find(missing.names, "host-work") != missing.names.end()) text += missing.text;
    }
    return text;
  };
  EXPECT_EQ(why(), "");
  builder.timeline.has_looks = false;
  EXPECT_THAT(works_found(builder), IsEmpty());
  EXPECT_THAT(why(), HasSubstr("Earlier recorders did not look."));
  builder.timeline.source = TimelineSource::torch_profiler;
  EXPECT_THAT(why(), HasSubstr("Profile with with_stack=True."));
}

/// A trace with stacks: `count` times 2 ms of preprocessing, then a copy and a kernel.
std::string preprocessing(int count, bool marked) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    const int begin = 3000 * i;
    if (marked) text += test::trace_event("user_annotation", fmt::format("ProfilerStep#{}", i), begin, 3000);
    text += test::trace_event("python_function", "infer.py(3): main", begin, 2999) +
            test::trace_event("python_function", "video.py(40): preprocess", begin + 10, 2000) +
            test::trace_event("python_function", "PIL/Image.py(9): resize", begin + 20, 1500) +
            test::trace_event("cpu_op", "aten::normal_", begin + 1600, 300) +
            test::trace_event("cuda_runtime", "cudaMemcpyAsync", begin + 2050, 20, R"("correlation": 1)") +
            test::trace_event("cuda_runtime", "cudaLaunchKernel", begin + 2080, 5) +
            test::trace_event("kernel", "k", begin + 2090, 900, R"("device": 0, "stream": 7)");
  }
  return text;
}

TEST(HostWork, IsInTheStacksOfATrace) {
  for (const bool marked : {true, false}) {
    const Timeline timeline = test::trace_of(preprocessing(8, marked));
    ASSERT_THAT(timeline.steps, SizeIs(Ge(6U)));
    const std::vector<Finding> all = diagnose_timeline(timeline).findings;
    const auto found = std::ranges::find(all, "host-work", &Finding::id);
    ASSERT_NE(found, all.end());
    ASSERT_THAT(found->places, Not(IsEmpty()));
    EXPECT_EQ(found->places[0].function, "video.py(40): preprocess");
    EXPECT_GT(found->seconds, 1.9 * kMs);
  }
}

TEST(HostWork, IsInATraceOfOneRun) {
  const Timeline timeline = test::trace_of(preprocessing(1, false));
  EXPECT_THAT(timeline.steps, IsEmpty());
  const std::vector<Finding> all = diagnose_timeline(timeline).findings;
  const auto found = std::ranges::find(all, "host-work", &Finding::id);
  ASSERT_NE(found, all.end());
  EXPECT_EQ(found->places.at(0).function, "video.py(40): preprocess");
  EXPECT_THAT(found->text, HasSubstr("ms of 3.00 ms."));
  EXPECT_THAT(found->text, Not(HasSubstr("a step")));
  TimelineBuilder recording = working_host(decode);
  recording.timeline.steps.clear();
  EXPECT_THAT(works_found(recording), IsEmpty()) << "it begins with the program";
}

TEST(HostWork, IsNoCallThatStartsCuda) {
  const std::string start = test::trace_event("python_function", "infer.py(3): main", 0, 6000) +
                            test::trace_event("cuda_runtime", "cudaDeviceGetStreamPriorityRange", 10, 4000) +
                            test::trace_event("cuda_runtime", "cudaLaunchKernel", 4080, 5) +
                            test::trace_event("kernel", "k", 4090, 1900, R"("device": 0, "stream": 7)");
  const Diagnosis diagnosis = diagnose_timeline(test::trace_of(start));
  EXPECT_THAT(diagnosis.findings, IsEmpty());
  EXPECT_EQ(diagnosis.accounts.at(0).part(DevicePart::starting), 4'000'000);
}

}  // namespace
}  // namespace penstock
