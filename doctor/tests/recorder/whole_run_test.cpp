#include "doctor/read/recording_format.hpp"
#include "doctor/recorder/recording_file.hpp"
#include "doctor/tests/recorder/recorder_fixture.hpp"
#include "doctor/timeline/timeline.hpp"
#include "support/matchers.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

// Recordings whose ring went round, from the program to the report.
namespace penstock {
namespace {

using nlohmann::json;
using testing::CommandResult;

class WholeRuns : public testing::RecorderTest {
 protected:
  [[nodiscard]] CommandResult run(const std::vector<std::string>& words) const {
    return RecorderTest::run(words, {"--json", path("report.json"), "--html", path("page.html")});
  }
  [[nodiscard]] json process() const { return read_report().at("processes")[0]; }
};

/// The sums by what they are of, as "count, bytes".
std::map<std::string, std::string> sums_in(const json& whole) {
  std::map<std::string, std::string> sums;
  const auto add = [&sums](const std::string& name, const json& sum) {
    EXPECT_GT(sum.at("seconds"), 0) << name;
    sums[name] = sum.at("count").dump() + ", " + sum.at("bytes").dump();
  };
  for (const json& work : whole.at("work")) add(work.at("kind"), work);
  for (const json& copies : whole.at("copies")) add(copies.at("direction"), copies);
  for (const json& line : whole.at("lines")) {
    const std::string function = line.at("function");
    add(function.substr(function.find(": ") + 1) + ", " + std::string(line.at("call")), line);
  }
  return sums;
}

TEST_F(WholeRuns, AreCountedIfTheRingIsFull) {
  if (!testing::has_addr2line()) GTEST_SKIP() << "there is no addr2line";
  command_.environment.emplace_back("PENSTOCK_RECORDS=90");
  const CommandResult result = run({"init", "fresh=30", "fork", "steps=50"});
  ASSERT_EQ(result.status, 0) << result.errors;
  const json report = process();
  EXPECT_EQ(report.at("schema"), "penstock-trace-diagnosis/1");
  EXPECT_EQ(report.at("devices")[0].at("copies_to_device").at("count"), 13);
  const json& whole = report.at("whole_run");
  EXPECT_LT(whole.at("timeline_seconds"), whole.at("seconds"));
  const std::string here = " (anonymous namespace)::";
  EXPECT_EQ(sums_in(whole),
            (std::map<std::string, std::string>{{"kernel", "160, 0"},
                                                {"H2D", "80, 160000000"},
                                                {"D2H", "80, 320"},
                                                {here + "step(bool), copy", "50, 100000000"},
                                                {here + "train(long, bool, bool), copy", "30, 60000000"},
                                                {here + "work(), copy", "80, 0"},
                                                {here + "work(), stream synchronization", "80, 0"},
                                                {", kernel launch", "160, 0"}}));
  for (const auto& [kind, sum] : whole.at("others").items()) EXPECT_EQ(sum.at("count"), 0) << kind;
  EXPECT_THAT(result.errors,
              AllOf(HasSubstr("The timeline covers the last "), HasSubstr(" % of the run."),
                    HasSubstr("\nthe whole run, "), HasSubstr("keeps the last 90 of 720 records"),
                    HasSubstr("GPU 0, kernels: 160 times, "), HasSubstr("95.4 MiB")));
  EXPECT_THAT(read("page.html"),
              AllOf(HasSubstr("<h2>The whole run</h2>"), HasSubstr("The timeline covers the last "),
                    HasSubstr("step(bool), copy</th><td>50</td><td>95.4 MiB</td>")));
}

TEST_F(WholeRuns, AreNotToldIfTheTimelineHasThem) {
  command_.environment.emplace_back("PENSTOCK_RECORDS=450");
  const CommandResult result = run({"init", "steps=50"});
  const json report = process();
  EXPECT_EQ(report.at("events"), 450);
  EXPECT_EQ(report.at("whole_run"), nullptr);
  EXPECT_THAT(result.errors, Not(HasSubstr("whole run")));
  EXPECT_THAT(read("page.html"), Not(HasSubstr("whole run")));
}

TEST_F(WholeRuns, HaveNoWaitsOfPenstocksOwnThreads) {
  command_.environment.emplace_back("PENSTOCK_RECORDS=40");
  ASSERT_EQ(run({"init", "group=30"}).status, 0);
  std::uint64_t waits = 0;
  for (const json& line : process().at("whole_run").at("lines")) {
    if (line.at("call") == "penstock::Loader::next") waits += line.at("count").get<std::uint64_t>();
  }
  EXPECT_LT(waits, 15U) << "the program waits for the first batches, and those of a busy machine";
}

TEST_F(WholeRuns, AreCountedIfTheProgramIsKilled) {
  command_.environment.emplace_back("PENSTOCK_RECORDS=90");
  const CommandResult result = run({"init", "steps=30", "recorded", "kill"});
  EXPECT_EQ(result.status, 128 + SIGKILL);
  EXPECT_THAT(result.errors, HasSubstr("GPU 0, kernels: 60 times"));
}

/// Ten records of the last of a run, each of whose calls was at another line.
void write_run_of_lines(const std::string& folder, std::uint32_t lines) {
  static recorder::RecordingFile file;
  std::filesystem::create_directory(folder);
  ASSERT_TRUE(file.open(folder.c_str(), 10));
  for (std::uint32_t i = 0; i < lines; ++i) {
    const std::uint32_t head[] = {i, 8};
    file.add_text(recording::TextType::frame, head, sizeof head, "train.py", "main");
    file.add_text(recording::TextType::stack, &i, sizeof i, {});
    recording::Record record{};
    record.type = recording::RecordType::call;
    record.detail = static_cast<std::uint8_t>(CallKind::copy);
    record.begin = 1000 * (i + 1);
    record.end = record.begin + 10;
    record.place = i + 1;
    file.add(record);
    record.type = recording::RecordType::work;
    record.device = 0;
    file.add(record);
  }
  file.header().state = recording::State::finished;
}

TEST_F(WholeRuns, ShowOnlySoManyLinesOnThePage) {
  write_run_of_lines(path("run"), 230);
  const CommandResult result =
      command_.run({"doctor", path("run"), "--json", path("report.json"), "--html", path("page.html")});
  ASSERT_EQ(result.status, 0) << result.errors;
  EXPECT_THAT(process().at("whole_run").at("lines"), SizeIs(230));
  EXPECT_THAT(result.output, HasSubstr("and 220 more lines; --json has all"));
  const std::string page = read("page.html");
  EXPECT_THAT(page, HasSubstr("30 more lines are not shown."));
  EXPECT_EQ(testing::count_of(page, "main, copy</th>"), 200U);
}

}  // namespace
}  // namespace penstock
