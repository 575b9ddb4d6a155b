#include "doctor/report/rank_comparison.hpp"

#include "cli/command.hpp"
#include "support/matchers.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <string>
#include <vector>

namespace penstock {
namespace {

using cli::compare_ranks;
using cli::RankFigures;
using nlohmann::json;
using testing::CommandResult;

constexpr double kMillisecond = 1e-3;

/// Steps of 10 ms, of which the rank computes `kernels` and communicates all the rest.
RankFigures rank(const std::string& name, double kernels, double waiting = 0) {
  RankFigures figures{name};
  figures.step = 10 * kMillisecond;
  figures.kernels = kernels * kMillisecond;
  figures.waiting_for_data = waiting * kMillisecond;
  figures.communication = figures.step - figures.kernels - figures.waiting_for_data;
  return figures;
}

TEST(RankComparison, NamesTheRankThatAllWaitFor) {
  const std::vector<std::string> sentences =
      compare_ranks(std::vector{rank("rank 0", 6), rank("rank 1", 9), rank("rank 2", 7)});
  EXPECT_THAT(sentences, ElementsAre(AllOf(
                             StartsWith("rank 1 communicates least: 1.00 ms of a step, and rank 0 4.00 ms."),
                             HasSubstr("the others wait for rank 1, up to 3.00 ms of a step."),
                             HasSubstr("It takes 2.50 ms more for kernels than the others on average."))));
  EXPECT_THAT(compare_ranks(std::vector{rank("a", 6, 3), rank("b", 6)}),
              ElementsAre(HasSubstr("It takes 3.00 ms more for waiting for data than")));
}

TEST(RankComparison, SaysThatNoRankKeepsTheOthersWaiting) {
  EXPECT_THAT(compare_ranks(std::vector{rank("a", 6), rank("b", 6.4)}),
              ElementsAre(StartsWith("All ranks communicate about as long")));
}

TEST(RankComparison, NamesTheLongestSteps) {
  std::vector<RankFigures> ranks{rank("a", 6), rank("b", 6)};
  ranks[1].step *= 1.04;
  EXPECT_THAT(compare_ranks(ranks), SizeIs(1));
  ranks[1].step *= 1.04;
  EXPECT_THAT(compare_ranks(ranks).at(0),
              StartsWith("The steps of b take longest: 10.8 ms. Those of a take 10.0 ms."));
}

TEST(RankComparison, IsOfRanksThatCommunicate) {
  EXPECT_THAT(compare_ranks({}), IsEmpty());
  EXPECT_THAT(compare_ranks(std::vector{rank("a", 6)}), IsEmpty());
  EXPECT_THAT(compare_ranks(std::vector{rank("a", 10), rank("b", 10)}), IsEmpty());
}

/// A rank of two: steps of 1 ms, of which it computes `kernels` us, and communicates for the rest.
std::string rank_trace(int number, int kernels) {
  std::string events;
  const auto add = [&events](const char* category, const std::string& name, int begin, int duration) {
    events += fmt::format(
        R"({}{{"ph":"X","cat":"{}","name":"{}","pid":1,"tid":1,"ts":{},"dur":{},"args":{{"device":0,"stream":7}}}})",
        events.empty() ? "" : ",", category, name, begin, duration);
  };
  for (int i = 0; i < 6; ++i) {
    add("user_annotation", fmt::format("ProfilerStep#{}", i), 1000 * i, 1000);
    add("cuda_runtime", "cudaLaunchKernel", 1000 * i, 2);
    add("kernel", "gemm", 1000 * i, kernels);
    add("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1000 * i + kernels, 1000 - kernels);
  }
  return fmt::format(R"({{"distributedInfo": {{"rank": {}}}, "traceEvents": [{}]}})", number, events);
}

class RankDoctor : public testing::CommandTest {
 protected:
  RankDoctor() {
    write("b.json", rank_trace(0, 300));
    write("a.json", rank_trace(1, 700));
  }
  [[nodiscard]] CommandResult examine(const std::vector<std::string>& more = {}) const {
    return command_.run(testing::joined({{"doctor", path("a.json"), path("b.json")}, more}));
  }
};

TEST_F(RankDoctor, ComparesTheTracesOfRanks) {
  const CommandResult result = examine();
  ASSERT_EQ(result.status, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("300 µs  30.0 %\n"));
  EXPECT_THAT(result.output, HasSubstr("\nrank 0     1.00 ms   300 µs         700 µs"));
  EXPECT_THAT(result.output, HasSubstr("rank 1 communicates least"));
  EXPECT_LT(result.output.find("\nrank 0 "), result.output.find("\nrank 1 "));
}

TEST_F(RankDoctor, WritesTheSameAsJson) {
  const CommandResult result = examine({"--json", "-"});
  ASSERT_EQ(result.status, 0) << result.errors;
  const json value = json::parse(result.output);
  EXPECT_EQ(value["schema"], "penstock-traces-diagnosis/1");
  ASSERT_THAT(value["traces"], SizeIs(2));
  EXPECT_EQ(value["traces"][0]["rank"], 1);
  EXPECT_EQ(value["traces"][0]["trace"], path("a.json"));
  EXPECT_DOUBLE_EQ(value["traces"][0]["devices"][0]["parts"]["communication"]["share"], 0.3);
  EXPECT_THAT(value["comparison"].at(0).get<std::string>(), HasSubstr("rank 1 communicates least"));
}

TEST_F(RankDoctor, ShowsAllTracesOnAPage) {
  const CommandResult result = examine({"--html", path("page.html")});
  ASSERT_EQ(result.status, 0) << result.errors;
  const std::string page = read("page.html");
  EXPECT_THAT(page, AllOf(HasSubstr("a.json"), HasSubstr("b.json")));
}

TEST_F(RankDoctor, RefusesAFolderAmongTraces) {
  const CommandResult result = command_.run({"doctor", path("a.json"), command_.home().string()});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.errors, HasSubstr("is a folder; pass it alone, or several traces"));
}

TEST_F(RankDoctor, NamesTracesByTheirFilesIfTwoAreOfOneRank) {
  write("b.json", rank_trace(1, 300));
  const CommandResult result = examine();
  EXPECT_THAT(result.output, HasSubstr("a.json communicates least"));
  EXPECT_THAT(result.output, Not(HasSubstr("rank 1")));
}

}  // namespace
}  // namespace penstock
