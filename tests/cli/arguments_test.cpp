#include "cli/command.hpp"
#include "cli/datasets.hpp"
#include "support/matchers.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace penstock {
namespace {

using nlohmann::json;
using testing::Command;
using testing::CommandResult;

using Words = std::vector<std::string>;

constexpr std::array kCommands{"info", "link", "feed", "run", "doctor"};

TEST(Arguments, WhatIsOutOfRangeIsRefused) {
  const Command command;
  const auto refuses = [&](const Words& words, const std::string& part) {
    const CommandResult result = command.run(words);
    EXPECT_EQ(result.status, 2) << result.errors;
    EXPECT_THAT(result.errors, HasSubstr(part));
    EXPECT_THAT(result.errors, HasSubstr(words[words.size() - 2]));
  };
  for (const char* step : {"nan", "inf", "-1", "1e7", "1ms", "", "0x1"}) {
    refuses({"feed", "x", "--step-ms", step}, "from 0 to 1000000 milliseconds");
  }
  const std::string past = "18446744073709551616";
  refuses({"feed", "x", "--batch", past}, past + " is too large; use at most 9223372036854775807");
  refuses({"feed", "x", "--batch", "1.5"}, "'1.5' is not a whole number of 1 or more");
  refuses({"feed", "x", "--batch", "-1"}, "'-1' is not a whole number of 1 or more");
  refuses({"feed", "x", "--epochs", "0"}, "'0' is not a whole number of 1 or more");
  refuses({"feed", "x", "--threads", "4294967297"}, "'4294967297' is not a whole number from 1 to 16");
  refuses({"feed", "x", "--prefetch", "65"}, "'65' is not a whole number from 1 to 64");
  refuses({"link", "--repetitions", "100001"}, "from 1 to 100000");
}

TEST(Arguments, WhatIsEmptyIsRefused) {
  const Command command;
  for (const Words& words :
       {Words{"feed", ""}, Words{"feed", "x", "--json", ""}, Words{"feed", "x", "--report", ""},
        Words{"feed", "x", "--profile", ""}, Words{"info", "--json", ""}}) {
    const CommandResult result = command.run(words);
    EXPECT_EQ(result.status, 2) << result.errors;
    EXPECT_THAT(result.errors, HasSubstr("it is empty"));
  }
}

TEST(Arguments, JsonMeansTheSameInEveryCommand) {
  const Command command;
  testing::write_npy(command.home() / "x.npy", "|u1", {4, 2}, std::vector<std::uint8_t>(8));
  const std::string link = "link --device host --quick --max-bytes 64KiB --repetitions 2 --no-store";
  for (const std::string words : {"info --device host", "feed x.npy --device host", link.c_str()}) {
    const CommandResult standard = command.run_script("\"$PENSTOCK\" " + words + " --json -");
    ASSERT_EQ(standard.status, 0) << standard.errors;
    const json told = json::parse(standard.output);
    const CommandResult file = command.run_script("\"$PENSTOCK\" " + words + " --json out.json");
    ASSERT_EQ(file.status, 0) << file.errors;
    EXPECT_FALSE(json::accept(file.output)) << "text for people";
    const json written = json::parse(std::ifstream(command.home() / "out.json"));
    for (const auto& [name, value] : told.items()) EXPECT_TRUE(written.contains(name)) << name;
  }
}

TEST(Arguments, HelpIsForPeople) {
  const Command command;
  for (const char* name : kCommands) {
    const CommandResult help = command.run({name, "--help"});
    EXPECT_EQ(help.status, 0);
    EXPECT_THAT(help.output, HasSubstr("Examples:\n  penstock "));
    for (const char* code :
         {"UINT", "INT:", "{false}", "FLOAT", "TEXT", "Range", "18446744073709551615", "in ["}) {
      EXPECT_THAT(help.output, Not(HasSubstr(code))) << name;
    }
  }
  EXPECT_THAT(command.run({"--help"}).output, HasSubstr("Examples:\n  penstock info"));
  EXPECT_THAT(command.run({"feed", "--help"}).output, HasSubstr("1 to 64"));
}

TEST(Arguments, TheExamplesOfTheHelpWork) {
  const Command command;
  testing::write_npy(command.home() / "images.npy", "|u1", {600, 2}, std::vector<std::uint8_t>(1200));
  testing::write_npy(command.home() / "labels.npy", "<i8", {600}, std::vector<std::int64_t>(600));
  testing::write_npy(command.home() / "set.npz", "|u1", {600}, std::vector<std::uint8_t>(600));
  std::ofstream(command.home() / "train.py") << "";
  for (const char* trace : {"trace.json", "trace.json.gz", "rank0.json", "rank1.json"}) {
    std::ofstream(command.home() / trace) << R"({"traceEvents": [
      {"ph": "X", "cat": "kernel", "ts": 1, "dur": 1, "args": {"device": 0}}]})";
  }
  std::filesystem::create_directories(command.home() / "bin");
  const auto write_program = [&](const char* name, const char* script) {
    std::ofstream(command.home() / "bin" / name) << "#!/bin/sh\n" << script;
    std::filesystem::permissions(command.home() / "bin" / name, std::filesystem::perms::owner_all);
  };
  for (const char* name : {"python3", "python", "torchrun"})
    write_program(name, "[ -z \"$7\" ] || eval \"echo verdict >&$7\"\n");
  write_program("penstock", R"(
    case "$1" in
      link) set -- "$@" --max-bytes 64KiB --repetitions 2 --quick ;;
    esac
    exec "$PENSTOCK" "$@")");
  std::size_t examples = 0;
  for (const std::string name :
       {"", "info", "link", "feed", "run", "doctor", "doctor run", "doctor read", "doctor loader"}) {
    const CommandResult help = command.run_script("\"$PENSTOCK\" " + name + " --help");
    std::istringstream lines(help.output.substr(help.output.find("Examples:")));
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("  penstock ")) continue;
      ++examples;
      EXPECT_THAT(line.substr(2), Not(HasSubstr("  "))) << "what it is for has a line of its own";
      if (line.find("cuda:1") != std::string::npos) continue;  // needs two GPUs
      const CommandResult result = command.run_script("PATH=\"$PWD/bin:$PATH\"\n" + line);
      EXPECT_EQ(result.status, 0) << line << "\n" << result.errors;
    }
  }
  EXPECT_EQ(examples, 32u);
}

}  // namespace
}  // namespace penstock
