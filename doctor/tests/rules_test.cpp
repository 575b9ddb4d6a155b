#include "doctor/rules/rule.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(Rules, AreTheTableOfTheDocs) {
  std::string rows;
  for (const Rule& rule : all_rules()) {
    rows += fmt::format("| `{}` | {} | {} | {} |\n", rule.id, rule.row.found_if, rule.row.least_gain,
                        rule.row.most_gain);
  }
  expect_written(PENSTOCK_SOURCE "/docs/doctor-reference.md",
                 "| id | it is found if | gain of a step, from | to |\n| --- | --- | --- | --- |\n", "\n\n",
                 rows.substr(0, rows.size() - 1));
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
