#include "doctor/tests/recorder/recorder_fixture.hpp"
#include "support/matchers.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

// `penstock doctor --verify` runs two programs, whose GPU is made up.
namespace penstock {
namespace {

using nlohmann::json;
using testing::CommandResult;

class Verify : public testing::RecorderTest {
 protected:
  [[nodiscard]] CommandResult verify(const std::string& changed,
                                     const std::vector<std::string>& words) const {
    return run(words, {"--json", path("report.json"), "--verify", changed});
  }
  /// The part about the changed program.
  [[nodiscard]] json verified() const { return read_report().at("verify"); }

  static json gone(const json& comparison, const std::string& id) {
    for (const json& finding : comparison.at("findings")) {
      if (finding.at("id") == id) return finding.at("gone");
    }
    return nullptr;
  }
};

TEST_F(Verify, SetsTheGainBesideThePrediction) {
  const CommandResult result = verify("$PROGRAM init pinned=30 say=two", {"init", "steps=20", "say=one"});
  EXPECT_EQ(result.status, 0) << result.errors;
  EXPECT_EQ(result.output, "one\ntwo\n");
  EXPECT_THAT(result.errors,
              AllOf(HasSubstr("penstock: now $PROGRAM init pinned=30 say=two\n"),
                    HasSubstr("verified with $PROGRAM init pinned=30 say=two\nGPU 0: a step takes "),
                    HasSubstr("pageable-copies: gone"), HasSubstr("synchronizations: still found"),
                    HasSubstr("The gain is as predicted.")));
  const json verify = verified();
  EXPECT_EQ(verify.at("remark"), "");
  EXPECT_EQ(verify.at("changed").at("exit_status"), 0);
  EXPECT_EQ(verify.at("changed").at("processes")[0].at("events"), 9 * 30);
  const json& comparison = verify.at("comparisons").at(0).at(0);
  EXPECT_EQ(comparison.at("of"), "step");
  EXPECT_EQ(comparison.at("in_range"), true);
  EXPECT_GT(comparison.at("gained_seconds"), 0);
}

TEST_F(Verify, WithoutALineRunsTheProgramUnderPenstockRun) {
  const CommandResult result =
      run({"init", "steps=20", "say=it"}, {"--json", path("report.json"), "--verify"});
  EXPECT_EQ(result.status, 0) << result.errors;
  EXPECT_EQ(result.output, "it\nit\n");
  const std::string name = "penstock run -- " PENSTOCK_RECORDER_PROGRAM " init steps=20 say=it\n";
  EXPECT_THAT(result.errors, AllOf(HasSubstr("penstock: now " + name), HasSubstr("\npenstock run: "),
                                   HasSubstr("verified with " + name + "GPU 0: a step takes ")));
  EXPECT_THAT(read("report.json"), HasSubstr("Without a change: penstock run -- ./program"));
  EXPECT_THAT(verified().at("comparisons"), SizeIs(1));
}

TEST_F(Verify, IsOnThePage) {
  const CommandResult result =
      run({"init", "steps=20"}, {"--html", path("page.html"), "--verify", "$PROGRAM init pinned=30"});
  EXPECT_EQ(result.status, 0) << result.errors;
  const std::string page = read("page.html");
  const std::size_t begin = page.find("Verified with $PROGRAM init pinned=30");
  ASSERT_NE(begin, std::string::npos);
  EXPECT_THAT(page.substr(begin, page.find("</p>", begin) - begin),
              AllOf(HasSubstr("<br>\nGPU 0: a step takes"), HasSubstr("<br>\npageable-copies: gone"),
                    HasSubstr("predicted for what is gone")))
      << "one box";
}

TEST_F(Verify, ComparesWholeRecordingsIfThereAreNoSteps) {
  const CommandResult result = verify("$PROGRAM init pinned=3", {"init", "steps=20"});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.errors, AllOf(HasSubstr("GPU 0: the whole recording takes "),
                                   HasSubstr("Steps were not found in both programs.")));
  EXPECT_EQ(verified().at("comparisons").at(0).at(0).at("of"), "recording");
}

TEST_F(Verify, DoesNotRunTheChangedProgramIfTheFirstOneFails) {
  const CommandResult result = verify("$PROGRAM say=two", {"init", "steps=20", "exit=5"});
  EXPECT_EQ(result.status, 5);
  EXPECT_THAT(result.output, IsEmpty());
  EXPECT_THAT(result.errors,
              HasSubstr("It was not run, because the first program ended with exit status 5."));
  EXPECT_TRUE(verified().at("changed").is_null());
}

TEST_F(Verify, DoesNotRunTheChangedProgramIfThereIsNothingToCompare) {
  const CommandResult result = verify("$PROGRAM say=two", {"init"});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.output, IsEmpty());
  EXPECT_THAT(result.errors, HasSubstr("It was not run: the first program did no work on a GPU."));
}

