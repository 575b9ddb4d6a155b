#include "cli/command.hpp"
#include "support/matchers.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace penstock {
namespace {

namespace fs = std::filesystem;
using testing::CommandResult;
using testing::expect_complaint;

/// The command with a python3 in the PATH that is a shell script.
class Doctor : public testing::CommandTest {
 protected:
  Doctor() {
    write("train.py", "");
    command_.environment.push_back("PATH=" + path("bin"));
  }
  void write_python(const std::string& script) const {
    write("bin/python3", "#!/bin/sh\n" + script);
    fs::permissions(command_.home() / "bin/python3", fs::perms::owner_all);
  }
  [[nodiscard]] std::string loader(const std::string& name = "loader") const {
    return path("train.py") + ":" + name;
  }
  [[nodiscard]] CommandResult examine(const std::vector<std::string>& more = {}) const {
    return command_.run(testing::joined({{"doctor", "--loader", loader()}, more}));
  }
};

TEST_F(Doctor, TellsPythonWhatToExamine) {
  write_python(
      "eval \"echo verdict >&$7\"; shift 2; for word in \"$@\"; do echo \"<$word>\"; done; echo trouble >&2");
  const CommandResult result = examine({"--seconds", "0.5", "--step", "12.5"});
  EXPECT_EQ(result.status, 0) << result.errors;
  const std::string file = path("train.py");
  EXPECT_THAT(result.output, StartsWith("<" + file + ">\n<loader>\n<0.5>\n<12.5>\n<"));
  EXPECT_EQ(result.errors, "trouble\n");
  EXPECT_THAT(examine().output, HasSubstr("<2>\n<>\n<"));
}

TEST_F(Doctor, TakesAWordForWhatToDo) {
  write_python("eval \"echo verdict >&$7\"; shift 2; for word in \"$@\"; do echo \"<$word>\"; done");
  const CommandResult result = command_.run({"doctor", "loader", loader(), "--step", "12.5"});
  EXPECT_EQ(result.status, 0) << result.errors;
  EXPECT_EQ(result.output, examine({"--step", "12.5"}).output);
  expect_complaint(command_.run({"doctor", "loader"}), 2,
                   "FILE.py:NAME is required; see penstock doctor loader --help");
  expect_complaint(command_.run({"doctor", "loader", loader(), "--html", "x"}), 2, "--html");
}

TEST_F(Doctor, RunsAProgramThatImportsThePackage) {
  write_python("eval \"echo verdict >&$7\"; [ \"$1\" = -c ] && echo \"$2\"");
  EXPECT_THAT(examine().output, HasSubstr("from penstock._doctor.command import main"));
}

TEST_F(Doctor, SplitsTheNameOffAtTheLastColon) {
  write_python("eval \"echo verdict >&$7\"; echo \"$3 $4\"");
  write("a:b.py", "");
  const CommandResult result = command_.run({"doctor", "--loader", path("a:b.py") + ":make"});
  EXPECT_THAT(result.output, HasSubstr("a:b.py make\n"));
}

TEST_F(Doctor, LeavesErrorsToPython) {
  write_python("echo why >&2; exit 1");
  const CommandResult result = examine();
  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(result.errors, "why\n");
  write_python("exit 130");
  EXPECT_EQ(examine().status, 130);
}

TEST_F(Doctor, DemandsAVerdict) {
  for (const std::string status : {"0", "2", "9"}) {
    write_python("exit " + status);
    expect_complaint(examine(), 1, "python3 ended without a verdict, with exit status " + status);
  }
  write_python("eval \"echo verdict >&$7\"; exit 9");
  expect_complaint(examine(), 1, "its dataset must not end it either");
}

TEST_F(Doctor, SaysWhichSignalEndedPython) {
  write_python("kill -9 $$");
  expect_complaint(examine(), 1, "signal 9");
}

TEST_F(Doctor, SaysWhatToInstallIfThereIsNoPython) {
  expect_complaint(examine(), 1, "no python3 in the PATH; install Python");
}

TEST_F(Doctor, WritesTheJsonOfPython) {
  write_python("eval \"echo '{\\\"schema\\\": 1}' >&$7\"; echo text");
  const CommandResult to_output = examine({"--json", "-"});
  ASSERT_EQ(to_output.status, 0) << to_output.errors;
  EXPECT_EQ(to_output.output, "{\"schema\": 1}\n");
  EXPECT_EQ(to_output.errors, "text\n") << "what the user's program prints does not mix with it";
  const CommandResult to_file = examine({"--json", path("verdict.json")});
  ASSERT_EQ(to_file.status, 0) << to_file.errors;
  EXPECT_EQ(to_file.output, "text\n");
  EXPECT_EQ(read("verdict.json"), "{\"schema\": 1}\n");
}

TEST_F(Doctor, KeepsAnOldFileIfPythonFails) {
  write_python("eval \"echo half >&$7\"; exit 1");
  write("verdict.json", "old");
  EXPECT_EQ(examine({"--json", path("verdict.json")}).status, 1);
  EXPECT_EQ(read("verdict.json"), "old");
}

TEST_F(Doctor, TellsThatPythonEndsWithoutAVerdict) {
  write_python("exit 0");
  write("verdict.json", "old");
  const CommandResult result = examine({"--json", path("verdict.json")});
  expect_complaint(result, 1, "python3 ended without a verdict, with exit status 0; if ");
  EXPECT_EQ(read("verdict.json"), "old");
}

TEST_F(Doctor, DoesNotReplaceTheProgram) {
  write_python("exit 0");
  expect_complaint(examine({"--json", path("train.py")}), 2, "the loader's program");
}

TEST_F(Doctor, StopsPythonIfItIsInterrupted) {
  write_python(
      "trap 'echo told >\"$HOME/told\"; exit 130' TERM\n"
      "echo ready >&2\n"
      "while :; do /bin/sleep 0.05; done\n");
  const CommandResult result = command_.interrupt({"doctor", "--loader", loader()}, "ready", SIGINT);
  EXPECT_EQ(result.status, 130);
  EXPECT_THAT(result.errors, HasSubstr("penstock: interrupted; there is no verdict\n"));
  EXPECT_EQ(read("told"), "told\n");
}

TEST_F(Doctor, GivesPythonTheSignalsOfAShell) {
  write_python(
      "while read -r name mask; do\n"
      "  if [ \"$name\" = SigIgn: ]; then echo \"$mask\"; fi\n"
      "  if [ \"$name\" = SigBlk: ]; then echo \"$mask\" >&2; fi\n"
      "done </proc/self/status\n"
      "eval \"echo verdict >&$7\"");
  const CommandResult result = examine();
  ASSERT_EQ(result.status, 0) << result.errors;
  const std::uint64_t ignored = std::stoull(result.output, nullptr, 16);
  EXPECT_EQ(ignored & (std::uint64_t{1} << (SIGPIPE - 1)), 0u);
  EXPECT_EQ(ignored & (std::uint64_t{1} << (SIGXFSZ - 1)), 0u);
  EXPECT_EQ(std::stoull(result.errors, nullptr, 16), std::uint64_t{1} << (SIGINT - 1))
      << "Python's start would end with a traceback";
}

TEST_F(Doctor, RefusesWrongUse) {
  write_python("exit 0");
  expect_complaint(command_.run({"doctor"}), 2, "TRACE is required; see penstock doctor --help");
  expect_complaint(command_.run({"doctor", "--loader", "train.py"}), 2, "not FILE.py:NAME");
  expect_complaint(command_.run({"doctor", "--loader", ":loader"}), 2, "not FILE.py:NAME");
  expect_complaint(command_.run({"doctor", "--loader", "train.py:"}), 2, "not FILE.py:NAME");
  expect_complaint(command_.run({"doctor", "--loader=train:loader"}), 2, "not a Python file");
  expect_complaint(command_.run({"doctor", "--loader", "nowhere.py:loader"}), 1, "no file 'nowhere.py'");
  expect_complaint(examine({"--seconds", "0"}), 2, "'0' is not a time from 0.01 to 3600 seconds");
  expect_complaint(examine({"--step", "slow"}), 2, "'slow' is not a time from 0 to 1000000 milliseconds");
  expect_complaint(examine({"--step", "-1"}), 2, "'-1'");
  expect_complaint(examine({"--step", "nan"}), 2, "'nan'");
}

/// Python's own program, with the first python3 of the machine. It has no penstock of ours in an empty
/// folder.
TEST_F(Doctor, SaysWhatToInstallIfThereIsNoPackage) {
  if (::access("/usr/bin/python3", X_OK) != 0) GTEST_SKIP() << "there is no /usr/bin/python3";
  write_python("exec /usr/bin/python3 -I -S \"$@\"");
  const CommandResult result = examine();
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.errors, StartsWith("penstock: "));
  EXPECT_THAT(result.errors, HasSubstr("Install this version of penstock"));
  EXPECT_THAT(result.errors, Not(HasSubstr("Traceback")));
}

}  // namespace
}  // namespace penstock
