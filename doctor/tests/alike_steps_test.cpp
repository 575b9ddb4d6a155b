#include "doctor/timeline/alike_steps.hpp"

#include "doctor/timeline/timeline.hpp"
#include "doctor/timeline/work_labels.hpp"
#include "support/matchers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using ::testing::Field;
using ::testing::Le;

/// Kernels by their labels, and copies; 10 ns each, one every 11 ns, and a pause if the program makes one.
class Loop {
 public:
  static constexpr TraceTime kPause = 100;

  Loop& kernel(std::uint16_t label) {
    timeline_.work.push_back({next(), 7, 0, label});
    return *this;
  }
  Loop& kernels(std::uint16_t first, int count) {
    for (int i = 0; i < count; ++i) kernel(static_cast<std::uint16_t>(first + i));
    return *this;
  }
  Loop& copy(CopyDirection direction) {
    TimelineCopy copy;
    copy.time = next();
    copy.direction = direction;
    timeline_.copies.push_back(copy);
    return *this;
  }
  Loop& to_device() { return copy(CopyDirection::h2d); }
  Loop& to_host() { return copy(CopyDirection::d2h); }
  Loop& pause(TraceTime length = kPause) {
    now_ += length;
    return *this;
  }
  /// A batch and 30 kernels, of which many come again: forward, backward and the optimizer.
  Loop& train() {
    pause().to_device().to_device();
    for (int layer = 0; layer < 4; ++layer) kernels(1, 3);
    kernel(20);
    for (int layer = 0; layer < 4; ++layer) kernels(4, 4);
    return kernel(30);
  }
  Loop& validate() {
    pause().to_device().to_device();
    for (int layer = 0; layer < 4; ++layer) kernels(1, 3);
    return kernel(20);
  }
  Loop& log() { return kernel(40).to_host(); }

  [[nodiscard]] std::vector<TimeSpan> steps() const { return find_steps(timeline_); }
  Timeline& timeline() { return timeline_; }

 private:
  TimeSpan next() {
    now_ += 11;
    return {now_ - 11, now_ - 1};
  }

  Timeline timeline_;
  TraceTime now_ = 0;
};

/// Of `count` that are there, up to three at the ends may be cut.
auto about(std::size_t count) { return SizeIs(AllOf(Ge(count - 3), Le(count))); }

TEST(AlikeSteps, MayLogNowAndThen) {
  for (const int every : {2, 3, 4, 10, 100}) {
    Loop loop;
    for (int i = 0; i < 620; ++i) {
      loop.train();
      if (i % every == every - 1) loop.log();
    }
    EXPECT_THAT(loop.steps(), about(620)) << every;
  }
}

TEST(AlikeSteps, MayLogAtRandom) {
  for (const unsigned percent : {2, 10, 50}) {
    Loop loop;
    std::mt19937 random(percent);
    for (int i = 0; i < 620; ++i) {
      loop.train();
      if (random() % 100 < percent) loop.log();
    }
    EXPECT_THAT(loop.steps(), about(620)) << percent;
  }
}

TEST(AlikeSteps, BeginWithTheLongestPause) {
  Loop loop;
  for (int i = 0; i < 100; ++i) {
    loop.train();
    if (i % 10 != 9) continue;
    for (int pause = 0; pause < 20; ++pause) loop.pause();
    loop.log();
  }
  const std::vector<TimeSpan> steps = loop.steps();
  ASSERT_THAT(steps, about(100));
  const std::vector<TimelineCopy>& copies = loop.timeline().copies;
  for (const TimeSpan& step : steps) {
    const bool begins = std::ranges::any_of(copies, [&step](const TimelineCopy& copy) {
      return copy.direction == CopyDirection::h2d && copy.time.begin == step.begin + Loop::kPause + 1;
    });
    EXPECT_TRUE(begins) << step.begin;
  }
  for (std::size_t i = 1; i < steps.size(); ++i) EXPECT_EQ(steps[i].begin, steps[i - 1].end);
}

