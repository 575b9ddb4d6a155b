#include "doctor/timeline/frame_names.hpp"

#include "doctor/rules/findings.hpp"
#include "doctor/tests/timelines.hpp"
#include "doctor/timeline/call_sites.hpp"
#include "support/matchers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using ::testing::Field;

TEST(FrameNames, AreOnesOwnForEachCaller) {
  Timeline timeline;
  timeline.names = {"send", "train", "main"};
  FrameNames names(timeline);
  EXPECT_EQ(names.called_by(0, kNoName), 0U);
  const std::uint32_t train = names.called_by(1, 2);
  const std::uint32_t by_train = names.called_by(0, train);
  const std::uint32_t by_main = names.called_by(0, 2);
  EXPECT_EQ(names.called_by(0, names.called_by(1, 2)), by_train) << "the same frame again";
  EXPECT_NE(by_train, by_main);
  EXPECT_THAT(stack_of(timeline, by_train), ElementsAre("send", "train", "main"));
  EXPECT_THAT(stack_of(timeline, by_main), ElementsAre("send", "main"));
  EXPECT_THAT(stack_of(timeline, 0), ElementsAre("send"));
  EXPECT_THAT(stack_of(timeline, kNoName), IsEmpty());
  EXPECT_THAT(timeline.names, SizeIs(6)) << "no name is there twice";
}

TEST(FrameNames, OfAFunctionThatCallsItselfAreBounded) {
  Timeline timeline;
  timeline.names = {"again"};
  FrameNames names(timeline);
  std::uint32_t frame = 0;
  for (std::size_t i = 0; i < 2 * FrameNames::kMost; ++i) frame = names.called_by(0, frame);
  EXPECT_THAT(timeline.names, SizeIs(FrameNames::kMost + 1));
  EXPECT_THAT(stack_of(timeline, static_cast<std::uint32_t>(FrameNames::kMost)), SizeIs(kMostStackFrames));
}

TEST(FrameNames, OfManyBytesAreBounded) {
  Timeline timeline;
  timeline.names = {"main", std::string(FrameNames::kMostBytes / 4, 'x')};
  FrameNames names(timeline);
  std::uint32_t frame = 0;
  for (int i = 0; i < 8; ++i) frame = names.called_by(1, frame);
  EXPECT_THAT(timeline.names, SizeIs(6)) << "four of the eight";
}

/// Eight steps with a wait of 100 us that leaves the GPU idle, in a function that main() calls in `few` of
/// them, and log() in the others in between.
class StacksOfPlaces : public ::testing::Test {
 protected:
  static Timeline waits(int few) {
    test::TimelineBuilder builder;
    const std::uint32_t main = builder.name("main");
    const std::uint32_t log = builder.name("log");
    const std::uint32_t read = builder.name("read");
    FrameNames names(builder.timeline);
    for (int i = 0; i < 8; ++i) {
      const std::int64_t begin = i * 1000;
      builder.step(begin, begin + 1000);
      const std::uint32_t frame = names.called_by(read, i * few / 8 < (i + 1) * few / 8 ? main : log);
      builder.timeline.host.push_back(
          {test::TimelineBuilder::us(begin + 1, begin + 200), frame, 0, HostSpanKind::frame});
      builder.call(CallKind::stream_synchronize, begin + 2, begin + 102);
      builder.kernel(begin + 110, begin + 200, begin + 1000);
    }
    return builder.sorted();
  }
  static std::vector<FindingPlace> places(int few) {
    const Diagnosis diagnosis = diagnose_timeline(waits(few));
    const auto waits = std::ranges::find(diagnosis.findings, "synchronizations", &Finding::id);
    return waits != diagnosis.findings.end() ? waits->places : std::vector<FindingPlace>{};
  }
};

TEST_F(StacksOfPlaces, AreThoseOfMostCalls) {
  for (const auto& [few, caller] : {std::pair(3, "log"), {6, "main"}}) {
    const std::vector<FindingPlace> found = places(few);
    ASSERT_THAT(found,
                ElementsAre(AllOf(Field(&FindingPlace::function, "read"), Field(&FindingPlace::count, 8U))));
    EXPECT_THAT(found[0].stack, ElementsAre("read", caller));
    EXPECT_NEAR(found[0].seconds, 800e-6, 1e-12);
    EXPECT_NEAR(found[0].idle_seconds.value_or(0), 1584e-6, 1e-12);
  }
}

}  // namespace
}  // namespace penstock
