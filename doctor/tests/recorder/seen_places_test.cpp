#include "doctor/recorder/seen_places.hpp"

#include "support/matchers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::recorder {
namespace {

PythonFrame frame_at(std::int32_t offset) { return {nullptr, nullptr, nullptr, offset}; }

using Looks = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

/// The times of the looks, and the places' offsets.
Looks taken_from(SeenPlaces& seen) {
  Looks looks;
  seen.take([](std::span<const PythonFrame> frames) { return static_cast<std::uint64_t>(frames[0].offset); },
            [&looks](std::uint64_t time, std::uint64_t number) { looks.emplace_back(time, number); });
  return looks;
}

void add_at(SeenPlaces& seen, std::int32_t offset, std::uint64_t time) {
  const PythonFrame frame = frame_at(offset);
  seen.add(std::span(&frame, 1), time);
}

TEST(SeenPlaces, AreTakenOnceInTheOrderOfTheirTimes) {
  SeenPlaces seen;
  EXPECT_THAT(taken_from(seen), IsEmpty());
  add_at(seen, 7, 100);
  add_at(seen, 9, 200);
  add_at(seen, 7, 300);
  EXPECT_THAT(taken_from(seen), ElementsAre(std::pair(100, 7), std::pair(200, 9), std::pair(300, 7)));
  EXPECT_THAT(taken_from(seen), IsEmpty());
  add_at(seen, 5, 400);
  EXPECT_THAT(taken_from(seen), ElementsAre(std::pair(400, 5)));
}

TEST(SeenPlaces, AskForEachNumberOnce) {
  SeenPlaces seen;
  const std::array inner{frame_at(1), frame_at(2)};
  const std::array other{frame_at(1), frame_at(3)};
  for (int i = 0; i < 3; ++i) {
    seen.add(inner, 1);
    seen.add(other, 1);
    seen.add(std::span(inner).first(1), 1);
  }
  std::vector<std::size_t> asked;
  seen.take(
      [&asked](std::span<const PythonFrame> frames) {
        asked.push_back(frames.size());
        return std::uint64_t{1};
      },
      [](std::uint64_t, std::uint64_t) {});
  EXPECT_THAT(asked, ElementsAre(2, 2, 1));
}

TEST(SeenPlaces, LeaveOutThePlaceThatIsOneTooMany) {
  SeenPlaces seen;
  for (int i = 1; i <= 40; ++i) add_at(seen, i, static_cast<std::uint64_t>(i));
  add_at(seen, 3, 100);
  const Looks looks = taken_from(seen);
  ASSERT_THAT(looks, SizeIs(41)) << "the look itself is kept";
  EXPECT_EQ(looks[15], (Looks::value_type{16, 16}));
  EXPECT_EQ(looks[16], (Looks::value_type{17, 0}));
  EXPECT_EQ(looks[39], (Looks::value_type{40, 0}));
  EXPECT_EQ(looks[40], (Looks::value_type{100, 3}));
}

TEST(SeenPlaces, KeepLooksFromAllOfALongTime) {
  SeenPlaces seen;
  constexpr std::uint64_t kMany = 1000;
  for (std::uint64_t i = 0; i < kMany; ++i) add_at(seen, 1, i);
  const Looks looks = taken_from(seen);
  EXPECT_GE(looks.size(), SeenPlaces::kMostLooks / 2);
  EXPECT_LE(looks.size(), SeenPlaces::kMostLooks);
  const auto first_half =
      std::ranges::count_if(looks, [](const auto& look) { return look.first < kMany / 2; });
  EXPECT_NEAR(static_cast<double>(first_half), static_cast<double>(looks.size()) / 2, 2);
  for (std::uint64_t i = 0; i < 3; ++i) add_at(seen, 1, i);
  EXPECT_THAT(taken_from(seen), SizeIs(3)) << "all that come after they were taken";
}

TEST(SeenPlaces, AreWholeIfTheyAreAddedMeanwhile) {
  const auto seen = std::make_unique<SeenPlaces>();
  std::atomic<bool> done{false};
  std::thread looker([&] {
    std::array<PythonFrame, 48> frames;
    for (std::int32_t i = 0; !done; ++i) {
      frames.fill(frame_at(i));
      seen->add(frames, static_cast<std::uint64_t>(i));
    }
  });
  std::size_t taken = 0;
  std::size_t torn = 0;
  for (int i = 0; (i < 2'000'000 || taken == 0) && taken < 100'000; ++i) {
    seen->take(
        [&torn](std::span<const PythonFrame> frames) {
          const auto differs = [&frames](const PythonFrame& frame) { return frame != frames.front(); };
          if (frames.size() != 48 || std::ranges::any_of(frames, differs)) ++torn;
          return static_cast<std::uint64_t>(frames.empty() ? 0 : frames.front().offset);
        },
        [&](std::uint64_t time, std::uint64_t number) {
          ++taken;
          if (number != 0 && time != number) ++torn;
        });
  }
  done = true;
  looker.join();
  EXPECT_GT(taken, 0U);
  EXPECT_EQ(torn, 0U);
}

}  // namespace
}  // namespace penstock::recorder