TEST(AlikeSteps, MayVaryInTheirGrids) {
  std::mt19937 random(3);
  const auto record = [&random](TimelineSource source, unsigned grids) {
    Loop loop;
    loop.timeline().source = source;
    for (int i = 0; i < 60; ++i) {
      const unsigned grid = random() % grids;
      loop.pause().to_device();
      for (unsigned name = 1; name < 20; ++name)
        loop.kernel(static_cast<std::uint16_t>(name << kGridBits | grid << 1 | 1));
    }
    return loop.steps();
  };
  EXPECT_THAT(record(TimelineSource::recorder, 16), about(60));
  EXPECT_THAT(record(TimelineSource::recorder, 1), about(60));
  EXPECT_THAT(record(TimelineSource::torch_profiler, 16), IsEmpty()) << "there, labels are of names only";
}

TEST(AlikeSteps, OfOneKernelAreToldByItsGrids) {
  Loop loop;
  loop.timeline().source = TimelineSource::recorder;
  for (int i = 0; i < 60; ++i) {
    loop.pause();
    for (unsigned grid = 0; grid < 5; ++grid)
      loop.kernel(static_cast<std::uint16_t>(1U << kGridBits | grid << 1 | 1));
  }
  EXPECT_THAT(loop.steps(), about(60));
}

TEST(AlikeSteps, AreNotTakenForAFewMoreThanEqualOnes) {
  Loop loop;
  for (int i = 0; i < 20; ++i) loop.train().log();
  for (int i = 0; i < 100; ++i) loop.train();
  EXPECT_THAT(loop.steps(), SizeIs(AllOf(Ge(97U), Le(100U))));
}

/// A pause and four items.
constexpr TraceTime kStep = Loop::kPause + 44;
void do_step(Loop& loop, TraceTime length = kStep) { loop.pause(length - 44).to_device().kernels(1, 3); }

TEST(Steps, BeginWithTheFirstItemOfAll) {
  Loop loop;
  for (int i = 0; i < 20; ++i) do_step(loop);
  const std::vector<TimeSpan> steps = loop.steps();
  EXPECT_THAT(steps, SizeIs(18)) << "nobody knows when the first begins, and when the last ends";
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto pause = loop.timeline().copies[i + 1].time.begin - Loop::kPause - 1;
    EXPECT_EQ(steps[i], (TimeSpan{pause, pause + kStep}));
  }
}

/// Twenty steps, in each of which `add` adds something to the timeline; it gets the number of the step and
/// where it begins.
template <typename Add>
std::vector<TimeSpan> steps_beside(const Add& add) {
  Loop loop;
  loop.kernel(80);
  for (int i = 0; i < 20; ++i) do_step(loop);
  for (int i = 0; i < 20; ++i) add(loop.timeline(), i, 10 + kStep * i);
  return loop.steps();
}

TEST(Steps, AreOfTheItemsThatCanBeTold) {
  const std::vector<TimeSpan> steps = steps_beside([](Timeline&, int, TraceTime) {});
  EXPECT_THAT(steps, SizeIs(19));
  const auto without_name = [](Timeline& timeline, int i, TraceTime time) {
    if (i % 3 == 0) timeline.work.push_back({{time + 50, time + 60}, 7, 0, 0});
  };
  EXPECT_EQ(steps_beside(without_name), steps);
  const auto within_device = [](Timeline& timeline, int i, TraceTime time) {
    TimelineCopy copy;
    copy.time = {time + 50, time + 60};
    copy.direction = CopyDirection::d2d;
    if (i % 3 == 0) timeline.copies.push_back(copy);
  };
  EXPECT_EQ(steps_beside(within_device), steps);
  const auto on_other_device = [](Timeline& timeline, int i, TraceTime time) {
    timeline.work.push_back({{time + 50, time + 60}, 7, 1, static_cast<std::uint16_t>(100 + i)});
    TimelineCopy copy;
    copy.time = {time + 60, time + 70};
    copy.device = 1;
    if (i % 3 == 0) timeline.copies.push_back(copy);
  };
  EXPECT_EQ(steps_beside(on_other_device), steps) << "it has less work";
}

TEST(Steps, BeginNoLaterThanTheirFirstItem) {
  TraceTime next = 0;
  const std::vector<TimeSpan> steps = steps_beside([&next](Timeline& timeline, int i, TraceTime time) {
    const TraceTime last = time + kStep - 5;
    timeline.work.push_back({{last, i == 10 ? last + 100 * kStep : last + 4}, 8, 0, 70});
    if (i == 11) next = time + Loop::kPause + 1;
  });
  EXPECT_THAT(steps, SizeIs(19));
  EXPECT_THAT(steps, Contains(Field(&TimeSpan::begin, next))) << "a kernel lasts longer than its step";
}

