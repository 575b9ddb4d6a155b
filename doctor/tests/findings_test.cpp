#include "doctor/rules/findings.hpp"

#include "doctor/tests/timelines.hpp"
#include "doctor/timeline/call_sites.hpp"
#include "doctor/timeline/frame_names.hpp"
#include "support/matchers.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using test::TimelineBuilder;

constexpr std::uint64_t kMiB4 = std::uint64_t{4} << 20;
constexpr double kUs = 1e-6;

std::vector<std::string> ids(const Diagnosis& diagnosis) {
  std::vector<std::string> list;
  list.reserve(diagnosis.findings.size());
  for (const Finding& finding : diagnosis.findings) list.push_back(finding.id);
  return list;
}

/// Steps of 1000 us: `prelude` at the beginning of each, then a kernel from `kernel` to the step's end.
TimelineBuilder steps(const std::function<void(TimelineBuilder&, std::int64_t)>& prelude, std::int64_t kernel,
                      int count = 8) {
  TimelineBuilder builder;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = i * 1000;
    builder.step(begin, begin + 1000);
    builder.frame("train.py(10): step", begin, begin + 999);
    prelude(builder, begin);
    builder.kernel(begin + kernel - 5, begin + kernel, begin + 1000);
  }
  return builder;
}

/// A copy in each step.
struct Copy {
  struct Times {
    std::int64_t called, returned, begin, end;
  } at;  ///< us from the beginning of the step
  std::uint64_t bytes = kMiB4;
  MemoryKind kind = MemoryKind::pinned;
  std::uint32_t stream = 7;
  CopyDirection direction = CopyDirection::h2d;
  std::optional<std::pair<std::int64_t, std::int64_t>> waits = std::nullopt;  ///< a synchronization behind it
};
/// Steps of these copies alone, before the kernel.
TimelineBuilder copying(const std::vector<Copy>& copies, std::int64_t kernel) {
  return steps(
      [&copies](TimelineBuilder& b, std::int64_t t) {
        for (const auto& [at, bytes, kind, stream, direction, waits] : copies) {
          b.copy(direction, kind, bytes, t + at.called, t + at.returned, t + at.begin, t + at.end, stream);
          if (waits) b.call(CallKind::stream_synchronize, t + waits->first, t + waits->second);
        }
      },
      kernel);
}

Diagnosis diagnose(const TimelineBuilder& builder, const LinkProfile* profile = nullptr) {
  return diagnose_timeline(builder.sorted(), profile);
}

Finding only_finding(const TimelineBuilder& builder, const LinkProfile* profile = nullptr) {
  const Diagnosis diagnosis = diagnose(builder, profile);
  EXPECT_THAT(diagnosis.findings, SizeIs(1)) << ::testing::PrintToString(ids(diagnosis));
  return diagnosis.findings.empty() ? Finding{} : diagnosis.findings[0];
}

/// The finding of that rule; one without an id if there is none.
Finding found(const char* id, const TimelineBuilder& builder, const LinkProfile* profile = nullptr) {
  for (const Finding& finding : diagnose(builder, profile).findings) {
    if (finding.id == id) return finding;
  }
  return {};
}

void expect_gain(const Finding& finding, double low, double high) {
  EXPECT_NEAR(finding.gain.low, low * kUs, 1e-3 * kUs);
  EXPECT_NEAR(finding.gain.high, high * kUs, 1e-3 * kUs);
}

TEST(Findings, SayNothingOfAHealthyLoop) {
  // The next batch is copied on a stream of its own, from pinned memory, while the kernels run.
  TimelineBuilder builder = steps(
      [](TimelineBuilder& b, std::int64_t t) {
        b.loader_wait(t, t + 2);
        b.op("aten::to", t + 2, t + 6);
        b.copy(CopyDirection::h2d, MemoryKind::pinned, kMiB4, t + 3, t + 5, t + 300, t + 380, 20);
      },
      10);
  const Diagnosis diagnosis = diagnose(builder);
  EXPECT_THAT(ids(diagnosis), IsEmpty());
  EXPECT_THAT(diagnosis.not_examined, SizeIs(1)) << "what a trace never tells";
}

void pageable(TimelineBuilder& b, std::int64_t t) {
  b.op("aten::to", t + 1, t + 405);
  b.copy(CopyDirection::h2d, MemoryKind::pageable, kMiB4, t + 2, t + 402, t + 2, t + 402);
  b.call(CallKind::stream_synchronize, t + 402, t + 403);
}

TEST(Findings, NamePageableCopiesAndWhereTheyAreMade) {
  const Finding finding = only_finding(steps(pageable, 410));
  EXPECT_EQ(finding.id, "pageable-copies");
  EXPECT_EQ(finding.severity, Severity::medium);
  EXPECT_DOUBLE_EQ(finding.count, 1);
  EXPECT_DOUBLE_EQ(finding.bytes, kMiB4);
  EXPECT_NEAR(finding.seconds, 400 * kUs, 1e-9);
  ASSERT_THAT(finding.places, SizeIs(1));
  EXPECT_EQ(finding.places[0].function, "train.py(10): step");
  EXPECT_EQ(finding.places[0].op, "aten::to");
  EXPECT_EQ(finding.places[0].count, 8U);
  EXPECT_EQ(finding.places[0].bytes, 8 * kMiB4);
  EXPECT_THAT(finding.text, HasSubstr("4 MiB"));
  expect_gain(finding, 0, 401);  // as long as the host waits
}

