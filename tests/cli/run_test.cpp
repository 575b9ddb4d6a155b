#include "cli/command.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

namespace penstock::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Run : public ::testing::Test {
 protected:
  Run() { command_.environment.emplace_back("PENSTOCK_FAKE_DRIVER=" PENSTOCK_FAKE_DRIVER); }

  [[nodiscard]] std::string report() const { return command_.home() / "run.json"; }
  CommandResult run(const std::string& scenario) {
    return command_.run({"run", "--json", report(), "--", PENSTOCK_RUN_PROGRAM, scenario});
  }
  /// Runs a scenario that must go well, and returns the report about it.
  nlohmann::json examine(const std::string& scenario) {
    last_ = run(scenario);
    EXPECT_EQ(last_.status, 0) << last_.errors;
    return nlohmann::json::parse(read_text(report()));
  }
  static long passed_on(const nlohmann::json& report, const char* reason) {
    return report["passed_on"][reason]["calls"];
  }
  static constexpr long kCompared = 2;  // copies before the scenario
  static constexpr long kHalves = 6;    // the same of half the size, where it comes, too; as many are taken

  Command command_;
  CommandResult last_;
};

TEST_F(Run, EveryEntryBringsTheBytesAndIsTaken) {
  const auto report = examine("entries");
  // Each up and down: five blocking entries, four on five streams, two of batches, on three, of two copies
  // each.
  EXPECT_EQ(report["taken"]["calls"], kHalves + 2 * (2 * (5 + 4 * 5) + 2 * 2 * (3 + 4) + 2));
  EXPECT_EQ(passed_on(report, "first"), kCompared + kHalves);
  EXPECT_EQ(report["nothing_to_gain"], false);
  EXPECT_GT(report["seconds_saved"], 0.0);
}

TEST_F(Run, KeepsTheOrderOfStreamsAndLeavesTheSourceFree) {
  const auto report = examine("order");
  EXPECT_EQ(report["taken"]["calls"], kHalves + 3 * 5 * (1 + 1 + 2 + 1) + 2 * 3 * (1 + 2 + 2 + 2));
}

TEST_F(Run, PassesOnBatchesThatReadHostMemoryInStreamOrder) {
  const auto report = examine("ordered-batches");
  EXPECT_EQ(passed_on(report, "form"), 2 + 2);
  EXPECT_EQ(report["taken"]["calls"], kHalves + 1 + 2);
}

TEST_F(Run, PassesOnOtherForms) {
  const auto report = examine("other-forms");
  EXPECT_EQ(passed_on(report, "form"), 1 + 1 + 2 + 2);
  EXPECT_EQ(passed_on(report, "other_memory"), 2);
  EXPECT_EQ(report["taken"]["calls"],
            kHalves + 5 + (1 + 2 + 1) + 2 + 2);  // with those to look at the results
  EXPECT_THAT(last_.errors,
              HasSubstr("6 copies (100 MiB) of rows apart, of arrays or in a batch with others"));
}

TEST_F(Run, PassesOnOtherMemory) {
  const auto report = examine("other-memory");
  EXPECT_EQ(passed_on(report, "other_memory"), 5);
  EXPECT_EQ(passed_on(report, "small"), 1);
  EXPECT_EQ(report["taken"]["calls"], 1);  // to look at the result
}

TEST_F(Run, PassesOnWhatIsCaptured) {
  const auto report = examine("capture");
  EXPECT_EQ(passed_on(report, "capture"), 3 + 2 * 2);
  EXPECT_EQ(report["taken"]["calls"], kHalves + 3 * (2 + 1) + 2 * (2 * 2 + 1));
}

TEST_F(Run, AFailedCallOfTheDriverLosesNoCopy) {
  const auto report = examine("failures");
  EXPECT_GT(passed_on(report, "refused"), 10);
  EXPECT_GE(report["taken"]["calls"], 1);
}

TEST_F(Run, TheErrorsOfAFailedContextStay) { examine("sticky"); }

TEST_F(Run, AForkedChildIsLeftToTheDriver) {
  const auto report = examine("forked");
  EXPECT_EQ(report["taken"]["calls"], 2);
  EXPECT_EQ(report["processes"], 1);
}