TEST(Steps, RepeatFiveTimesAtLeast) {
  for (const bool begins : {false, true}) {
    for (const bool ends : {false, true}) {
      const auto steps_of = [&](int repeats) {
        Loop loop;
        if (!begins) loop.kernel(80);
        for (int i = 0; i < repeats; ++i) do_step(loop);
        if (!ends) loop.kernel(90);
        return loop.steps();
      };
      EXPECT_THAT(steps_of(4), IsEmpty()) << begins << ends;
      EXPECT_THAT(steps_of(5), SizeIs(begins ? 3 : 4)) << begins << ends;
    }
  }
}

TEST(Steps, AreHalfOfTheWorkAtLeast) {
  const auto steps_among = [](int before, int after) {
    Loop loop;
    loop.kernels(100, before);
    for (int i = 0; i < 5; ++i) do_step(loop);
    return loop.kernels(200, after).steps();
  };
  EXPECT_THAT(steps_among(10, 10), SizeIs(4));
  EXPECT_THAT(steps_among(10, 11), IsEmpty());
}

TEST(Steps, AreTriedWithSoManyItemsOfOneKind) {
  const auto steps_with_copies = [](int copies) {
    Loop loop;
    for (int i = 0; i < 6; ++i) {
      loop.pause();
      for (int copy = 0; copy < copies; ++copy) loop.to_device();
      loop.to_host();
    }
    return loop.kernel(90).steps();
  };
  EXPECT_THAT(steps_with_copies(4096), SizeIs(4));
  EXPECT_THAT(steps_with_copies(4097), IsEmpty()) << "else they take time by the square of the items";
}

/// The steps that are found of `count`, of which `some` take as long as it says there.
std::vector<TimeSpan> steps_that_take(std::size_t count, const std::map<std::size_t, TraceTime>& some) {
  Loop loop;
  loop.kernel(80);
  for (std::size_t i = 0; i < count; ++i) do_step(loop, some.contains(i) ? some.at(i) : kStep);
  do_step(loop);
  return loop.steps();
}

TEST(Steps, AreLeftOutInTheFirstAndTheLastTenthOnly) {
  constexpr TraceTime kLong = 100 * kStep;
  EXPECT_THAT(steps_that_take(4, {{0, kLong}}), SizeIs(4)) << "too few";
  EXPECT_THAT(steps_that_take(5, {{0, kLong}}), SizeIs(4));
  EXPECT_THAT(steps_that_take(5, {{1, kLong}, {3, kLong}}), SizeIs(5));
  EXPECT_THAT(steps_that_take(5, {{4, kLong}}), SizeIs(4));
  EXPECT_THAT(steps_that_take(19, {{1, kLong}, {17, kLong}}), SizeIs(19));
  EXPECT_THAT(steps_that_take(20, {{1, kLong}}), SizeIs(18));
  EXPECT_THAT(steps_that_take(20, {{18, kLong}}), SizeIs(18));
  EXPECT_THAT(steps_that_take(20, {{0, kLong}, {1, kLong}, {18, kLong}, {19, kLong}}), SizeIs(16));
  EXPECT_THAT(steps_that_take(20, {{2, kLong}, {17, kLong}}), SizeIs(20));
}

TEST(Steps, AreLeftOutIfTheyTakeMoreThanTenTimesAsLongAsMost) {
  EXPECT_THAT(steps_that_take(20, {{0, 10 * kStep}, {19, 10 * kStep}}), SizeIs(20));
  EXPECT_THAT(steps_that_take(20, {{0, 10 * kStep + 1}, {19, 10 * kStep + 1}}), SizeIs(18));
  EXPECT_THAT(steps_that_take(20, {{19, 10 * kStep}, {8, kStep - 1}, {9, kStep - 1}}), SizeIs(20))
      << "some are shorter";
}