/// A link of 20 GB/s, on which the smallest copy takes 20 us.
LinkProfile slow_link() {
  LinkProfile profile;
  profile.curves[LinkProfile::Curve::pinned_h2d] = {
      {1024, 20 * kUs}, {1'000'000, 50 * kUs}, {100'000'000, 5'000 * kUs}};
  return profile;
}

TEST(Findings, TellCompiledProgramsAChangeInTheirLanguage) {
  TimelineBuilder builder = steps(pageable, 410);
  EXPECT_THAT(only_finding(builder).change, HasSubstr("pin_memory=True"));
  builder.timeline.is_compiled = true;
  const Finding finding = only_finding(builder);
  EXPECT_THAT(finding.change, HasSubstr("cudaMallocHost"));
  EXPECT_THAT(finding.penstock_change, HasSubstr("TransferEngine"));
}

TEST(Findings, PredictPinnedCopiesFromTheLink) {
  // 4 MiB take 100 us of the 400.
  LinkProfile link;
  link.curves[LinkProfile::Curve::pinned_h2d] = {{1024, kUs}, {kMiB4, 100 * kUs}};
  const Finding finding = only_finding(steps(pageable, 410), &link);
  expect_gain(finding, 300, 401);
  EXPECT_EQ(finding.severity, Severity::high);
}

TEST(Findings, PredictPinnedCopiesFromTheBestOfThem) {
  const auto both = [](TimelineBuilder& b, std::int64_t t) {
    pageable(b, t);
    b.copy(CopyDirection::h2d, MemoryKind::pinned, kMiB4, t + 404, t + 406, t + 500, t + 600, 20);
  };
  expect_gain(only_finding(steps(both, 410)), 300, 401);
}

TEST(Findings, CallAPageableCopyThatKernelsHideNothing) {
  TimelineBuilder builder =
      copying({{.at = {100, 499, 100, 500}, .kind = MemoryKind::pageable, .stream = 20}}, 10);
  const Finding finding = only_finding(builder);
  EXPECT_EQ(finding.id, "pageable-copies");
  EXPECT_EQ(finding.severity, Severity::note);
  expect_gain(finding, 0, 10);  // The GPU idles for 10 us, as the host launches late after it.
}

TEST(Findings, PageableCopiesMayGainWhatTheHostWouldHide) {
  const auto gained = [](std::int64_t call_ends, std::int64_t loader = 0) {
    TimelineBuilder builder = steps(
        [=](TimelineBuilder& b, std::int64_t t) {
          b.copy(CopyDirection::h2d, MemoryKind::pageable, kMiB4, t, t + call_ends, t, t + 100);
          b.kernel(t + 95, t + 100, t + 200);
          if (loader > 0) b.loader_wait(t + 390 - loader, t + 390);
          b.call(CallKind::launch, t + 390, t + 395);
        },
        400);
    return only_finding(builder).gain.high / kUs;
  };
  EXPECT_NEAR(gained(250), 250, 1e-3) << "as much as the host waits";
  EXPECT_NEAR(gained(350), 300, 1e-3) << "all that the GPU copies and idles";
  EXPECT_NEAR(gained(350, 40), 260, 1e-3) << "but not what it idles for a loader";
  EXPECT_NEAR(gained(50), 100, 1e-3) << "what is exposed";
}

TEST(Findings, CopiesGainNoMoreThanTheyTake) {
  // Weights go to the GPU once, long after it was used first, and long before it is used again.
  TimelineBuilder builder;
  builder.kernel(0, 5, 10);
  for (std::int64_t i = 0; i < 8; ++i)
    builder.copy(CopyDirection::h2d, MemoryKind::pageable, kMiB4, 1'000'000 + i * 500, 1'000'400 + i * 500,
                 1'000'000 + i * 500, 1'000'400 + i * 500);
  builder.kernel(3'000'000, 3'000'005, 3'010'000);
  expect_gain(only_finding(builder), 0, 8 * 400);
}

TEST(Findings, CopiesThatNothingHidesGainNoLongerGapsThanThemselves) {
  const auto gained = [](std::int64_t late) {
    TimelineBuilder builder = copying({{.at = {late, late + 2, late + 4, late + 104}}}, 700);
    return only_finding(builder).gain.high / kUs;
  };
  EXPECT_NEAR(gained(500), 100 + 100 + 96, 1e-3) << "the host was late for other reasons";
  EXPECT_NEAR(gained(50), 100 + 54 + 100, 1e-3);
}

TEST(Findings, LeaveSmallPageableCopiesAlone) {
  TimelineBuilder builder =
      copying({{.at = {1, 3, 2, 8}, .bytes = 64 << 10, .kind = MemoryKind::pageable}}, 10);
  EXPECT_THAT(ids(diagnose(builder)), IsEmpty());
}

TEST(Findings, LeaveWhatHappensOnceAlone) {
  int made = 0;
  TimelineBuilder builder = steps(
      [&made](TimelineBuilder& b, std::int64_t t) {
        if (made++ == 0) pageable(b, t);
      },
      410);
  EXPECT_THAT(ids(diagnose(builder)), IsEmpty());
}

/// A pinned copy, after whose call the host waits, or does not.
TimelineBuilder pinned_copies(bool waits) {
  return steps(
      [waits](TimelineBuilder& b, std::int64_t t) {
        b.op("aten::to", t + 1, t + 105);
        b.copy(CopyDirection::h2d, MemoryKind::pinned, kMiB4, t + 2, t + 4, t + 4, t + 104);
        if (waits) b.call(CallKind::stream_synchronize, t + 4, t + 105);
      },
      155);
}

TEST(Findings, NameBlockingCopies) {
  const Finding finding = only_finding(pinned_copies(true));
  EXPECT_EQ(finding.id, "blocking-copies");
  // The host waits 101 us, and the GPU then idles from 104 to 155.
  expect_gain(finding, 25.5, 101);
}

/// As above, but the host waits 30 us later, in another line or the same, as a recorder of calls sees it.
TimelineBuilder pinned_copies_and_waits(std::string_view copied, std::string_view waited) {
  TimelineBuilder builder = steps(
      [copied, waited](TimelineBuilder& b, std::int64_t t) {
        b.frame(copied, t + 2, t + 4);
        b.copy(CopyDirection::h2d, MemoryKind::pinned, kMiB4, t + 2, t + 4, t + 4, t + 104);
        b.frame(waited, t + 34, t + 105);
        b.call(CallKind::stream_synchronize, t + 34, t + 105);
      },
      155);
  builder.timeline.source = TimelineSource::recorder;
  return builder;
}

TEST(Findings, TellTheWaitForEarlierWorkFromThatForTheCopy) {
  TimelineBuilder builder = copying({{.at = {2, 4, 74, 104}, .waits = {{4, 105}}}}, 155);
  EXPECT_THAT(only_finding(builder).text,
              HasSubstr("It waits 101 µs, of that 70.0 µs for earlier work before"));
}

TEST(Findings, TellTheWaitForPageableCopiesFromTheirTime) {
  TimelineBuilder builder =
      copying({{.at = {2, 402, 52, 402}, .kind = MemoryKind::pageable, .waits = {{402, 403}}}}, 410);
  EXPECT_THAT(only_finding(builder).text,
              HasSubstr("The host waits 401 µs for them, of that 50.0 µs before they begin."));
}

TEST(Findings, CountNoWaitForACopyBeforeTheFirstStep) {
  TimelineBuilder builder = steps(
      [](TimelineBuilder& b, std::int64_t t) {
        const std::int64_t called = t == 0 ? -900 : t + 2;
        b.copy(CopyDirection::h2d, MemoryKind::pinned, kMiB4, called, called + 2, t + 4, t + 104);
        b.call(CallKind::stream_synchronize, called + 2, t == 0 ? 109 : t + 105);
      },
      155);
  builder.kernel(-950, -940, -930);
  // Of the first step's wait 109 us, and of the other seven 101.
  EXPECT_THAT(only_finding(builder).text,
              HasSubstr("It waits 102 µs, of that 500 ns for earlier work before"));
}

TEST(Findings, NameBlockingCopiesWhoseWaitsComeLaterInTheSameLine) {
  EXPECT_EQ(only_finding(pinned_copies_and_waits("train.py(7)", "train.py(7)")).id, "blocking-copies");
  EXPECT_THAT(ids(diagnose(pinned_copies_and_waits("train.py(7)", "train.py(8)"))),
              Contains("exposed-copies"));
  // A trace's frames name the first line of their function.
  TimelineBuilder trace = pinned_copies_and_waits("train.py(7)", "train.py(7)");
  trace.timeline.source = TimelineSource::torch_profiler;
  EXPECT_THAT(ids(diagnose(trace)), Contains("exposed-copies"));
}

TEST(Findings, NameCopiesThatNothingHides) {
  const Finding finding = only_finding(pinned_copies(false));
  EXPECT_EQ(finding.id, "exposed-copies");
  EXPECT_THAT(finding.meaning, HasSubstr("on the stream of the kernels"));
  expect_gain(finding, 50, 155);  // with the 4 us before the copy and the 51 after it
}

TEST(Findings, CountWhatTheGpuIdlesBetweenTwoCopiesOnce) {
  TimelineBuilder builder = steps(
      [](TimelineBuilder& b, std::int64_t t) {
        b.copy(CopyDirection::h2d, MemoryKind::pinned, kMiB4, t + 2, t + 4, t + 10, t + 110);
        b.copy(CopyDirection::h2d, MemoryKind::pinned, kMiB4, t + 5, t + 7, t + 160, t + 260);
        b.kernel(t + 305, t + 310, t + 320);  // The GPU idles after it, which bounds no gain.
      },
      400);
  expect_gain(only_finding(builder), 100, 200 + 10 + 50 + 50);
}

TEST(Findings, TellCopiesOnAStreamOfTheirOwn) {
  TimelineBuilder builder = pinned_copies(false);
  for (TimelineCopy& copy : builder.timeline.copies) copy.stream = 20;
  EXPECT_THAT(only_finding(builder).meaning, HasSubstr("a stream of their own"));
}

constexpr std::uint32_t kDefaultStream = 7;
constexpr std::uint32_t kBlockingStream = 13;
constexpr std::uint32_t kOwnStream = 20;

/// pinned_copies(false) of a recording that tells the kinds of streams.
TimelineBuilder on_streams(std::uint32_t copies, std::uint32_t kernels) {
  TimelineBuilder builder = pinned_copies(false);
  builder.timeline.stream_kinds = {{{0, kDefaultStream}, StreamKind::default_stream},
                                   {{0, kBlockingStream}, StreamKind::blocking},
                                   {{0, kBlockingStream + 1}, StreamKind::blocking},
                                   {{0, kOwnStream}, StreamKind::non_blocking}};
  for (TimelineCopy& copy : builder.timeline.copies) copy.stream = copies;
  for (TimelineWork& work : builder.timeline.work) work.stream = kernels;
  return builder;
}
bool names_default_stream(const TimelineBuilder& builder) {
  const Finding finding = only_finding(builder);
  EXPECT_EQ(finding.id, "exposed-copies");
  const bool names_it = finding.meaning.find("the default stream") != std::string::npos;
  EXPECT_EQ(finding.change.find("cupy.cuda.Stream(non_blocking=True)") != std::string::npos, names_it);
  return names_it;
}

TEST(Findings, TellThatCopiesAndKernelsWaitForTheDefaultStream) {
  EXPECT_TRUE(names_default_stream(on_streams(kDefaultStream, kBlockingStream)));
  EXPECT_TRUE(names_default_stream(on_streams(kBlockingStream, kDefaultStream)));
  expect_gain(only_finding(on_streams(kDefaultStream, kBlockingStream)), 50, 155);
  EXPECT_FALSE(names_default_stream(on_streams(kDefaultStream, kDefaultStream))) << "its own order";
  EXPECT_FALSE(names_default_stream(on_streams(kBlockingStream, kBlockingStream + 1)));
  EXPECT_FALSE(names_default_stream(on_streams(kOwnStream, kDefaultStream))) << "non-blocking ones";
  EXPECT_FALSE(names_default_stream(on_streams(kDefaultStream, kOwnStream)));
  TimelineBuilder unknown = on_streams(kDefaultStream, kBlockingStream);
  unknown.timeline.stream_kinds.erase({0, kBlockingStream});
  EXPECT_FALSE(names_default_stream(unknown));
  unknown.timeline.stream_kinds = {{{1, kDefaultStream}, StreamKind::default_stream},
                                   {{1, kBlockingStream}, StreamKind::blocking}};
  EXPECT_FALSE(names_default_stream(unknown)) << "another device's streams";
}

TEST(Findings, TellCompiledProgramsAStreamThatDoesNotWait) {
  TimelineBuilder builder = on_streams(kDefaultStream, kBlockingStream);
  builder.timeline.is_compiled = true;
  EXPECT_THAT(only_finding(builder).change,
              HasSubstr("cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking)"));
}

TEST(Findings, HideNoMoreThanThereAreKernels) {
  // A step of 1000 us with a kernel of 100: no more than 100 of the copy's 880 can be hidden. The GPU idles
  // for 10 before it and for 10 after it.
  TimelineBuilder builder = copying({{.at = {2, 4, 10, 890}}}, 900);
  expect_gain(only_finding(builder), 50, 120);
}

TEST(Findings, LeaveCopiesAloneThatAreExposedForLessThanATwentieth) {
  const auto exposed = [](std::int64_t took) {
    return ids(diagnose(copying({{.at = {2, 4, 4, 4 + took}}}, 120)));
  };
  EXPECT_THAT(exposed(50), ElementsAre("exposed-copies"));
  EXPECT_THAT(exposed(49), IsEmpty());
}

TEST(Findings, NameBlockingCopiesWhoseWaitsFollowAtOnce) {
  const auto waiting = [](std::int64_t later) {
    return ids(diagnose(copying({{.at = {2, 4, 4, 104}, .waits = {{4 + later, 105}}}}, 155)));
  };
  EXPECT_THAT(waiting(10), Contains("blocking-copies"));
  EXPECT_THAT(waiting(11), Not(Contains("blocking-copies")));
}

TEST(Findings, TakeARateOnlyFromLargeCopies) {
  const auto least_gain = [](std::uint64_t bytes) {
    return found("pageable-copies",
                 copying({{.at = {2, 402, 2, 402}, .kind = MemoryKind::pageable, .waits = {{402, 403}}},
                          {.at = {404, 406, 500, 540}, .bytes = bytes, .stream = 20}},
                         410))
        .gain.low;
  };
  EXPECT_NEAR(least_gain(1 << 20), (400 - 4 * 40) * kUs, 1e-9);
  EXPECT_EQ(least_gain((1 << 20) - 1), 0);
}

TEST(Findings, TakeSmallCopiesForOneRunUpToAGap) {
  // 16 copies, of which the last one counts only if it is in the run of the others.
  const auto with_gap = [](std::int64_t gap) {
    return ids(diagnose(steps(
        [gap](TimelineBuilder& b, std::int64_t t) {
          for (std::int64_t i = 0; i < 16; ++i) {
            const std::int64_t at = t + 10 + 10 * i + (i < 15 ? 0 : gap - 8);
            b.copy(CopyDirection::h2d, MemoryKind::pinned, 1024, at - 5, at - 3, at, at + 2);
          }
        },
        500)));
  };
  EXPECT_THAT(with_gap(200), ElementsAre("small-copies"));
  EXPECT_THAT(with_gap(201), IsEmpty());
}

/// `count` copies of 1 KiB in each step, 10 us apart.
TimelineBuilder small_copies(int count) {
  return steps(
      [count](TimelineBuilder& b, std::int64_t t) {
        for (std::int64_t i = 0; i < count; ++i) {
          const std::int64_t at = t + 10 + 10 * i;
          b.copy(CopyDirection::h2d, MemoryKind::pinned, 1024, at - 5, at - 3, at, at + 2);
        }
      },
      400);
}

TEST(Findings, NameManySmallCopies) {
  const Finding finding = only_finding(small_copies(32));
  EXPECT_EQ(finding.id, "small-copies");
  EXPECT_DOUBLE_EQ(finding.count, 32);
  // From 10 to 322 us. One copy of 32 KiB takes 10 us and 3.276 us.
  expect_gain(finding, (312 - 13.276) / 2, 312 - 13.276);
}

TEST(Findings, SmallCopiesMayGainWhatTheHostWouldHide) {
  // They take 312 us, and the GPU idles for 88 more. The calls take 10 us each, 320 together.
  TimelineBuilder builder = small_copies(32);
  for (TimelineCall& call : builder.timeline.calls) {
    if (call.kind == CallKind::copy) call.time.end = call.time.begin + 10'000;
  }
  expect_gain(only_finding(builder), (312 - 13.276) / 2, 320);
}

TEST(Findings, CountTheCallOfManyCopiesOnce) {
  // 32 copies from 10 to 136 us, and the host is in their call for 100 us.
  const TimelineBuilder builder = steps(
      [](TimelineBuilder& b, std::int64_t t) {
        b.copy(CopyDirection::h2d, MemoryKind::pinned, 1024, t + 5, t + 105, t + 10, t + 12);
        for (std::int64_t i = 1; i < 32; ++i) {
          TimelineCopy copy = b.timeline.copies.back();
          copy.time = TimelineBuilder::us(t + 10 + 4 * i, t + 12 + 4 * i);
          b.timeline.copies.push_back(copy);
        }
      },
      400);
  expect_gain(only_finding(builder), (126 - 13.276) / 2, 126 - 13.276);
}

TEST(Findings, CountTheGapsBetweenSmallCopiesOnce) {
  // The copies take 64 us, and the GPU idles for 356. The host is in their calls for 510.
  TimelineBuilder builder = steps(
      [](TimelineBuilder& b, std::int64_t t) {
        for (std::int64_t i = 0; i < 32; ++i) {
          const std::int64_t at = t + 10 + 10 * i;
          b.copy(CopyDirection::h2d, MemoryKind::pinned, 1024, at - 5, i < 31 ? at + 5 : t + 515, at, at + 2);
        }
        b.copy(CopyDirection::d2h, MemoryKind::pinned, kMiB4, t + 516, t + 518, t + 420, t + 700);
      },
      700);
  expect_gain(only_finding(builder), (312 - 13.276) / 2, 420);
}

TEST(Findings, TakeACopyFromTheLinkProfile) {
  const LinkProfile profile = slow_link();
  const double one = profile.predict(32 << 10, 1, {MemoryKind::pinned, MemoryKind::device}) / kUs;
  ASSERT_GT(one, 20);
  expect_gain(only_finding(small_copies(32), &profile), (312 - one) / 2, 312 - one);
  const double pinned = profile.predict(kMiB4, 1, {MemoryKind::pinned, MemoryKind::device}) / kUs;
  const Finding finding = only_finding(steps(pageable, 410), &profile);
  EXPECT_NEAR(finding.gain.low, (400 - pinned) * kUs, kUs);
}

TEST(Findings, GiveNoMoreThanAFeedOverTheLinkWould) {
  // The kernels take 590 of 1000 us, and the link 800 for the 16 MB of a step.
  const auto builder = steps(
      [](TimelineBuilder& b, std::int64_t t) {
        b.op("aten::to", t + 1, t + 405);
        b.copy(CopyDirection::h2d, MemoryKind::pageable, 16'000'000, t + 2, t + 402, t + 2, t + 402);
        b.call(CallKind::stream_synchronize, t + 402, t + 403);
      },
      410);
  const LinkProfile profile = slow_link();
  expect_gain(only_finding(builder), 0, 401);
  EXPECT_NEAR(only_finding(builder, &profile).gain.high, 200 * kUs, 5 * kUs);
}

TEST(Findings, LeaveAFewSmallCopiesAlone) { EXPECT_THAT(ids(diagnose(small_copies(15))), IsEmpty()); }

TEST(Findings, LeaveSmallCopiesBetweenKernelsAlone) {
  TimelineBuilder builder = steps(
      [](TimelineBuilder& b, std::int64_t t) {
        for (std::int64_t i = 0; i < 32; ++i) {
          const std::int64_t at = t + 10 + 10 * i;
          b.copy(CopyDirection::h2d, MemoryKind::pinned, 1024, at - 5, at - 3, at, at + 2);
          b.kernel(at - 2, at + 2, at + 10);
        }
      },
      400);
  EXPECT_THAT(ids(diagnose(builder)), IsEmpty());
}

/// A pinned copy of as many bytes as elements times `sent_bytes`, in copy_ from uint8 to float32.
TimelineBuilder conversions(std::uint64_t sent_bytes) {
  constexpr std::uint64_t kElements = std::uint64_t{1} << 20;
  return steps(
      [sent_bytes](TimelineBuilder& b, std::int64_t t) {
        b.op("aten::to", t + 1, t + 30);
        b.op("aten::copy_", t + 2, t + 29);
        b.timeline.widenings.push_back({(t + 2) * 1000, kElements, 0, 1, 4});
        b.copy(CopyDirection::h2d, MemoryKind::pinned, kElements * sent_bytes, t + 3, t + 5, t + 5, t + 45);
      },
      50);
}

TEST(Findings, NameValuesThatAreWidenedBeforeTheCopy) {
  const Finding finding = only_finding(conversions(4));
  EXPECT_EQ(finding.id, "widened-copies");
  expect_gain(finding, 15, 30);
}

TEST(Findings, LeaveValuesThatAreWidenedOnTheGpuAlone) {
  EXPECT_THAT(ids(diagnose(conversions(1))), IsEmpty());
}

TEST(Findings, TakeAConversionBeforeTheOperatorForAnother) {
  TimelineBuilder builder = conversions(4);
  for (TimelineWidening& widening : builder.timeline.widenings) widening.begin -= 2000;
  EXPECT_THAT(ids(diagnose(builder)), IsEmpty());
}

/// A copy of 4 MiB in each step, on a stream of its own and exposed for 100 us. `contents` are those of a
/// step.
TimelineBuilder batches(const std::function<std::uint64_t(std::int64_t)>& contents,
                        std::uint64_t bytes = kMiB4) {
  TimelineBuilder builder = steps(
      [&](TimelineBuilder& b, std::int64_t t) {
        b.copy(CopyDirection::h2d, MemoryKind::pinned, bytes, t + 2, t + 4, t + 5, t + 45, 20);
        b.timeline.copies.back().contents = contents(t / 1000);
      },
      45);
  builder.timeline.source = TimelineSource::recorder;
  builder.timeline.has_types = false;
  return builder;
}

TEST(Findings, NameDataThatIsSentAgain) {
  const Finding finding = only_finding(batches([](std::int64_t i) { return 1 + i % 2; }));
  EXPECT_EQ(finding.id, "same-data-again");
  // Six of eight copies bring what one of the first two brought.
  EXPECT_DOUBLE_EQ(finding.count, 0.75);
  EXPECT_DOUBLE_EQ(finding.bytes, 0.75 * kMiB4);
  expect_gain(finding, 15, 33.75);
  EXPECT_THAT(finding.text, HasSubstr("would take 8 MiB there"));
  EXPECT_THAT(finding.meaning, HasSubstr("Only 4 KiB of each copy were compared, at 32 places"));
  ASSERT_THAT(finding.places, SizeIs(1));
  EXPECT_EQ(finding.places[0].function, "train.py(10): step");
  EXPECT_EQ(finding.places[0].count, 6U);
}

TEST(Findings, TakeOtherDataForNoneThatIsSentAgain) {
  EXPECT_THAT(ids(diagnose(batches([](std::int64_t i) { return 1 + i; }))), IsEmpty());
  EXPECT_THAT(ids(diagnose(batches([](std::int64_t) { return 0; }))), IsEmpty()) << "it is not known";
  EXPECT_THAT(ids(diagnose(batches([](std::int64_t i) { return 1 + i % 5; }))), IsEmpty()) << "3 of 8 steps";
  EXPECT_THAT(ids(diagnose(batches([](std::int64_t i) { return 1 + i % 4; }))), SizeIs(1)) << "4 of 8 steps";
}

TEST(Findings, LeaveDataAloneThatACopyToTheHostMayHaveWrittenMeanwhile) {
  // Each batch is called while a copy of its size to the host still runs, which ends before the batch is
  // read.
  const auto builder = [](std::uint64_t bytes, std::int64_t ends) {
    TimelineBuilder made = batches([](std::int64_t i) { return 1 + i % 2; });
    for (std::int64_t t = 0; t < 8000; t += 1000)
      made.copy(CopyDirection::d2h, MemoryKind::pinned, bytes, t, t + 1, t + 1, t + ends, 21);
    return made;
  };
  EXPECT_THAT(ids(diagnose(builder(kMiB4, 5))), Not(Contains("same-data-again")));
  EXPECT_THAT(ids(diagnose(builder(kMiB4, 4))), Contains("same-data-again"))
      << "it ended before the call did";
  EXPECT_THAT(ids(diagnose(builder(kMiB4 + 4, 5))), Contains("same-data-again")) << "another size";
}

TEST(Findings, LeaveSmallDataThatIsSentAgainAlone) {
  EXPECT_THAT(ids(diagnose(batches([](std::int64_t) { return 7; }, 64 << 10))), IsEmpty());
  EXPECT_THAT(ids(diagnose(batches([](std::int64_t) { return 7; }, (64 << 10) + 1))), SizeIs(1));
}

/// A copy to the host in each step, and then one of `bytes` back.
TimelineBuilder round_trips(std::uint64_t bytes, std::int64_t back) {
  return copying({{.at = {10, 12, 20, 30}, .direction = CopyDirection::d2h},
                  {.at = {back - 8, back - 6, back, back + 10}, .bytes = bytes}},
                 60);
}

TEST(Findings, NameRoundTrips) {
  const Finding finding = only_finding(round_trips(kMiB4, 40));
  EXPECT_EQ(finding.id, "round-trips");
  expect_gain(finding, 0, 30);  // the host's part, between the two, too
  EXPECT_DOUBLE_EQ(finding.count, 2);
  TimelineBuilder hidden = round_trips(kMiB4, 40);
  for (std::int64_t t = 0; t < 8000; t += 1000) hidden.kernel(t + 1, t + 28, t + 35, 8);
  expect_gain(only_finding(hidden), 0, 23);
}

/// So many tensors leave in each step, and come back after a kernel. `between`: how long kernels run between
/// two that leave.
TimelineBuilder state_put_away(int tensors, std::int64_t between = 0) {
  return steps(
      [=](TimelineBuilder& b, std::int64_t t) {
        for (int i = 0; i < tensors; ++i) {
          const std::int64_t at = t + 10 + i * (20 + between);
          b.copy(CopyDirection::d2h, MemoryKind::pageable, kMiB4, at, at + 2, at, at + 20);
          if (between > 0) b.kernel(at + 15, at + 20, at + 20 + between);
        }
        b.kernel(t + 395, t + 400, t + 500);
        for (int i = 0; i < tensors; ++i) {
          const std::int64_t at = t + 510 + std::int64_t{20} * i;
          b.copy(CopyDirection::h2d, MemoryKind::pinned, kMiB4, at, at + 2, at, at + 20);
        }
      },
      700);
}

TEST(Findings, NameParkedStateThatIsCopiedByHand) {
  const auto advice = [](const TimelineBuilder& builder) {
    const Diagnosis diagnosis = diagnose(builder);
    const auto finding = std::ranges::find(diagnosis.findings, "round-trips", &Finding::id);
    return finding == diagnosis.findings.end() ? "none" : finding->change + finding->penstock_change;
  };
  EXPECT_THAT(advice(state_put_away(4)), HasSubstr("offload(a, b, skip=\"frozen\")"));
  EXPECT_THAT(advice(state_put_away(3)), HasSubstr("compute it on the GPU")) << "a few results";
  EXPECT_THAT(advice(state_put_away(4, 25)), HasSubstr("penstock.park")) << "kernels for 75 of 155 us";
  EXPECT_THAT(advice(state_put_away(4, 30)), HasSubstr("compute it on the GPU"))
      << "activations: 90 of 170 us";
  TimelineBuilder turns = state_put_away(4);
  for (std::int64_t t = 0; t < 8000; t += 1000) {  // the first comes back before the last has left
    turns.copy(CopyDirection::d2h, MemoryKind::pageable, kMiB4 / 2, t + 1, t + 2, t + 2, t + 8, 8);
    turns.copy(CopyDirection::h2d, MemoryKind::pinned, kMiB4 / 2, t + 40, t + 41, t + 42, t + 48, 8);
  }
  EXPECT_THAT(advice(turns), HasSubstr("compute it on the GPU"));
  EXPECT_THAT(diagnose(state_put_away(4)).findings.front().text, HasSubstr("They run at "));
}

TEST(Findings, TakeCopiesOfAnotherSizeOrOrderForNoRoundTrips) {
  EXPECT_THAT(ids(diagnose(round_trips(kMiB4 / 2, 40))), IsEmpty());
  EXPECT_THAT(ids(diagnose(round_trips(kMiB4, 25))), IsEmpty());
}

TEST(Findings, TakeCopiesOfTwoStepsForNoRoundTrip) {
  // The result of a step, and then the next step's batch.
  TimelineBuilder builder =
      copying({{.at = {1, 2, 3, 13}}, {.at = {14, 15, 18, 28}, .direction = CopyDirection::d2h}}, 30);
  EXPECT_THAT(ids(diagnose(builder)), IsEmpty());
}

/// Steps that are parted between a copy to the host, called in the frames of `out`, and one back, called in
/// those of `in`, which the next step begins with. The outermost frames are the first ones.
TimelineBuilder parted_round_trips(const std::vector<std::string>& out, const std::vector<std::string>& in) {
  TimelineBuilder builder;
  FrameNames frames(builder.timeline);
  const auto innermost = [&](const std::vector<std::string>& stack) {
    std::uint32_t frame = kNoName;
    for (const std::string& text : stack) frame = frames.called_by(builder.name(text), frame);
    return frame;
  };
  const auto enter = [&](std::uint32_t frame, std::int64_t begin) {
    builder.timeline.host.push_back({TimelineBuilder::us(begin, begin + 1), frame, 0, HostSpanKind::frame});
  };
  const std::uint32_t out_frame = innermost(out);
  const std::uint32_t in_frame = innermost(in);
  for (std::int64_t t = 0; t < 8000; t += 1000) {
    builder.step(t, t + 1000);
    enter(in_frame, t + 1);
    builder.copy(CopyDirection::h2d, MemoryKind::pinned, kMiB4, t + 1, t + 2, t + 3, t + 13);
    enter(out_frame, t + 14);
    builder.copy(CopyDirection::d2h, MemoryKind::pinned, kMiB4, t + 14, t + 15, t + 18, t + 28);
    builder.kernel(t + 25, t + 30, t + 1000);
  }
  builder.timeline.source = TimelineSource::recorder;
  return builder;
}

TEST(Findings, NameRoundTripsBetweenWhoseCopiesStepsAreParted) {
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> stacks{
      {{"train.py(37): train"}, {"train.py(38): train"}},
      {{"train.py(90): main", "train.py(37): train"}, {"train.py(90): main", "train.py(38): train"}},
      {{"train.py(37): train", "train.py(3): move"}, {"train.py(38): train", "train.py(3): move"}},
      {{"train.py(37): train", "train.py(9): to_host"}, {"train.py(38): train", "train.py(3): to_gpu"}},
  };
  for (const auto& [out, in] : stacks) {
    const Diagnosis diagnosis = diagnose(parted_round_trips(out, in));
    ASSERT_THAT(ids(diagnosis), Contains("round-trips")) << out.back();
    const auto finding = std::ranges::find(diagnosis.findings, "round-trips", &Finding::id);
    EXPECT_NEAR(finding->count, 2 - 2.0 / 8, 1e-9)
        << "the first has no copy before it, and the last none behind";
  }
}

TEST(Findings, TakeTheResultOfAStepAndTheNextBatchForNoRoundTrip) {
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> stacks{
      {{"train.py(38): train"}, {"train.py(37): train"}},
      {{"train.py(37): train"}, {"train.py(37): train"}},  // model(x.to(device)).cpu()
      {{"train.py(37): validate"}, {"train.py(38): train"}},
      {{"test.py(37): train"}, {"train.py(38): train"}},
      {{"train.py(38): train", "train.py(3): move"}, {"train.py(37): train", "train.py(3): move"}},
      {{"train.py(38): train", "train.py(3): to_host"}, {"train.py(37): train", "train.py(9): to_gpu"}},
      {{"train.py(38): train", "train.py(3): move"}, {"train.py(38): train"}},
  };
  for (const auto& [out, in] : stacks)
    EXPECT_THAT(ids(diagnose(parted_round_trips(out, in))), Not(Contains("round-trips"))) << out.front();
  TimelineBuilder trace = parted_round_trips({"train.py(37): train"}, {"train.py(38): train"});
  trace.timeline.source = TimelineSource::torch_profiler;
  EXPECT_THAT(ids(diagnose(trace)), Not(Contains("round-trips"))) << "its lines are those of functions";
}

TEST(Findings, LeaveWaitsForTheLoaderOutOfARoundTrip) {
  const TimelineBuilder builder = steps(
      [](TimelineBuilder& b, std::int64_t t) {
        b.copy(CopyDirection::d2h, MemoryKind::pinned, kMiB4, t + 1, t + 2, t + 3, t + 13);
        b.loader_wait(t + 20, t + 720);
        b.copy(CopyDirection::h2d, MemoryKind::pinned, kMiB4, t + 721, t + 722, t + 725, t + 735);
      },
      740);
  const Finding finding = found("round-trips", builder);
  ASSERT_EQ(finding.id, "round-trips");
  EXPECT_NEAR(finding.gain.high, 32e-6, 1e-9);
  EXPECT_THAT(finding.text, HasSubstr("no kernel runs for 32.0 µs, apart from waits for a loader."));
}

TEST(Findings, TakeCopiesOfDistantStepsForNoRoundTrip) {
  TimelineBuilder builder = parted_round_trips({"train.py(37): train"}, {"train.py(38): train"});
  int copies = 0;  // of three steps, one copies to the host, one does nothing, and one copies back
  std::erase_if(builder.timeline.copies, [&](const TimelineCopy& copy) {
    const int step = copies++ / 2 % 3;
    return step != (copy.direction == CopyDirection::d2h ? 0 : 2);
  });
  EXPECT_THAT(ids(diagnose(builder)), Not(Contains("round-trips")));
}

/// In each step, the next batch is copied on a stream of its own, and then 64 KiB on the kernels' stream.
struct Contention {
  std::int64_t prefetch = 200;  ///< how long it takes
  std::int64_t gap = 0;         ///< between the two
  std::int64_t small = 10;      ///< how long that takes
  std::int64_t prefetch_called = 1;
  std::uint32_t stream = 20;  ///< of the prefetch
  std::uint32_t small_stream = 7;
};
TimelineBuilder contended(const Contention& c) {
  const std::int64_t at = 10 + c.prefetch + c.gap;
  return copying({{.at = {c.prefetch_called, c.prefetch_called + 1, 10, 10 + c.prefetch}, .stream = c.stream},
                  {.at = {4, 5, at, at + c.small}, .bytes = 64 << 10, .stream = c.small_stream}},
                 at + c.small);
}

TEST(Findings, NameCopiesThatWaitForTheCopyEngine) {
  const Finding finding = found("contended-copies", contended({}));
  ASSERT_EQ(finding.id, "contended-copies");
  EXPECT_DOUBLE_EQ(finding.count, 1);
  EXPECT_DOUBLE_EQ(finding.bytes, 64 << 10);
  EXPECT_EQ(finding.places.at(0).function, "train.py(10): step");
  expect_gain(finding, 100, 200);
}

TEST(Findings, NameOnlyCopiesThatOthersHoldUp) {
  const auto names = [](const Contention& c) { return ids(diagnose(contended(c))); };
  constexpr const char* kId = "contended-copies";
  EXPECT_THAT(names({.gap = 5}), Contains(kId));
  EXPECT_THAT(names({.gap = 6}), Not(Contains(kId))) << "the engine was free in between";
  EXPECT_THAT(names({.prefetch = 50}), Contains(kId)) << "5 % of a step";
  EXPECT_THAT(names({.prefetch = 49}), Not(Contains(kId)));
  EXPECT_THAT(names({.small = 199}), Contains(kId));
  EXPECT_THAT(names({.small = 200}), Not(Contains(kId))) << "it takes as long as it waits";
  EXPECT_THAT(names({.prefetch_called = 6}), Not(Contains(kId))) << "it waited for something else";
  EXPECT_THAT(names({.stream = 7}), Not(Contains(kId))) << "the stream's own order";
  EXPECT_THAT(names({.small_stream = 21}), Not(Contains(kId))) << "no kernel is next";
}

TEST(Findings, TakeATurnBehindOtherWorkForNoContention) {
  // The stream of the small copy is busy until the prefetch is done.
  TimelineBuilder builder = contended({});
  for (std::int64_t t = 0; t < 8000; t += 1000)
    builder.copy(CopyDirection::d2h, MemoryKind::pinned, kMiB4, t, t + 1, t + 2, t + 205);
  EXPECT_THAT(ids(diagnose(builder)), Not(Contains("contended-copies")));
  // Other kernels hide all of the wait.
  builder = contended({});
  for (std::int64_t t = 0; t < 8000; t += 1000) builder.kernel(t, t + 5, t + 210, 9);
  EXPECT_THAT(ids(diagnose(builder)), Not(Contains("contended-copies")));
}

TEST(Findings, AddUpTheCopiesThatOneWaitsFor) {
  // The prefetch comes in parts of 10 us, from a thread that launches nothing. The copy is called after 4 us.
  TimelineBuilder builder = steps(
      [](TimelineBuilder& b, std::int64_t t) {
        for (std::int64_t i = 0; i < 20; ++i) {
          b.copy(CopyDirection::h2d, MemoryKind::pinned, kMiB4 / 20, t + 1, t + 2, t + 10 + 10 * i,
                 t + 20 + 10 * i, 20);
          b.timeline.calls.back().thread = 3;
        }
        b.copy(CopyDirection::h2d, MemoryKind::pinned, 64 << 10, t + 13, t + 14, t + 210, t + 220);
      },
      220);
  const Finding finding = found("contended-copies", builder);
  ASSERT_EQ(finding.id, "contended-copies");
  EXPECT_NEAR(finding.gain.high, 196 * kUs, 1e-9);
}

TEST(Findings, TakeAWaitBehindALaunchForNoneOfTheCopy) {
  // Copied without a wait; the kernel is launched, and only then does the host wait.
  TimelineBuilder builder = steps(
      [](TimelineBuilder& b, std::int64_t t) {
        b.op("aten::to", t + 1, t + 990);
        b.copy(CopyDirection::h2d, MemoryKind::pinned, kMiB4, t + 2, t + 4, t + 4, t + 44);
        b.call(CallKind::launch, t + 5, t + 6);
        b.call(CallKind::stream_synchronize, t + 7, t + 40);
      },
      50);
  EXPECT_THAT(ids(diagnose(builder)), ElementsAre("synchronizations"));
}

/// A loss that is read in the middle of each step: the host waits from 500 to 600, when the kernel ends.
TimelineBuilder read_losses() {
  TimelineBuilder builder;
  for (std::int64_t t = 0; t < 8000; t += 1000) {
    builder.step(t, t + 1000);
    builder.frame("train.py(31): log", t + 490, t + 610);
    builder.op("aten::item", t + 495, t + 605);
    builder.op("aten::_local_scalar_dense", t + 496, t + 604);
    builder.kernel(t, t + 5, t + 598);
    builder.copy(CopyDirection::d2h, MemoryKind::pageable, 4, t + 500, t + 600, t + 598, t + 599);
    builder.call(CallKind::stream_synchronize, t + 600, t + 601);
    builder.kernel(t + 640, t + 649, t + 1000);
  }
  return builder;
}

TEST(Findings, NameSynchronizationsAndTheirCause) {
  const Finding finding = only_finding(read_losses());
  EXPECT_EQ(finding.id, "synchronizations");
  EXPECT_THAT(finding.text, HasSubstr(".item()"));
  ASSERT_THAT(finding.places, SizeIs(1));
  EXPECT_EQ(finding.places[0].function, "train.py(31): log");
  EXPECT_EQ(finding.places[0].op, "aten::item");
  EXPECT_DOUBLE_EQ(finding.count, 1);
  EXPECT_NEAR(finding.seconds, 101 * kUs, 1e-9);
  // The GPU idles from 599 to 649, and in 5 us more of a step.
  expect_gain(finding, 25, 55);
}

TEST(Findings, CopiesToTheHostThatThemselvesWaitAreSynchronizations) {
  const auto builder = [](std::int64_t call_ends) {
    TimelineBuilder made;
    for (std::int64_t t = 0; t < 8000; t += 1000) {
      made.step(t, t + 1000);
      made.frame("train.cpp(31): log", t + 500, t + 605);
      made.copy(CopyDirection::d2h, MemoryKind::pageable, 4, t + 500, t + call_ends, t + 598, t + 599);
      made.kernel(t + 640, t + 649, t + 1000);
    }
    return made;
  };
  const Finding finding = only_finding(builder(600));
  EXPECT_EQ(finding.id, "synchronizations");
  EXPECT_EQ(finding.places[0].function, "train.cpp(31): log");
  EXPECT_NEAR(finding.seconds, 100 * kUs, 1e-9);
  expect_gain(finding, 25, 100);  // it idles longer than the host waits
  EXPECT_THAT(ids(diagnose(builder(598))), IsEmpty()) << "the call ended before the copy";
}

TEST(Findings, WaitsForSmallCopiesToTheGpuAreSynchronizations) {
  const auto builder = [](std::uint64_t bytes) {
    return steps(
        [bytes](TimelineBuilder& b, std::int64_t t) {
          b.op("aten::to", t + 1, t + 8);
          b.copy(CopyDirection::h2d, MemoryKind::pageable, bytes, t + 2, t + 3, t + 3, t + 4);
          b.call(CallKind::stream_synchronize, t + 4, t + 6);
        },
        100);
  };
  EXPECT_EQ(only_finding(builder(4)).id, "synchronizations");
  EXPECT_EQ(only_finding(builder(64 << 10)).id, "synchronizations");
  EXPECT_EQ(only_finding(builder((64 << 10) + 1)).id, "pageable-copies");
}

TEST(Findings, WaitsForLargeCopiesToAnotherGpuAreNoSynchronizations) {
  // One thread launches kernels of both GPUs, and copies to one.
  const auto builder = [](std::uint64_t bytes) {
    TimelineBuilder made = copying(
        {{.at = {2, 402, 2, 402}, .bytes = bytes, .kind = MemoryKind::pageable, .waits = {{402, 403}}}}, 410);
    for (std::int64_t t = 0; t < 8000; t += 1000) made.kernel(t + 407, t + 412, t + 1000, 7, 1);
    return made;
  };
  const Finding finding = only_finding(builder(kMiB4));
  EXPECT_EQ(finding.id, "pageable-copies");
  EXPECT_EQ(finding.device, 0);
  EXPECT_THAT(ids(diagnose(builder(4))), ElementsAre("synchronizations", "synchronizations"))
      << "no other rule tells of small ones";
}

TEST(Findings, AWaitThatDelaysLaterLaunchesMayGainAllThatTheGpuIdles) {
  // Right after the wait the GPU has a kernel. It idles 200 us later, as the host has launched nothing ahead.
  TimelineBuilder builder;
  for (std::int64_t t = 0; t < 8000; t += 1000) {
    builder.step(t, t + 1000);
    builder.kernel(t, t + 1, t + 400);
    builder.call(CallKind::device_synchronize, t + 50, t + 401);
    builder.kernel(t + 402, t + 403, t + 600);
    builder.kernel(t + 799, t + 800, t + 1000);
  }
  expect_gain(only_finding(builder), 1.5, 204);
}

TEST(Findings, CopiesGainNothingOfWhatTheHostDoesBefore) {
  // The host makes the data for 200 us, in which the GPU idles, and copies it for 203.
  const auto builder = [](bool of_a_loader) {
    return steps(
        [of_a_loader](TimelineBuilder& b, std::int64_t t) {
          if (of_a_loader) b.loader_wait(t, t + 200);
          b.op("aten::to", t + 200, t + 405);
          b.copy(CopyDirection::h2d, MemoryKind::pageable, kMiB4, t + 200, t + 402, t + 202, t + 402);
          b.call(CallKind::stream_synchronize, t + 402, t + 403);
        },
        410);
  };
  expect_gain(only_finding(builder(false)), 0, 203);
  for (const Finding& finding : diagnose(builder(true)).findings) {
    if (finding.id == "pageable-copies") expect_gain(finding, 0, 203);
  }
}

TEST(Findings, GiveNothingForASynchronizationWhileTheGpuHasWork) {
  TimelineBuilder builder = read_losses();
  for (std::int64_t t = 0; t < 8000; t += 1000) builder.kernel(t + 1, t + 5, t + 1000, 8);
  const Finding finding = only_finding(builder);
  EXPECT_EQ(finding.severity, Severity::note);
  expect_gain(finding, 0, 5);
}

TEST(Findings, CountAGapOnceIfTheHostWaitsTwiceInIt) {
  TimelineBuilder builder = read_losses();
  for (std::int64_t t = 0; t < 8000; t += 1000) builder.call(CallKind::stream_synchronize, t + 610, t + 639);
  const Finding finding = only_finding(builder);
  EXPECT_DOUBLE_EQ(finding.count, 2);
  expect_gain(finding, 25, 55);
}

/// The host first waits 300 us in each step, while the GPU has work, and then 60 us, after which it idles
/// 400.
TimelineBuilder two_waits() {
  TimelineBuilder builder;
  for (std::int64_t t = 0; t < 8000; t += 1000) {
    builder.step(t, t + 1000);
    builder.kernel(t, t + 1, t + 500);
    builder.frame("train.py(10): harmless", t + 99, t + 401);
    builder.op("aten::item", t + 100, t + 401);
    builder.call(CallKind::event_synchronize, t + 100, t + 400);
    builder.frame("train.py(20): costly", t + 439, t + 502);
    builder.op("aten::nonzero", t + 440, t + 502);
    builder.call(CallKind::stream_synchronize, t + 441, t + 501);
    builder.kernel(t + 890, t + 900, t + 1000);
  }
  return builder;
}

TEST(Findings, NameTheWaitFirstThatHoldsTheGpuUp) {
  const Finding finding = only_finding(two_waits());
  ASSERT_THAT(finding.places, SizeIs(2));
  EXPECT_EQ(finding.places[0].function, "train.py(20): costly");
  EXPECT_NEAR(finding.places[0].seconds, 8 * 60 * kUs, 1e-9);
  EXPECT_NEAR(finding.places[0].idle_seconds.value(), 8 * 400 * kUs, 1e-9);
  EXPECT_NEAR(finding.places[1].seconds, 8 * 300 * kUs, 1e-9);
  EXPECT_EQ(finding.places[1].idle_seconds, 0);
  EXPECT_THAT(finding.text, HasSubstr("the GPU idles 400 µs, mostly by a size that depends on values."));
}

TEST(Findings, NameTheLongestWaitFirstIfNoneHoldsTheGpuUp) {
  TimelineBuilder builder = two_waits();
  for (std::int64_t t = 0; t < 8000; t += 1000) builder.kernel(t + 1, t + 5, t + 1000, 8);
  const Finding finding = only_finding(builder);
  EXPECT_EQ(finding.places.at(0).function, "train.py(10): harmless");
  EXPECT_THAT(finding.text, HasSubstr("together, mostly by .item(). After them the GPU idles 0"));
}

TEST(Findings, BlameAWaitForNoMoreThanItsLength) {
  // The GPU idles long after a wait of 2 us, as the host is slow, and 20 us after one of 100.
  TimelineBuilder builder;
  for (std::int64_t t = 0; t < 8000; t += 1000) {
    builder.step(t, t + 1000);
    builder.kernel(t, t + 1, t + 100);
    builder.frame("train.py(10): short", t + 99, t + 101);
    builder.call(CallKind::stream_synchronize, t + 99, t + 101);
    builder.kernel(t + 590, t + 600, t + 800);
    builder.frame("train.py(20): long", t + 701, t + 802);
    builder.call(CallKind::stream_synchronize, t + 701, t + 801);
    builder.kernel(t + 810, t + 820, t + 1000);
  }
  const Finding finding = only_finding(builder);
  EXPECT_EQ(finding.places.at(0).function, "train.py(20): long");
  EXPECT_NEAR(finding.places.at(1).idle_seconds.value(), 8 * 500 * kUs, 1e-9);
}

TEST(Findings, LeaveWaitsOfTheLoaderAlone) {
  // A DataLoader without workers, whose dataset reads a value from the GPU.
  TimelineBuilder builder;
  for (std::int64_t t = 0; t < 8000; t += 1000) {
    builder.step(t, t + 1000);
    builder.loader_wait(t, t + 10);
    builder.call(CallKind::device_synchronize, t + 1, t + 9);
    builder.kernel(t + 11, t + 12, t + 1000);
  }
  EXPECT_THAT(ids(diagnose(builder)), IsEmpty());
}

/// The same, but a thread that launches nothing makes all other calls.
TimelineBuilder by_another_thread(TimelineBuilder builder) {
  for (TimelineCall& call : builder.timeline.calls) {
    if (call.kind != CallKind::launch) call.thread = 5;
  }
  for (TimelineHostSpan& span : builder.timeline.host) span.thread = 5;
  return builder;
}

bool is_unknown(const TimelineBuilder& builder, std::string_view name) {
  const std::vector<NotExamined> list = diagnose(builder).not_examined;
  return std::ranges::any_of(list, [name](const NotExamined& missing) {
    return std::ranges::find(missing.names, name) != missing.names.end();
  });
}

TEST(Findings, LeaveSynchronizationsOfOtherThreadsAlone) {
  const TimelineBuilder builder = by_another_thread(read_losses());
  EXPECT_THAT(ids(diagnose(builder)), IsEmpty());
  EXPECT_TRUE(is_unknown(builder, "synchronizations")) << "the GPU idles after them";
  EXPECT_THAT(diagnose(builder).not_examined.back().text, HasSubstr("up to 50.0 µs of a step"));
  EXPECT_FALSE(is_unknown(read_losses(), "synchronizations"));
}

TEST(Findings, NameTheGpuThatIdlesAfterWaitsOfOtherThreads) {
  TimelineBuilder builder = by_another_thread(read_losses());
  EXPECT_THAT(diagnose(builder).not_examined.back().text, StartsWith("Synchronizations of"));
  for (TimelineWork work : std::vector(builder.timeline.work)) {
    work.device = 1;
    builder.timeline.work.push_back(work);
  }
  for (TimelineCopy copy : std::vector(builder.timeline.copies)) {
    copy.device = 1;
    builder.timeline.copies.push_back(copy);
  }
  std::vector<std::string> gpus;
  for (const NotExamined& missing : diagnose(builder).not_examined) {
    if (const auto at = missing.text.find(": Synchronizations of threads"); at != std::string::npos)
      gpus.push_back(missing.text.substr(0, at));
  }
  EXPECT_THAT(gpus, ElementsAre("GPU 0", "GPU 1"));
}

TEST(Findings, TakeWaitsOfOtherThreadsForHarmlessIfTheyHoldNothingUp) {
  TimelineBuilder busy = by_another_thread(read_losses());
  for (std::int64_t t = 0; t < 8000; t += 1000) busy.kernel(t + 1, t + 5, t + 1000, 8);
  EXPECT_FALSE(is_unknown(busy, "synchronizations")) << "the GPU works on";
  // A thread that looks every 100 us whether something is done, while the GPU idles.
  const auto polling = [](TimelineBuilder& b, std::int64_t t) {
    for (std::int64_t at = t; at < t + 500; at += 100)
      b.call(CallKind::stream_synchronize, at + 1, at + 2, 5);
  };
  EXPECT_FALSE(is_unknown(steps(polling, 600), "synchronizations"));
}

TEST(Findings, KnowTheCallsOfCopiesOfThreadsThatLaunchNothing) {
  const Finding pageable_copies = only_finding(by_another_thread(steps(pageable, 410)));
  EXPECT_EQ(pageable_copies.id, "pageable-copies");
  EXPECT_EQ(pageable_copies.places.at(0).function, "train.py(10): step");
  // Whether the thread that launches waits for this one is not known.
  const Finding finding = only_finding(by_another_thread(pinned_copies(true)));
  EXPECT_EQ(finding.id, "blocking-copies");
  expect_gain(finding, 0, 101);
}

TEST(Findings, TakeThreadsThatCopyIfNoneLaunches) {
  // Batches are copied to a GPU that runs no kernels, by a thread that waits for a loader.
  TimelineBuilder builder;
  for (std::int64_t t = 0; t < 8000; t += 1000) {
    builder.step(t, t + 1000);
    builder.loader_wait(t, t + 600);
    builder.copy(CopyDirection::h2d, MemoryKind::pinned, kMiB4, t + 600, t + 605, t + 605, t + 700);
    builder.call(CallKind::pin, t + 700, t + 800);
    builder.timeline.work.push_back({TimelineBuilder::us(t + 700, t + 701), 7, 0, 2});  // a memory set
  }
  EXPECT_THAT(ids(diagnose(builder)), IsSupersetOf({"waiting-for-data", "pinning", "exposed-copies"}));
  EXPECT_FALSE(is_unknown(builder, "waiting_for_data"));
  EXPECT_NEAR(diagnose(builder).accounts[0].share(DevicePart::waiting_for_data), 0.6, 1e-9);
  EXPECT_NEAR(diagnose(builder).accounts[0].share(DevicePart::launch_or_sync), 0.104, 1e-9);
  // Kernels of another GPU, and the thread that launches them, are not its own.
  for (std::int64_t t = 0; t < 8000; t += 1000) {
    builder.call(CallKind::launch, t, t + 1, 3);
    builder.timeline.work.push_back({TimelineBuilder::us(t, t + 1000), 7, 1});
  }
  const Diagnosis both = diagnose(builder);
  EXPECT_NEAR(both.accounts[0].share(DevicePart::waiting_for_data), 0.6, 1e-9);
  EXPECT_EQ(both.accounts[1].share(DevicePart::waiting_for_data), 0);
  EXPECT_TRUE(is_unknown(builder, "waiting_for_data")) << "the other's thread is in no next()";
}

TEST(Findings, TakeAllThreadsIfNoneIsKnownToCopy) {
  TimelineBuilder builder;
  for (std::int64_t t = 0; t < 8000; t += 1000) {
    builder.step(t, t + 1000);
    builder.loader_wait(t, t + 600);
    builder.copy(CopyDirection::h2d, MemoryKind::pinned, kMiB4, t + 600, t + 605, t + 605, t + 700);
    builder.timeline.copies.back().correlation = 0;
  }
  EXPECT_THAT(ids(diagnose(builder)), Contains("waiting-for-data"));
}

TEST(Findings, GiveASynchronizationNoMoreThanTheHostWaits) {
  // The GPU waits 900 us for the host, which waits for the GPU only 3.
  TimelineBuilder builder;
  for (std::int64_t t = 0; t < 8000; t += 1000) {
    builder.step(t, t + 1000);
    builder.kernel(t + 1, t + 5, t + 50);
    builder.call(CallKind::device_synchronize, t + 48, t + 51);
  }
  expect_gain(only_finding(builder), 1.5, 3);
}

TEST(Findings, TellThatSeveralThreadsWaitForLoaders) {
  const auto builder = [](std::uint16_t second) {
    TimelineBuilder made;
    for (std::int64_t t = 0; t < 8000; t += 1000) {
      made.step(t, t + 1000);
      made.loader_wait(t, t + 300);
      made.loader_wait(t + 301, t + 600, second);
      made.call(CallKind::launch, t + 600, t + 601, second);
      made.kernel(t + 600, t + 605, t + 1000);
    }
    return made;
  };
  const Finding both = only_finding(builder(1));
  EXPECT_THAT(both.text, HasSubstr(" 2 threads wait, and the places count the waits of all."));
  EXPECT_EQ(both.places.at(0).count, 16U);
  EXPECT_THAT(only_finding(builder(0)).text, Not(HasSubstr("threads")));
}

/// The loop waits `wait` us for each batch, in which the GPU idles.
TimelineBuilder starved(std::int64_t wait) {
  return steps([wait](TimelineBuilder& b, std::int64_t t) { b.loader_wait(t, t + wait); }, wait + 10);
}

TEST(Findings, NameALoaderThatIsTooSlow) {
  const Finding finding = only_finding(starved(600));
  EXPECT_EQ(finding.id, "waiting-for-data");
  EXPECT_EQ(finding.severity, Severity::medium);
  expect_gain(finding, 0, 600);
  EXPECT_THAT(finding.text, HasSubstr("600"));
  ASSERT_THAT(finding.places, SizeIs(1));
  EXPECT_EQ(finding.places[0].function, "train.py(10): step");
  EXPECT_EQ(finding.places[0].count, 8U);
  EXPECT_THAT(ids(diagnose(starved(40))), IsEmpty());
}

TEST(Findings, PromiseNothingElseWhileTheLoaderIsTooSlow) {
  TimelineBuilder builder = steps(
      [](TimelineBuilder& b, std::int64_t t) {
        pageable(b, t);
        b.loader_wait(t + 403, t + 700);
      },
      710);
  const LinkProfile link = slow_link();
  const Diagnosis diagnosis = diagnose(builder, &link);
  ASSERT_THAT(ids(diagnosis), ElementsAre("pageable-copies", "waiting-for-data"));
  expect_gain(diagnosis.findings[0], 0, 401);
}

TEST(Findings, ALoaderMayGainWhatTheHostWouldHide) {
  const auto gained = [](std::int64_t waited) {
    const TimelineBuilder builder = steps(
        [waited](TimelineBuilder& b, std::int64_t t) {
          b.kernel(t, t, t + 200);
          b.loader_wait(t + 200 - waited, t + 300);
          b.call(CallKind::launch, t + 350, t + 360);
        },
        400);
    return only_finding(builder).gain.high / kUs;
  };
  EXPECT_NEAR(gained(0), 100, 1e-3) << "The GPU is late, and so is the host: it waits no longer.";
  EXPECT_NEAR(gained(60), 160, 1e-3) << "The host may launch earlier by as much as it waits.";
  EXPECT_NEAR(gained(150), 200, 1e-3) << "all that the GPU idles";
}

/// Host memory is pinned in the steps from `first` on.
TimelineBuilder pinning_from(std::int64_t first, std::int64_t last) {
  return steps(
      [=](TimelineBuilder& b, std::int64_t t) {
        if (t >= first * 1000 && t < last * 1000) b.call(CallKind::pin, t + 5, t + 105);
      },
      120);
}

TEST(Findings, NamePinningInTheSteadyState) {
  const Finding finding = only_finding(pinning_from(0, 8));
  EXPECT_EQ(finding.id, "pinning");
  EXPECT_DOUBLE_EQ(finding.count, 1);
  EXPECT_THAT(finding.penstock_change, HasSubstr("penstock.park(state)"));
  expect_gain(finding, 0, 115);
  EXPECT_THAT(ids(diagnose(pinning_from(0, 2))), IsEmpty());
}

TEST(Findings, PinningMayGainWhatTheHostWouldHide) {
  // It takes 300 us, of which a kernel hides 250. Later in the step the GPU idles for 200 more.
  const auto builder = [](std::int64_t took) {
    return steps(
        [took](TimelineBuilder& b, std::int64_t t) {
          b.kernel(t, t, t + 250);
          b.call(CallKind::pin, t, t + took);
          b.kernel(t + took, t + 300, t + 500);
        },
        700);
  };
  expect_gain(only_finding(builder(300)), 0, 250);
  expect_gain(only_finding(builder(100)), 0, 100);
}

/// The GPU's memory is freed in the steps from `first` on, which takes until its work is done.
TimelineBuilder allocations_from(std::int64_t first) {
  return steps(
      [=](TimelineBuilder& b, std::int64_t t) {
        if (t < first * 1000) return;
        b.call(CallKind::free, t + 5, t + 65);
        b.call(CallKind::allocate, t + 65, t + 105);
      },
      120);
}

TEST(Findings, NameAllocationsInTheSteadyState) {
  const Finding finding = only_finding(allocations_from(0));
  EXPECT_EQ(finding.id, "device-allocations");
  EXPECT_DOUBLE_EQ(finding.count, 2);
  EXPECT_NEAR(finding.seconds, 100 * kUs, 1e-9);
  expect_gain(finding, 0, 115);
  EXPECT_EQ(finding.places.at(0).function, "train.py(10): step");
  EXPECT_THAT(ids(diagnose(allocations_from(5))), SizeIs(1)) << "3 of the 6 steps after the first";
  EXPECT_THAT(ids(diagnose(allocations_from(6))), IsEmpty()) << "4 calls, but in 2 steps";
}

TEST(Findings, AreBoundedByTheKernels) {
  // The GPU idles 500 us in each of the last six steps, so 375 in a step on average.
  TimelineBuilder builder;
  for (std::int64_t i = 0; i < 8; ++i) {
    const std::int64_t t = i * 1000;
    const std::int64_t pinned = i < 2 ? 0 : 500;
    builder.step(t, t + 1000);
    if (pinned > 0) builder.call(CallKind::pin, t, t + pinned);
    builder.kernel(t + pinned, t + pinned, t + 1000);
  }
  const Finding finding = only_finding(builder);
  EXPECT_EQ(finding.id, "pinning");
  expect_gain(finding, 0, 375);
}

TEST(Findings, AreAsSevereAsTheyGain) {
  EXPECT_EQ(only_finding(starved(90)).severity, Severity::note);
  EXPECT_EQ(only_finding(starved(92)).severity, Severity::medium);
  const auto copies = [](std::int64_t took) {
    return copying({{.at = {1, took, 0, took}, .kind = MemoryKind::pageable}}, took);
  };
  // The link would take nearly no time, so nearly all is gained.
  LinkProfile link;
  link.curves[LinkProfile::Curve::pinned_h2d] = {{1024, 1e-12}, {100'000'000, 1e-7}};
  EXPECT_EQ(only_finding(copies(330), &link).severity, Severity::medium);
  EXPECT_EQ(only_finding(copies(336), &link).severity, Severity::high);
}

TEST(Findings, AreOrderedByTheirGain) {
  TimelineBuilder builder = steps(
      [](TimelineBuilder& b, std::int64_t t) {
        pageable(b, t);
        b.call(CallKind::pin, t + 404, t + 454);
      },
      460);
  EXPECT_THAT(ids(diagnose(builder)), ElementsAre("pageable-copies", "pinning"));
}

/// Steps of 1000 us, of which only one has `count` calls or copies, all of a kind.
TimelineBuilder burst(const std::function<void(TimelineBuilder&, std::int64_t)>& one, std::int64_t count) {
  return steps(
      [&](TimelineBuilder& b, std::int64_t t) {
        for (std::int64_t i = 0; i < count && t == 5000; ++i) one(b, t + 5 + 6 * i);
      },
      990);
}

TEST(Findings, LeaveWhatComesOftenInOneStep) {
  for (const CallKind kind : {CallKind::pin, CallKind::allocate, CallKind::device_synchronize}) {
    const auto call = [kind](TimelineBuilder& b, std::int64_t t) { b.call(kind, t, t + 5); };
    EXPECT_THAT(ids(diagnose(burst(call, 40))), IsEmpty()) << static_cast<int>(kind);
    EXPECT_THAT(ids(diagnose(steps(call, 20))), SizeIs(1)) << static_cast<int>(kind);
  }
  for (const std::uint64_t bytes : {kMiB4, std::uint64_t{1000}}) {
    const auto copy = [bytes](TimelineBuilder& b, std::int64_t t) {
      b.copy(CopyDirection::h2d, MemoryKind::pageable, bytes, t, t + 5, t, t + 5);
    };
    EXPECT_THAT(ids(diagnose(burst(copy, 140))), IsEmpty()) << bytes;
  }
}

TEST(Findings, NameWhatAHostAheadCopies) {
  // Steps as the host marks them. It waits in every tenth one, and nearly all of the first GPU's work is
  // there.
  TimelineBuilder builder;
  for (std::int64_t i = 0; i < 20; ++i) {
    const std::int64_t host = i * 1000;
    const std::int64_t device = i / 10 * 10'000 + 9000 + i % 10 * 100;
    builder.step(host, host + 1000);
    builder.copy(CopyDirection::h2d, MemoryKind::pinned, kMiB4, host + 1, host + 3, device, device + 70);
    builder.kernel(host + 5, device + 70, device + 100);
    builder.kernel(host + 8, host + 10, host + 900, 7, 1);
  }
  const Finding finding = only_finding(builder);
  EXPECT_EQ(finding.id, "exposed-copies");
  EXPECT_DOUBLE_EQ(finding.count, 1);
}

/// Thirty steps of 1000 us as the GPU does them. The host does its part of ten within the first of these,
/// where `call` makes its calls for one. A loader's thread calls all the time.
TimelineBuilder host_ahead(const std::function<void(TimelineBuilder&, std::int64_t, std::int64_t)>& call) {
  TimelineBuilder builder;
  for (std::int64_t i = 0; i < 30; ++i) {
    const std::int64_t host = i / 10 * 10'000 + i % 10 * 50;
    builder.step(i * 1000, i * 1000 + 1000);
    builder.kernel(host, i * 1000 + 500, i * 1000 + 1000);
    call(builder, i, host + 2);
    builder.call(CallKind::stream_synchronize, i * 1000 + 1, i * 1000 + 2, 1);
  }
  return builder;
}

TEST(Findings, NameWhatAnotherThreadCallsInItsFewActiveSteps) {
  TimelineBuilder builder = steps([](TimelineBuilder&, std::int64_t) {}, 100, 30);
  for (std::int64_t i = 0; i < 30; ++i) {
    const std::int64_t begin = i / 10 * 10'000 + i % 10 * 50;
    builder.call(CallKind::pin, begin, begin + 40, 5);
  }
  EXPECT_EQ(only_finding(builder).id, "pinning");
}

TEST(Findings, NameWhatAHostAheadCalls) {
  const auto pins = [](TimelineBuilder& b, std::int64_t, std::int64_t t) {
    b.call(CallKind::pin, t, t + 30);
  };
  EXPECT_EQ(only_finding(host_ahead(pins)).id, "pinning");
}

TEST(Findings, LeaveWorkBehindTheLastStepOut) {
  TimelineBuilder builder;
  for (std::int64_t i = 0; i < 5; ++i) {
    const std::int64_t t = i * 1000;
    builder.step(t, t + 1000);
    if (i < 2) pageable(builder, t);
    if (i < 2) pageable(builder, t + 420);
    if (i < 4) builder.kernel(t + 850, t + 855, t + 900);
  }
  builder.kernel(5100, 5105, 5200);
  EXPECT_THAT(ids(diagnose(builder)), Contains("pageable-copies")) << "in 2 of 4 steps";
  builder.kernel(4100, 4105, 4200);
  EXPECT_THAT(ids(diagnose(builder)), Not(Contains("pageable-copies"))) << "in 2 of 5 steps";
}

TEST(Findings, LeaveCallsOutsideTheStepsOut) {
  for (const CallKind kind : {CallKind::pin, CallKind::device_synchronize}) {
    TimelineBuilder builder =
        steps([kind](TimelineBuilder& b, std::int64_t t) { b.call(kind, t + 10, t + 15); }, 20, 12);
    builder.timeline.steps = {builder.timeline.steps.begin() + 2, builder.timeline.steps.end() - 2};
    EXPECT_DOUBLE_EQ(only_finding(builder).count, 1) << static_cast<int>(kind);
  }
}

TEST(Findings, KnowTheCallsOfCopiesIfTheHostIsFarAhead) {
  TimelineBuilder builder = pinned_copies(false);
  for (TimelineCall& call : builder.timeline.calls) call.time = TimelineBuilder::us(-200, -190);
  for (TimelineHostSpan& span : builder.timeline.host) span.time = TimelineBuilder::us(-250, -100);
  const Finding finding = only_finding(builder);
  EXPECT_EQ(finding.id, "exposed-copies");
  ASSERT_THAT(finding.places, SizeIs(1));
  EXPECT_EQ(finding.places[0].function, "train.py(10): step");
}

TEST(Findings, LeaveWhatAHostAheadSeldomDoes) {
  const auto pins_once = [](TimelineBuilder& b, std::int64_t step, std::int64_t t) {
    if (step >= 10 && step < 20) b.call(CallKind::pin, t, t + 20);
    if (step >= 10 && step < 20) b.call(CallKind::pin, t + 20, t + 40);
  };
  EXPECT_THAT(ids(diagnose(host_ahead(pins_once))), IsEmpty()) << "20 calls, but in one step";
  const auto waits = [](TimelineBuilder& b, std::int64_t step, std::int64_t t) {
    if (step % 10 == 9) b.call(CallKind::device_synchronize, t, t + 100);
  };
  EXPECT_THAT(ids(diagnose(host_ahead(waits))), IsEmpty()) << "one wait for ten steps";
}

std::vector<std::string> not_examined(const TimelineBuilder& builder) {
  std::vector<std::string> names;
  for (const NotExamined& missing : diagnose(builder).not_examined) {
    names.insert(names.end(), missing.names.begin(), missing.names.end());
  }
  return names;
}

TEST(NotExamined, NamesWhatTheRecordingLacks) {
  const TimelineBuilder whole = starved(600);
  EXPECT_THAT(not_examined(whole), ElementsAre("same-data-again")) << "a trace has none";
  TimelineBuilder no_steps = whole;
  no_steps.timeline.steps.clear();
  EXPECT_THAT(not_examined(no_steps),
              ElementsAre("round-trips", "step", "pinning", "device-allocations", "same-data-again"));
  TimelineBuilder no_types = whole;
  no_types.timeline.has_types = false;
  EXPECT_THAT(not_examined(no_types), ElementsAre("widened-copies", "same-data-again"));
  TimelineBuilder no_host = whole;
  no_host.timeline.host.clear();
  no_host.timeline.has_ops = no_host.timeline.has_frames = false;
  EXPECT_THAT(not_examined(no_host), Contains("waiting-for-data"));
  EXPECT_THAT(not_examined(no_host), Contains("launch_or_sync"));
  TimelineBuilder no_waits = read_losses();
  EXPECT_THAT(not_examined(no_waits), ElementsAre("waiting-for-data", "waiting_for_data", "same-data-again"));
  TimelineBuilder no_stacks = whole;
  no_stacks.timeline.has_frames = no_stacks.timeline.has_looks = false;
  EXPECT_THAT(not_examined(no_stacks), Contains("host-work"));
  TimelineBuilder no_kinds = pinned_copies(true);
  for (TimelineCopy& copy : no_kinds.timeline.copies) copy.source.reset();
  EXPECT_THAT(not_examined(no_kinds), Contains("pageable-copies"));
  TimelineBuilder no_calls = pinned_copies(true);
  no_calls.timeline.calls.clear();
  EXPECT_THAT(not_examined(no_calls), Contains("synchronizations"));
  const auto known = [](std::int64_t) { return 7; };
  EXPECT_THAT(not_examined(batches(known)),
              AllOf(Not(Contains("same-data-again")), Contains("widened-copies")));
  TimelineBuilder no_contents = batches(known);
  no_contents.timeline.copies[3].contents = 0;
  EXPECT_THAT(not_examined(no_contents), Contains("same-data-again"));
  no_contents.timeline.copies[3].bytes = 64 << 10;
  EXPECT_THAT(not_examined(no_contents), Not(Contains("same-data-again"))) << "small ones are left alone";
}

TEST(NotExamined, NamesWhatTheCallsThatWereLeftOutWouldTell) {
  // The copies could be asynchronous or not: nobody saw their calls.
  const TimelineBuilder whole = pinned_copies(true);
  EXPECT_THAT(ids(diagnose(whole)), Contains("blocking-copies"));
  for (const auto part : {&Timeline::has_launches, &Timeline::has_calls}) {
    TimelineBuilder builder = whole;
    builder.timeline.*part = false;
    std::erase_if(builder.timeline.calls, [part](const TimelineCall& call) {
      return (call.kind == CallKind::launch) == (part == &Timeline::has_launches);
    });
    EXPECT_THAT(not_examined(builder),
                IsSupersetOf({"synchronizations", "blocking-copies", "exposed-copies", "contended-copies",
                              "pinning", "device-allocations", "host-work", "launch_or_sync", "other_idle"}));
    EXPECT_THAT(ids(diagnose(builder)), IsEmpty());
  }
}

TEST(NotExamined, NamesWhatMissingCallsWouldTell) {
  // Nobody left launches out, but no call launched these kernels.
  TimelineBuilder builder = pinned_copies(true);
  std::erase_if(builder.timeline.calls,
                [](const TimelineCall& call) { return call.kind == CallKind::launch; });
  EXPECT_THAT(ids(diagnose(builder)), IsEmpty());
  EXPECT_THAT(not_examined(builder), IsSupersetOf({"synchronizations", "blocking-copies", "waiting-for-data",
                                                   "launch_or_sync", "other_idle"}));
  EXPECT_THAT(diagnose(builder).not_examined.front().text,
              HasSubstr("no calls that launch kernels were recorded."));
  TimelineBuilder no_calls = builder;
  no_calls.timeline.calls.clear();
  no_calls.timeline.work.clear();
  EXPECT_THAT(not_examined(no_calls), IsSupersetOf({"synchronizations", "launch_or_sync"}));
}

TEST(NotExamined, JudgesNothingIfKernelsWereLeftOut) {
  TimelineBuilder builder = steps(pageable, 410);
  builder.timeline.has_kernels = false;
  builder.timeline.work.clear();
  EXPECT_THAT(ids(diagnose(builder)), IsEmpty());
  EXPECT_THAT(not_examined(builder), IsSupersetOf(finding_ids().begin(), finding_ids().end()));
  EXPECT_THAT(not_examined(builder), IsSupersetOf({"kernel", "exposed_copy", "launch_or_sync"}));
}

TEST(NotExamined, JudgesNothingIfCopiesWereNotRecorded) {
  TimelineBuilder builder = steps(pageable, 410);
  builder.timeline.has_copies = false;
  builder.timeline.copies.clear();
  EXPECT_THAT(ids(diagnose(builder)), IsEmpty());
  EXPECT_THAT(not_examined(builder), IsSupersetOf(finding_ids().begin(), finding_ids().end()));
  EXPECT_THAT(not_examined(builder), IsSupersetOf({"exposed_copy", "launch_or_sync"}));
  EXPECT_THAT(not_examined(builder), Not(Contains("kernel")));
}

TEST(NotExamined, SaysWhoLeftItOut) {
  const auto reasons = [](bool Timeline::* recorded, bool RefusedRecords::* refused) {
    TimelineBuilder builder = steps(pageable, 410);
    builder.timeline.*recorded = false;
    std::vector<std::string> texts{diagnose(builder).not_examined.front().text};
    builder.timeline.refused.*refused = true;
    texts.push_back(diagnose(builder).not_examined.front().text);
    return texts;
  };
  const auto tells = [](const char* what) {
    return ElementsAre(HasSubstr(std::string(what) + " were left out of the recording."),
                       HasSubstr(std::string("CUPTI refused to record ") + what + "."));
  };
  EXPECT_THAT(reasons(&Timeline::has_kernels, &RefusedRecords::kernels), tells("kernels"));
  EXPECT_THAT(reasons(&Timeline::has_copies, &RefusedRecords::copies), tells("copies"));
  EXPECT_THAT(reasons(&Timeline::has_launches, &RefusedRecords::launches),
              tells("the calls that launch kernels"));
  EXPECT_THAT(reasons(&Timeline::has_calls, &RefusedRecords::calls), tells("calls other than launches"));
}

TEST(Findings, AreExplained) {
  std::ifstream file(PENSTOCK_SOURCE "/docs/doctor-reference.md");
  const std::string page(std::istreambuf_iterator<char>(file), {});
  for (const std::string_view id : finding_ids()) {
    EXPECT_THAT(page, HasSubstr("| `" + std::string(id) + "` | "));
  }
  for (std::size_t i = 0; i < kDeviceParts; ++i) {
    const auto part = static_cast<DevicePart>(i);
    EXPECT_THAT(page, HasSubstr("| " + std::string(device_part_label(part)) + " | `" +
                                std::string(device_part_name(part)) + "` | "));
  }
}

TEST(Findings, HaveNoPlaceIfNoStacksWereRecorded) {
  TimelineBuilder builder = steps(pageable, 410);
  builder.timeline.has_frames = false;
  std::erase_if(builder.timeline.host, [](const auto& span) { return span.kind == HostSpanKind::frame; });
  const Finding finding = only_finding(builder);
  ASSERT_THAT(finding.places, SizeIs(1));
  EXPECT_EQ(finding.places[0].function, "");
  EXPECT_EQ(finding.places[0].op, "aten::to");
}

}  // namespace
}  // namespace penstock