TEST_F(Run, AProgramMayEndWhileItCopies) {
  for (int i = 0; i < 5; ++i) EXPECT_GT(examine("exiting")["taken"]["calls"], 0);
}

TEST_F(Run, SaysWhileItRunsWhatWasTakenSoFar) {
  command_.environment.emplace_back("PENSTOCK=" PENSTOCK_COMMAND);
  EXPECT_EQ(examine("reporting")["taken"]["calls"], 1);
  const std::string line = "took 1 copy (20.0 MiB) of 16 MiB to 64 MiB to the device";
  const auto first = last_.errors.find(line);
  ASSERT_NE(first, std::string::npos) << last_.errors;
  EXPECT_NE(last_.errors.find(line, first + 1), std::string::npos) << "at the end only: " << last_.errors;
  const std::string own = std::to_string(::getpid());
  EXPECT_THAT(command_.run({"run", "--report", own}).errors, HasSubstr("was not started by penstock run"));
  EXPECT_THAT(command_.run({"run", "--report", "99999999"}).errors, HasSubstr("is not there"));
  EXPECT_THAT(command_.run({"run", "--report", own, "--json", "-"}).errors, HasSubstr("leave out all else"));
}

TEST_F(Run, AKilledProgramIsReportedToo) {
  const CommandResult result = run("killed");
  EXPECT_EQ(result.status, 128 + SIGKILL);
  EXPECT_EQ(nlohmann::json::parse(read_text(report()))["taken"]["calls"], 1);
  EXPECT_THAT(result.errors, HasSubstr("took 1 copy (20.0 MiB) of 16 MiB to 64 MiB to the device at"));
}

TEST_F(Run, AProgramMayCloseAllFiles) { EXPECT_EQ(examine("closed")["taken"]["calls"], 4); }

TEST_F(Run, AProgramMayReplaceMalloc) {
  command_.environment.emplace_back("LD_PRELOAD=" PENSTOCK_RUN_MALLOC);
  EXPECT_EQ(examine("read-only")["taken"]["calls"], 2);
  EXPECT_THAT(last_.errors, HasSubstr("malloc was replaced\n"));
}

TEST_F(Run, SixtyFourThreadsGetTheirBytes) { EXPECT_GT(examine("threads")["taken"]["calls"], 20); }

TEST_F(Run, ACopyWaitsForNoOtherStream) {
  const auto report = examine("blocked-streams");
  EXPECT_EQ(passed_on(report, "busy"), 1);
  EXPECT_EQ(report["taken"]["calls"], 2 * kHalves + 4 + 5);
}

TEST_F(Run, LeavesSizesToADriverThatIsAsFast) {
  const auto report = examine("fast-driver");
  EXPECT_EQ(report["taken"]["calls"], 3);
  EXPECT_EQ(passed_on(report, "first"), 3);
  EXPECT_EQ(passed_on(report, "slower"), 14);
}

TEST_F(Run, ReadsMemoryThatCannotBeWritten) { examine("read-only"); }

TEST_F(Run, SaysThatThereIsNothingToGain) {
  const CommandResult result = run("nothing");
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.errors, "penstock run: This program has nothing to gain.\n");
  EXPECT_EQ(nlohmann::json::parse(read_text(report()))["nothing_to_gain"], true);
}