TEST(Steps, LeaveOutPausesAtTheirEnds) {
  const auto rest = [](Loop& loop) {
    for (int i = 0; i < 100; ++i) loop.pause();
  };
  for (const int every : {3, 1000}) {
    Loop loop;
    loop.train().train();
    rest(loop);
    for (int i = 0; i < 100; ++i) {
      loop.train();
      if (i % every == every - 1) loop.log();
      if (i == 50) rest(loop);
    }
    rest(loop);
    loop.train().train();
    const std::vector<TimeSpan> steps = loop.steps();
    EXPECT_THAT(steps, about(99)) << every;
    const auto pauses = std::ranges::count_if(
        steps, [](const TimeSpan& step) { return step.end - step.begin > 50 * Loop::kPause; });
    EXPECT_EQ(pauses, 1) << every << ": the one in the middle";
  }
}

TEST(Steps, LeaveOutAStartThatTakesTwiceAsLong) {
  // A step takes 452 ns.
  const auto steps = [](int slow, int pauses, int later = 0) {
    Loop loop;
    for (int i = 0; i < 100; ++i) {
      const int more = i < slow ? pauses : i == 50 ? later : 0;
      for (int pause = 0; pause < more; ++pause) loop.pause();
      loop.train();
    }
    return loop.steps().size();
  };
  const std::size_t all = steps(0, 0);
  EXPECT_EQ(steps(5, 4), all);
  EXPECT_EQ(steps(5, 5) + 4, all) << "The first one is left out anyway.";
  EXPECT_EQ(steps(20, 6, 5), all) << "It goes on behind the first tenth.";
  EXPECT_EQ(steps(5, 5, 5), all) << "A later one takes as long.";
  EXPECT_EQ(steps(5, 6, 5) + 4, all);
}

TEST(AlikeSteps, MayVaryInSomeKernels) {
  Loop loop;
  std::mt19937 random(4);
  for (int i = 0; i < 100; ++i) {
    loop.pause().to_device().kernels(1, 30);
    loop.kernel(static_cast<std::uint16_t>(100 + random() % 9)).kernels(50, 10);
  }
  EXPECT_THAT(loop.steps(), about(100));
}

TEST(AlikeSteps, MayEndWithASmallerBatch) {
  Loop loop;
  for (int epoch = 0; epoch < 7; ++epoch) {
    for (int i = 0; i < 13; ++i) loop.train();
    loop.pause().to_device().to_device();
    for (int layer = 0; layer < 4; ++layer) loop.kernels(1, 3);
    loop.kernel(20);
    for (int layer = 0; layer < 4; ++layer) loop.kernels(4, 2).kernels(60, 2);
    loop.kernel(30);
  }
  EXPECT_THAT(loop.steps(), AllOf(SizeIs(Ge(89U)), SizeIs(Le(98U))));
}

TEST(AlikeSteps, HaveAValidationNowAndThen) {
  for (const int times : {3, 8}) {
    Loop loop;
    for (int i = 0; i < 50 * times; ++i) {
      loop.train();
      if (i % 50 != 49) continue;
      for (int batch = 0; batch < 10; ++batch) loop.validate();
    }
    EXPECT_THAT(loop.steps(), about(static_cast<std::size_t>(50 * times))) << times;
  }
}

TEST(AlikeSteps, AreNotTheLayersOfAModel) {
  for (const int layers : {6, 12, 48, 96}) {
    Loop training;
    Loop inference;
    Loop small;
    for (int i = 0; i < 60; ++i) {
      training.pause().to_device().kernel(100);
      for (int layer = 0; layer < layers; ++layer) training.kernels(1, 12);
      training.kernels(110, 3);
      for (int layer = 0; layer < layers; ++layer) training.kernels(20, 24);
      training.kernels(120, 5);
      inference.pause().to_device().kernel(100);
      for (int layer = 0; layer < layers; ++layer) inference.kernels(1, 60);
      inference.kernels(110, 2).to_host();
      for (int layer = 0; layer < layers; ++layer) small.kernel(1);
      small.pause().to_host();
      if (i % 10 != 9) continue;
      for (Loop* loop : {&training, &inference, &small}) loop->log();
    }
    EXPECT_THAT(training.steps(), about(60)) << layers;
    EXPECT_THAT(inference.steps(), about(60)) << layers;
    EXPECT_THAT(small.steps(), SizeIs(Le(66U))) << layers;
  }
}

