#include "doctor/timeline/active_steps.hpp"

#include "doctor/timeline/timeline.hpp"
#include "support/matchers.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace penstock {
namespace {

/// Three steps, with a gap before the third, and a window that goes on behind it.
Timeline three_steps() {
  Timeline timeline;
  timeline.steps = {{100, 200}, {200, 250}, {300, 400}};
  return timeline;
}
constexpr TimeSpan kWindowOfThree{100, 500};

std::vector<bool> active_with_kernels(const std::vector<TraceTime>& begins) {
  Timeline timeline = three_steps();
  for (const TraceTime begin : begins) timeline.work.push_back({{begin, begin + 1000}, 7, 0, 1});
  return active_steps_of_device(timeline, 0, kWindowOfThree);
}

TEST(ActiveSteps, AreThoseInWhichWorkBegins) {
  EXPECT_THAT(active_with_kernels({}), ElementsAre(false, false, false));
  EXPECT_THAT(active_with_kernels({99}), ElementsAre(false, false, false));
  EXPECT_THAT(active_with_kernels({100}), ElementsAre(true, false, false));
  EXPECT_THAT(active_with_kernels({199}), ElementsAre(true, false, false));
  EXPECT_THAT(active_with_kernels({200}), ElementsAre(false, true, false));
  EXPECT_THAT(active_with_kernels({299}), ElementsAre(false, true, false)) << "up to the next";
  EXPECT_THAT(active_with_kernels({50, 60, 300, 300}), ElementsAre(false, false, true));
  EXPECT_THAT(active_with_kernels({499}), ElementsAre(false, false, true)) << "up to the window's end";
  EXPECT_THAT(active_with_kernels({500}), ElementsAre(false, false, false));
  EXPECT_THAT(active_with_kernels({150, 250, 350}), ElementsAre(true, true, true));
}

TEST(ActiveSteps, AreOfOneDevice) {
  Timeline timeline = three_steps();
  timeline.work = {{{110, 120}, 7, 1, 1}, {{120, 130}, 7, 0, 1}, {{210, 220}, 7, 1, 1}};
  TimelineCopy copy;
  copy.time = {320, 330};
  timeline.copies = {copy};
  EXPECT_THAT(active_steps_of_device(timeline, 0, kWindowOfThree), ElementsAre(true, false, true));
  EXPECT_THAT(active_steps_of_device(timeline, 1, kWindowOfThree), ElementsAre(true, true, false));
}

TEST(ActiveSteps, AreOfTheThreadsThatAreAskedFor) {
  Timeline timeline = three_steps();
  const auto call = [&timeline](std::uint16_t thread, TraceTime begin) {
    timeline.calls.push_back({{begin, begin + 1}, 1, thread, CallKind::launch});
  };
  call(0, 350);
  call(1, 120);
  call(1, 130);
  call(2, 210);
  const auto of = [&timeline](const std::vector<bool>& threads) {
    return active_steps_of_threads(timeline, threads, kWindowOfThree);
  };
  EXPECT_THAT(of({true, false, false}), ElementsAre(false, false, true));
  EXPECT_THAT(of({false, true, false}), ElementsAre(true, false, false));
  EXPECT_THAT(of({true, false, true}), ElementsAre(false, true, true));
  EXPECT_THAT(of({false, false, false}), ElementsAre(false, false, false));
}

}  // namespace
}  // namespace penstock