TEST_F(Verify, PassesTheStatusOfTheChangedProgramOn) {
  const CommandResult result = verify("$PROGRAM init pinned=20 exit=6", {"init", "steps=20"});
  EXPECT_EQ(result.status, 6);
  EXPECT_THAT(result.errors, AllOf(HasSubstr("It ended with exit status 6, so nothing is compared."),
                                   Not(HasSubstr("as predicted"))));
  EXPECT_THAT(verified().at("comparisons"), IsEmpty());
  EXPECT_EQ(verify("no-such-program", {"init", "steps=20"}).status, 127);
}

TEST_F(Verify, AFailureLeavesTheReportOfTheFirstProgram) {
  command_.environment.push_back("TMPDIR=" + command_.home().string());
  const CommandResult result = verify("rm -r $PENSTOCK_RECORD; : >$PENSTOCK_RECORD", {"init", "steps=20"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.errors, HasSubstr("GPU 0: 18 steps"));
  EXPECT_THAT(verified().at("remark").get<std::string>(),
              AllOf(HasSubstr("Nothing is compared. "),
                    HasSubstr("cannot be read: Not a directory. Its recordings stay in")));
  EXPECT_TRUE(verified().at("changed").is_null());
}

TEST_F(Verify, ComparesProcessesInTheirOrder) {
  const CommandResult other =
      verify("$PROGRAM init pinned=20; $PROGRAM init pinned=20", {"init", "steps=20"});
  EXPECT_EQ(other.status, 0);
  EXPECT_THAT(other.errors,
              HasSubstr("2 of its processes used a GPU, and 1 before, so nothing is compared."));
  const CommandResult result = run_script("$PROGRAM init steps=20; $PROGRAM init steps=20",
                                          {"--json", path("report.json"), "--html", path("page.html"),
                                           "--verify", "$PROGRAM init pinned=20; $PROGRAM init steps=20"});
  EXPECT_EQ(result.status, 0);
  const json comparisons = verified().at("comparisons");
  ASSERT_THAT(comparisons, SizeIs(2));
  EXPECT_EQ(gone(comparisons[0][0], "pageable-copies"), true);
  EXPECT_EQ(gone(comparisons[1][0], "pageable-copies"), false);
  const std::string page = read("page.html");
  const json processes = json::parse(read("report.json")).at("processes");
  const auto box = [&](std::size_t process) {
    const std::string name = "process " + std::to_string(processes.at(process).at("process").get<int>());
    const std::size_t begin = page.find(name + ": Verified with ");
    return begin == std::string::npos ? "" : page.substr(begin, page.find("</p>", begin) - begin);
  };
  EXPECT_THAT(box(0), HasSubstr("pageable-copies: gone"));
  EXPECT_THAT(box(1), AllOf(HasSubstr("GPU 0: a step takes"), Not(HasSubstr("pageable-copies: gone"))));
}

TEST_F(Verify, SaysOnceOnThePageOfSeveralProcessesWhyNothingIsCompared) {
  const CommandResult result =
      run_script("$PROGRAM init steps=20; $PROGRAM init steps=20",
                 {"--html", path("page.html"), "--verify", "$PROGRAM init pinned=20"});
  EXPECT_EQ(result.status, 0) << result.errors;
  const std::string page = read("page.html");
  const std::size_t at = page.find("Verified with ");
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(page.find("Verified with ", at + 1), std::string::npos) << "once";
  EXPECT_THAT(page.substr(page.rfind('<', at), page.find("</p>", at) - page.rfind('<', at)),
              AllOf(StartsWith("<p class=\"note\">Verified with $PROGRAM init pinned=20<br>\n"),
                    HasSubstr("so nothing is compared.")))
      << "not as of one process";
}

TEST_F(Verify, SaysWhatIsWrongWithTheCommand) {
  const CommandResult alone = command_.run({"doctor", "--verify", "true"});
  EXPECT_EQ(alone.status, 2);
  EXPECT_THAT(alone.errors, HasSubstr("a program behind -- is required"));
  EXPECT_EQ(command_.run({"doctor", "--verify", "true", "--record", "run", "--", "true"}).status, 2);
  EXPECT_EQ(command_.run({"doctor", "--verify", "", "--", "true"}).status, 2);
}

}  // namespace
}  // namespace penstock