TEST(AlikeSteps, AreNotTheirManySmallCopies) {
  for (const int copies : {16, 100, 1000}) {
    Loop loop;
    for (int i = 0; i < 60; ++i) {
      loop.pause();
      for (int copy = 0; copy < copies; ++copy) loop.to_device();
      loop.kernels(1, 10);
      if (i % 10 == 9) loop.log();
    }
    EXPECT_THAT(loop.steps(), SizeIs(Le(60U))) << copies;
  }
}

TEST(AlikeSteps, AreNotCopiesWithoutAKernel) {
  Loop loop;
  loop.kernel(1);
  for (int i = 0; i < 60; ++i) {
    loop.pause();
    for (int copy = 0; copy < 16; ++copy) loop.to_device();
    loop.to_host();
  }
  EXPECT_THAT(loop.steps(), about(60));
}

TEST(AlikeSteps, AreNotTheCellsOfSequences) {
  for (const auto& [kernels, least] : {std::pair(9, 20U), std::pair(3, 300U)}) {
    Loop loop;
    std::mt19937 random(8);
    for (int i = 0; i < 100; ++i) {
      for (auto cells = least + random() % (4 * least); cells > 0; --cells) loop.kernels(1, kernels);
      loop.kernels(100, 9);
    }
    EXPECT_THAT(loop.steps(), IsEmpty()) << kernels;
  }
}

TEST(AlikeSteps, MaySaveTheModelNowAndThen) {
  Loop loop;
  std::mt19937 random(9);
  for (int i = 0; i < 200; ++i) {
    loop.train();
    if (random() % 25 != 0) continue;
    for (int tensor = 0; tensor < 50; ++tensor) loop.to_host();
  }
  EXPECT_THAT(loop.steps(), about(200));
}

TEST(AlikeSteps, MayDoMoreInTheFirst) {
  Loop loop;
  std::mt19937 random(11);
  for (int i = 0; i < 200; ++i) {
    loop.train();
    if (i < 10 || i > 195) loop.kernels(200, 40);
    if (random() % 4 == 0) loop.log();
  }
  EXPECT_THAT(loop.steps(), SizeIs(AllOf(Ge(184U), Le(186U))));
}

/// Fifty steps of 31 items, which log at random, and before and after them 20 batches of random work.
Loop among_random_work(int length) {
  Loop loop;
  std::mt19937 random(7);
  const auto work = [&] {
    for (int i = 0; i < 20; ++i) {
      loop.to_device();
      for (int item = 0; item < length; ++item) loop.kernel(static_cast<std::uint16_t>(100 + random() % 99));
    }
  };
  work();
  for (int i = 0; i < 50; ++i) {
    loop.to_device().kernels(1, 30);
    if (random() % 4 == 0) loop.log();
  }
  work();
  return loop;
}

TEST(AlikeSteps, FillMostOfTheTime) {
  EXPECT_THAT(among_random_work(20).steps(), SizeIs(AllOf(Ge(48U), Le(51U))));
  EXPECT_THAT(among_random_work(300).steps(), IsEmpty());
}

TEST(AlikeSteps, AreSeveral) {
  Loop loop;
  for (const int kernels : {30, 300, 301, 299, 30}) loop.kernels(1, kernels);
  EXPECT_THAT(loop.kernel(1).steps(), IsEmpty());
}

/// Steps of 31 items, of which one is never the same, among other work.
std::vector<TimeSpan> a_few_among(int count, int before, int after) {
  Loop loop;
  loop.kernels(200, before);
  for (int i = 0; i < count; ++i)
    loop.pause().kernels(1, 15).kernel(static_cast<std::uint16_t>(100 + i)).kernels(20, 15);
  return loop.pause().kernel(1).kernels(1000, after).steps();
}

TEST(AlikeSteps, AreFourAtLeast) {
  EXPECT_THAT(a_few_among(4, 1, 0), SizeIs(3)) << "the last only shows where the one before it ends";
  EXPECT_THAT(a_few_among(3, 1, 0), IsEmpty());
}

TEST(AlikeSteps, AreHalfOfTheWorkAtLeast) {
  EXPECT_THAT(a_few_among(4, 62, 61), SizeIs(3));
  EXPECT_THAT(a_few_among(4, 62, 62), IsEmpty());
}

