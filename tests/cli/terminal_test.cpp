#include "cli/shared/terminal.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

namespace penstock::cli {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
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
  EXPECT_THAT(lines_of(table.text()),
              ElementsAre("size     time", "-----  ------", "4 KiB  3.8 µs", "1 GiB"));
}

TEST(ProgressLine, FillsAndFits) {
  EXPECT_EQ(Progress::line(0, "a", 60), "[                    ]   0 % a");
  EXPECT_EQ(Progress::line(0.5, "a", 60), "[##########          ]  50 % a");
  EXPECT_EQ(Progress::line(1, "a", 60), "[####################] 100 % a");
  EXPECT_EQ(Progress::line(7, "a", 60), Progress::line(1, "a", 60));
  for (double part = 0; part <= 1; part += 0.01) {
    EXPECT_LT(display_width(Progress::line(part, "a very long step that does not fit", 24)), 24u);
  }
}

}  // namespace
}  // namespace penstock::cli