TEST_F(Run, SaysWhatBecameOfDataLoaders) {
  const auto run_program = [this](const std::string& script) {
    return command_.run({"run", "--feed", "--json", report(), "--", "/bin/sh", "-c", script});
  };
  const auto loaders = [this] { return nlohmann::json::parse(read_text(report()))["loaders"]; };
  command_.environment.emplace_back("PYTHONPATH=/mine");
  const CommandResult result = run_program(R"(
    folder=${PYTHONPATH%:/mine}
    grep -q torch.utils.data $folder/sitecustomize.py || exit 9
    echo '[{"place": "train.py:3", "device": "cuda:0", "batches": 40, "fed": 35, "why": ""},
           {"place": "train.py:4", "device": "cuda:1", "batches": 40, "fed": 9, "why": "stopped"}]' >$folder/feed.1.json
    echo '[{"place": "train.py:5", "device": "", "batches": 4, "fed": 0, "why": "not copied"}]' >$folder/feed.2.json
    echo '[{"place' >$folder/feed.3.json)");
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(
      result.errors,
      AllOf(HasSubstr("penstock run: fed 35 of 40 batches of the DataLoader of train.py:3 to cuda:0\n"),
            HasSubstr(
                "9 of 40 batches of the DataLoader of train.py:4 to cuda:1, then left it alone: stopped\n"),
            HasSubstr("penstock run: left the DataLoader of train.py:5 alone: not copied\n")));
  EXPECT_EQ(loaders().size(), 3);
  EXPECT_THAT(run_program("exit 0").errors, HasSubstr("saw no DataLoader of PyTorch\n"));
  EXPECT_TRUE(loaders().empty());
  EXPECT_TRUE(examine("nothing")["loaders"].is_null());
}

TEST_F(Run, KeepsWhatIsPreloadedAlready) {
  const CommandResult library = command_.run({"run", "--library"});
  ASSERT_EQ(library.status, 0) << library.errors;
  EXPECT_THAT(library.output, HasSubstr("/libpenstock_run.so\n"));
  command_.environment.emplace_back("LD_PRELOAD=libm.so.6");
  const std::vector<std::string> shows = {"run", "--", "/bin/sh", "-c",
                                          "echo $LD_PRELOAD; echo $THP_MEM_ALLOC_ENABLE; exit 7"};
  const CommandResult result = command_.run(shows);
  EXPECT_EQ(result.status, 7);
  EXPECT_EQ(result.output, "libm.so.6:" + library.output + "1\n");
  command_.environment.emplace_back("THP_MEM_ALLOC_ENABLE=0");
  EXPECT_THAT(command_.run(shows).output, HasSubstr("\n0\n"));
}

TEST_F(Run, WorksWhenPreloadedByHand) {
  const CommandResult result =
      command_.run_script("LD_PRELOAD=$(\"$PENSTOCK\" run --library) " PENSTOCK_RUN_PROGRAM " entries");
  EXPECT_EQ(result.status, 0) << result.errors;
}

TEST_F(Run, SaysWhyAProgramCannotBeRun) {
  const auto complaint = [this](const std::vector<std::string>& program) {
    std::vector<std::string> words = {"run", "--"};
    words.insert(words.end(), program.begin(), program.end());
    const CommandResult result = command_.run(words);
    EXPECT_NE(result.status, 0);
    return result.errors;
  };
  EXPECT_THAT(complaint({"no-such-program"}), HasSubstr("there is no program 'no-such-program' in the PATH"));
  EXPECT_THAT(complaint({}), HasSubstr("write penstock run -- python train.py"));
  EXPECT_THAT(command_.run({"run", "python", "train.py"}).errors,
              HasSubstr("to run a program, write penstock run -- python train.py"));
  const std::string program = command_.home() / "program";
  const auto write = [&](int place, char value) {
    std::filesystem::copy_file(PENSTOCK_RUN_PROGRAM, program,
                               std::filesystem::copy_options::overwrite_existing);
    std::fstream file(program, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(place);
    file.put(value);
  };
  if (::geteuid() == 0) {
    write(7, 0);  // as it was
    ASSERT_EQ(::chown(program.c_str(), 1, 1), 0);
    for (const mode_t mode : {04755, 02755}) {
      ASSERT_EQ(::chmod(program.c_str(), mode), 0);
      EXPECT_THAT(complaint({program}), HasSubstr("runs with the rights of its owner (setuid or setgid)"));
    }
    std::filesystem::remove(program);
  }
  write(4, 1);  // the class of 32 bits
  EXPECT_THAT(complaint({program}), HasSubstr("is a program of 32 bits, so its copies cannot be taken"));
  write(56, 1);  // one program header, which is not that of the loader
  EXPECT_THAT(complaint({program}), HasSubstr("is statically linked, so its copies cannot be taken"));
}

}  // namespace
}  // namespace penstock::testing
