#include "doctor/rules/rule.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace penstock {
namespace {

using ::testing::ElementsAre;

/// Expects that `part` is what stands in the file between `begin` and `end`. With PENSTOCK_WRITE_DOCS, it is
/// put there.
void expect_written(const std::filesystem::path& file, std::string_view begin, std::string_view end,
                    const std::string& part) {
  std::ifstream in(file);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  const std::size_t from = text.find(begin);
  ASSERT_NE(from, std::string::npos) << file;
  const std::size_t first = from + begin.size();
  const std::size_t last = text.find(end, first);
  ASSERT_NE(last, std::string::npos) << file;
  if (std::getenv("PENSTOCK_WRITE_DOCS") != nullptr)
    std::ofstream(file) << text.substr(0, first) << part << text.substr(last);
  else
    EXPECT_EQ(text.substr(first, last - first), part)
        << file << ": set PENSTOCK_WRITE_DOCS=1 for this test to write it";
}

TEST(Rules, AreInTheTableOfTheDocs) {
  std::ifstream in(PENSTOCK_SOURCE "/docs/doctor-reference.md");
  const std::string page(std::istreambuf_iterator<char>(in), {});
  std::size_t at = page.find("| id | it is found if |");
  for (const Rule& rule : all_rules()) {
    at = page.find(fmt::format("\n| `{}` | ", rule.id), std::min(at, page.size()));
    EXPECT_NE(at, std::string::npos) << rule.id << " has no row there, or is not in the order of the rules";
  }
}

TEST(Rules, AreTheIdsOfTheSchema) {
  constexpr std::size_t kColumns = 120;
  std::string lines;
  std::string line;
  for (const Rule& rule : all_rules()) {
    const std::string id = fmt::format("\"{}\"", rule.id);
    if (!line.empty() && line.size() + id.size() + 3 > kColumns) lines += std::exchange(line, "") + ",\n";
    line += (line.empty() ? "        " : ", ") + id;
  }
  expect_written(PENSTOCK_SOURCE "/docs/schemas/doctor.json", "\"finding_id\": {\n      \"enum\": [\n",
                 "\n      ]", lines + line);
}

TEST(Rules, AreKnownByTheirIds) {
  std::set<std::string_view> ids;
  for (const Rule& rule : all_rules()) {
    EXPECT_TRUE(ids.insert(rule.id).second) << rule.id;
    EXPECT_EQ(find_rule(rule.id), &rule);
  }
  EXPECT_EQ(find_rule("pageable"), nullptr);
}

TEST(Rules, AreNamedByWhatTheyNeed) {
  EXPECT_THAT(ids_that_need(Need::steady_steps), ElementsAre("pinning", "device-allocations"));
  EXPECT_THAT(ids_that_need(Need::contents, {"step"}), ElementsAre("same-data-again", "step"));
}

}  // namespace
}  // namespace penstock
