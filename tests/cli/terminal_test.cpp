#include "cli/shared/terminal.hpp"

#include "support/matchers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

namespace penstock::cli {
namespace {

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