TEST(AlikeSteps, BeginWithTheLowestKindIfTheDeviceNeverIdles) {
  Loop loop;
  loop.kernel(80);
  for (int i = 0; i < 60; ++i) {
    loop.kernels(1, 10).to_device().kernels(20, 10);
    if (i % 10 == 9) loop.log();
  }
  const std::vector<TimeSpan> steps = loop.steps();
  ASSERT_THAT(steps, about(60));
  for (const TimeSpan& step : steps) {
    EXPECT_THAT(loop.timeline().copies,
                Contains(Field(&TimelineCopy::time, Field(&TimeSpan::begin, step.begin + 1))));
  }
}

TEST(AlikeSteps, BeginWhereTheDeviceIdlesEvenIfAKernelLastsLonger) {
  Loop loop;
  for (int i = 0; i < 60; ++i) {
    loop.train();
    if (i % 10 == 9) loop.log();
    if (i == 35) loop.timeline().work.back().time.end += 1'000'000;
  }
  const std::vector<TimeSpan> steps = loop.steps();
  ASSERT_THAT(steps, about(60));
  const TimeSpan& step = steps[10];
  EXPECT_THAT(loop.timeline().copies,
              Contains(Field(&TimelineCopy::time, Field(&TimeSpan::begin, step.begin + Loop::kPause + 1))));
}

TEST(AlikeSteps, FollowOtherWorkThatRepeats) {
  Loop loop;
  std::mt19937 random(10);
  for (int i = 0; i < 100; ++i) loop.kernels(200, 15);
  for (int i = 0; i < 100; ++i) {
    loop.train();
    if (random() % 4 == 0) loop.log();
  }
  EXPECT_THAT(loop.steps(), about(100));
}

TEST(AlikeSteps, AreThoseOfBatchesIfGradientsAccumulate) {
  for (const int batches : {4, 8}) {
    Loop loop;
    for (int i = 0; i < 160; ++i) {
      loop.pause().to_device().kernels(1, 40);
      if (i % batches == batches - 1) loop.kernels(60, 4);
    }
    EXPECT_THAT(loop.steps(), about(160)) << batches;
  }
  Loop loop;
  for (int i = 0; i < 160; ++i) {
    loop.pause().to_device().kernels(1, 40);
    if (i % 4 == 3) loop.kernels(60, 30);
  }
  EXPECT_THAT(loop.steps(), about(40)) << "an optimizer that does much";
}

TEST(AlikeSteps, AreAllPhasesThatAlternate) {
  for (const int log : {10, 1000}) {
    for (const int common : {20, 30}) {
      for (const int first : {1, 3}) {
        Loop loop;
        for (int i = 0; i < 100; ++i) {
          for (int phase = 0; phase < first; ++phase)
            loop.pause().to_device().kernels(1, common).kernels(40, 40 - common).kernels(90, 3);
          loop.pause().to_device().kernels(1, common).kernels(160, 40 - common).kernels(90, 3);
          if (i % log == log - 1) loop.log();
        }
        if (first == 1 || common == 20) {
          EXPECT_THAT(loop.steps(), about(100)) << log << ' ' << common << ' ' << first;
        }
      }
    }
  }
}

TEST(AlikeSteps, AreAsManyAsTheNoisyRepetitions) {
  std::mt19937 random(5);
  const auto below = [&random](std::size_t end) { return static_cast<std::size_t>(random() % end); };
  for (int program = 0; program < 40; ++program) {
    std::vector<std::uint16_t> step(20 + below(200));
    const std::size_t kernels = 5 + below(60);
    for (std::uint16_t& label : step) label = static_cast<std::uint16_t>(1 + below(kernels));
    const std::size_t count = 20 + below(150);
    Loop loop;
    for (std::size_t i = 0; i < count; ++i) {
      loop.to_device();
      for (const std::uint16_t label : step) {
        loop.kernel(label);
        if (below(100) == 0) loop.kernel(static_cast<std::uint16_t>(1 + below(100)));
      }
    }
    EXPECT_THAT(loop.steps(), about(count)) << program;
  }
}

TEST(AlikeSteps, AreNotMadeUpOfRandomWork) {
  std::mt19937 random(6);
  for (const unsigned kernels : {2, 3, 10, 100, 500}) {
    Loop loop;
    for (int i = 0; i < 100'000; ++i) loop.kernel(static_cast<std::uint16_t>(1 + random() % kernels));
    EXPECT_THAT(loop.steps(), IsEmpty()) << kernels;
  }
}

}  // namespace
}  // namespace penstock
