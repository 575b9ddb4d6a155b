#include "cli/shared/terminal.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

namespace penstock::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(Locale, IsTakenFromTheFirstVariableThatIsSet) {
  EXPECT_TRUE(is_utf8_locale(nullptr, nullptr, "en_US.UTF-8"));
  EXPECT_TRUE(is_utf8_locale("", "C.utf8", "C"));
  EXPECT_FALSE(is_utf8_locale("C", "en_US.UTF-8", "en_US.UTF-8"));
  EXPECT_FALSE(is_utf8_locale(nullptr, nullptr, nullptr));
  EXPECT_FALSE(is_utf8_locale(nullptr, nullptr, "de_DE.ISO-8859-1"));
}

TEST(Width, CountsCharactersAndNotBytes) {
  EXPECT_EQ(display_width("3.8 µs"), 6u);
  EXPECT_EQ(display_width("────"), 4u);
  EXPECT_EQ(display_width(""), 0u);
}

TEST(TableText, LinesUpColumns) {
  Table table({"size", "time"});
  table.add({"4 KiB", "3.8 µs"});
  table.add({"1 GiB"});
  EXPECT_THAT(lines_of(table.text({.unicode = false, .columns = 80})),
              ElementsAre("size     time", "-----  ------", "4 KiB  3.8 µs", "1 GiB"));
  EXPECT_THAT(table.text({.unicode = true, .columns = 80}), HasSubstr("─────  ──────"));
}

TEST(Plot, RisesFromLeftToRight) {
  PlotCurve curve{.name = "rising", .points = {}};
  for (double x = 4096; x <= 1073741824; x *= 2) curve.points.emplace_back(x, 56 * x / (x + 200e3));
  const auto lines = lines_of(plot({curve}, "GB/s", {.unicode = false, .columns = 80}));
  ASSERT_EQ(lines.size(), 1u + 16 + 1 + 1 + 1);
  std::vector<std::size_t> first;
  for (std::size_t y = 1; y <= 16; ++y) {
    EXPECT_LE(lines[y].size(), 80u);
    const auto at = lines[y].find('*');
    if (at != std::string::npos) first.push_back(at);
  }
  EXPECT_TRUE(std::is_sorted(first.rbegin(), first.rend())) << "higher means further right";
  EXPECT_GT(first.size(), 8u);
  EXPECT_EQ(first.back(), 7u) << "it begins at the axis";
  EXPECT_THAT(lines[1], HasSubstr("60 +"));
  EXPECT_THAT(lines[18], HasSubstr("4 KiB"));
  EXPECT_THAT(lines[18], HasSubstr("1 GiB"));
  EXPECT_THAT(lines[19], HasSubstr("* rising"));
}

TEST(Plot, HasAMarkPerCurve) {
  const PlotCurve high{.name = "high", .points = {{4096, 10}, {8192, 10}}};
  const PlotCurve low{.name = "low", .points = {{4096, 1}, {8192, 1}}};
  const std::string text = plot({high, low}, "GB/s", {.unicode = true, .columns = 60});
  EXPECT_THAT(text, HasSubstr("● high"));
  EXPECT_THAT(text, HasSubstr("▲ low"));
  EXPECT_THAT(text, HasSubstr("●●●"));
  EXPECT_THAT(text, HasSubstr("▲▲▲"));
}

TEST(Plot, DrawsNothingOfNothing) {
  EXPECT_EQ(plot({}, "GB/s", {}), "");
  EXPECT_EQ(plot({{.name = "empty", .points = {}}}, "GB/s", {}), "");
  EXPECT_NE(plot({{.name = "one", .points = {{4096, 0}}}}, "GB/s", {}), "");
}

TEST(ProgressLine, FillsAndFits) {
  const Look ascii{.unicode = false, .columns = 60};
  EXPECT_EQ(Progress::line(0, "a", ascii), "[                    ]   0 % a");
  EXPECT_EQ(Progress::line(0.5, "a", ascii), "[##########          ]  50 % a");
  EXPECT_EQ(Progress::line(1, "a", ascii), "[####################] 100 % a");
  EXPECT_EQ(Progress::line(7, "a", ascii), Progress::line(1, "a", ascii));
  const Look narrow{.unicode = true, .columns = 24};
  for (double part = 0; part <= 1; part += 0.01) {
    EXPECT_LT(display_width(Progress::line(part, "a very long step that does not fit", narrow)), 24u);
  }
}

}  // namespace
}  // namespace penstock::cli
