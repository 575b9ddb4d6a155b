#include "cli/command.hpp"

#include "support/matchers.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/device/device.hpp>
#include <penstock/transfer/group_profile.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <csignal>
#include <fstream>

namespace penstock {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::Command;
using testing::CommandResult;
using testing::expect_complaint;
using testing::read_text;

const std::vector<std::string> kMeasure{"link",        "--device", "host",          "--quick",
                                        "--max-bytes", "64KiB",    "--repetitions", "2"};

std::vector<std::string> measure_and(const std::vector<std::string>& more) {
  return testing::joined({kMeasure, more});
}

std::vector<fs::path> files_below(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  return files;
}

TEST(CommandLine, SaysItsVersionAndHelps) {
  const Command command;
  const CommandResult version = command.run({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_THAT(version.output, ::testing::MatchesRegex("penstock [0-9]+\\.[0-9]+\\.[0-9]+\n"));
  const CommandResult help = command.run({"--help"});
  EXPECT_EQ(help.status, 0);
  for (const char* name : {"info", "link", "feed", "doctor"}) {
    EXPECT_THAT(help.output, HasSubstr(name));
    EXPECT_EQ(command.run({name, "--help"}).status, 0);
  }
}

TEST(CommandLine, CompletesInShells) {
  const Command command;
  const CommandResult completed = command.run_script(R"sh(cat >complete.sh <<'END'
penstock() { "$PENSTOCK" "$@"; }
eval "$(penstock --completion bash)"
complete_last() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _penstock; echo "${COMPREPLY[@]}"; }
complete_last penstock do
complete_last penstock doctor r
complete_last penstock doctor run --record folder --verif
complete_last penstock run -- python --ver
END
bash complete.sh)sh");
  EXPECT_EQ(completed.output, "doctor\nrun read\n--verify\n\n") << completed.errors;
  EXPECT_THAT(command.run({"--complete", "doctor"}).output, HasSubstr("run Run a CUDA program"));
  EXPECT_THAT(command.run({"--completion", "fish"}).output, StartsWith("complete -c penstock -a "));
  expect_complaint(command.run({"--completion", "tcsh"}), 2, "tcsh");
}

TEST(CommandLine, RefusesWrongUseWithOneLineAndStatusTwo) {
  const Command command;
  expect_complaint(command.run({}), 2, "subcommand");
  expect_complaint(command.run({"fly"}), 2, "fly");
  expect_complaint(command.run({"info", "--loud"}), 2, "--loud");
  expect_complaint(command.run({"feed"}), 2, "SOURCES");
  expect_complaint(command.run({"link", "--max-bytes", "1 parsec"}), 2, "not a size");
  expect_complaint(command.run({"link", "--repetitions", "-1"}), 2, "--repetitions");
  expect_complaint(command.run({"link", "--no-store", "--profile", "x"}), 2, "--no-store");
}

TEST(CommandLine, ReportsAFailureWithOneLineAndStatusOne) {
  const Command command;
  expect_complaint(command.run({"info", "--device", "abacus"}), 1, "abacus");
  expect_complaint(command.run({"link", "--device", "cuda:0"}), 1, "/nowhere/libcuda.so.1");
  expect_complaint(command.run({"link", "--device", "host", "--max-bytes", "4KiB"}), 1, "64 KiB");
}

TEST(CommandInfo, ShowsDevicesAndWhatIsMissing) {
  const Command command;
  const CommandResult result = command.run({"info"});
  EXPECT_EQ(result.status, 0) << result.errors;
  EXPECT_EQ(result.errors, "");
  EXPECT_THAT(result.output, HasSubstr("\nhost  "));
  EXPECT_THAT(result.output, HasSubstr("missing\n  There is no NVIDIA driver"));
  EXPECT_THAT(result.output, HasSubstr("/nowhere/libcuda.so.1"));
  EXPECT_THAT(result.output, HasSubstr("none; measure the link with `penstock link --device host`"));
}

TEST(CommandInfo, WritesJson) {
  const Command command;
  const CommandResult result = command.run({"info", "--json", "-"});
  ASSERT_EQ(result.status, 0) << result.errors;
  const json value = json::parse(result.output);
  EXPECT_EQ(value["devices"].back()["spec"], "host");
  EXPECT_GT(value["devices"].back()["memory_bytes"].get<std::size_t>(), 0u);
  EXPECT_TRUE(value["devices"].back()["link_profile"].is_null());
  EXPECT_EQ(value["host"]["processors"], host_topology().processors);
  EXPECT_FALSE(value["missing"].empty());
}

TEST(CommandInfo, ShowsOneDevice) {
  const Command command;
  const CommandResult result = command.run({"info", "--json", "-", "--device", "host:memory=64MiB"});
  ASSERT_EQ(result.status, 0) << result.errors;
  const json value = json::parse(result.output);
  ASSERT_EQ(value["devices"].size(), 1u);
  EXPECT_EQ(value["devices"][0]["free_bytes"], 64 * kMiB);
}

TEST(CommandInfo, ShowsTheFakeDriversDevices) {
  Command command;
  command.environment.back() = std::string("PENSTOCK_LIBCUDA=") + PENSTOCK_FAKE_DRIVER;
  const CommandResult result = command.run({"info", "--json", "-"});
  ASSERT_EQ(result.status, 0) << result.errors;
  const json value = json::parse(result.output);
  ASSERT_GE(value["devices"].size(), 2u) << result.output;
  EXPECT_EQ(value["devices"][0]["backend"], "cuda");
  EXPECT_EQ(value["devices"][0]["trouble"], "");
  EXPECT_EQ(command.run({"info"}).status, 0);
}

TEST(CommandLink, MeasuresPrintsAndStores) {
  const Command command;
  const fs::path json_file = command.home() / "all.json";
  const CommandResult result = command.run(measure_and({"--json", json_file.string()}));
  ASSERT_EQ(result.status, 0) << result.errors;
  for (const char* words : {"pinned H2D", "zero-copy", "64 KiB", "samples of", "host memory copy",
                            "staging by", "ceiling", "GB/s", "The link profile is stored in"}) {
    EXPECT_THAT(result.output, HasSubstr(words));
  }
  // By the size of a sample, and the host's by that of a batch, too.
  EXPECT_THAT(result.output, ContainsRegex("\n64 B +[0-9.]+ +[0-9.]+\n"));
  EXPECT_THAT(result.output, ContainsRegex("\n256 B +[0-9.]+ +[0-9.]+"));
  EXPECT_THAT(result.errors, HasSubstr("% staged H2D\n"));
  EXPECT_THAT(result.errors, Not(HasSubstr("\r"))) << "a bar is for terminals";

  const DeviceInfo info = Device::open("host").info();
  const fs::path file = LinkProfile::file_for(command.home() / ".cache", info);
  std::string why;
  const auto profile = LinkProfile::load(file, info, &why);
  ASSERT_TRUE(profile.has_value()) << why;
  EXPECT_TRUE(profile->measured);
  const json all = json::parse(read_text(json_file));
  EXPECT_EQ(LinkProfile::parse(all["profile"].dump()).to_json(), profile->to_json());

  const json known = json::parse(command.run({"info", "--json", "-", "--device", "host"}).output);
  EXPECT_EQ(known["devices"][0]["link_profile"]["file"], file.string());
}

TEST(CommandLink, MeasuresTheFakeDriversDevice) {
  Command command;
  command.environment.back() = std::string("PENSTOCK_LIBCUDA=") + PENSTOCK_FAKE_DRIVER;
  std::vector<std::string> arguments = kMeasure;
  arguments[2] = "cuda:1";
  const CommandResult result = command.run(arguments);
  ASSERT_EQ(result.status, 0) << result.errors;
  const json known = json::parse(command.run({"info", "--json", "-"}).output);
  EXPECT_TRUE(known["devices"][0]["link_profile"].is_null());
  EXPECT_GT(known["devices"][1]["link_profile"]["h2d_bytes_per_second"].get<double>(), 0);
}

TEST(CommandLink, MeasuresAGroupPrintsAndStores) {
  const Command command;
  const std::vector<std::string> specs{"host:0,link=2,peer=8", "host:1,link=2,peer=8"};
  const fs::path json_file = command.home() / "all.json";
  const CommandResult result = command.run({"link", "--devices", specs[0], specs[1], "--quick", "--max-bytes",
                                            "1MiB", "--repetitions", "2", "--json", json_file.string()});
  ASSERT_EQ(result.status, 0) << result.errors;
  for (const char* words : {"to host:1,link=2,peer=8", "all links together", "fed once", "chunks of",
                            "The link profile is stored in"}) {
    EXPECT_THAT(result.output, HasSubstr(words));
  }
  const DeviceGroup group({Device::open(specs[1]), Device::open(specs[0])});
  std::string why;
  const auto profile =
      GroupProfile::load(GroupProfile::file_for(command.home() / ".cache", group), group, &why);
  ASSERT_TRUE(profile.has_value()) << why;
  EXPECT_GT(profile->members[0].peers[1], 0);
  EXPECT_EQ(GroupProfile::parse(json::parse(read_text(json_file))["profile"].dump()).fed_once,
            profile->fed_once);
  expect_complaint(command.run({"link", "--devices", "host:0"}), 2, "--devices");
  expect_complaint(command.run({"link", "--devices", "host:0", "host:1", "--device", "host"}), 2, "--device");
}

TEST(CommandLink, DrawsABarOnATerminal) {
  const Command command;
  const CommandResult result = command.run_on_terminal(measure_and({"--no-store"}));
  ASSERT_EQ(result.status, 0) << result.errors;
  EXPECT_THAT(result.errors, HasSubstr("\r["));
  EXPECT_THAT(result.errors, HasSubstr("##"));
  EXPECT_THAT(result.errors, EndsWith("\r\033[K")) << "the bar goes when it is done";
  EXPECT_TRUE(files_below(command.home()).empty());
}

TEST(CommandLink, PutsTheProfileWhereItIsTold) {
  Command command;
  const fs::path file = command.home() / "kept" / "here.json";
  const CommandResult result = command.run(measure_and({"--profile", file.string(), "--json", "-"}));
  ASSERT_EQ(result.status, 0) << result.errors;
  EXPECT_EQ(json::parse(result.output)["series"].size(), 12u);
  EXPECT_EQ(files_below(command.home()), std::vector<fs::path>{file});

  command.environment.emplace_back("XDG_CACHE_HOME=" + (command.home() / "xdg").string());
  EXPECT_EQ(command.run(kMeasure).status, 0);
  EXPECT_TRUE(fs::exists(LinkProfile::file_for(command.home() / "xdg", Device::open("host").info())));
}

TEST(CommandLink, OverwritesNoDatasetWithAProfile) {
  Command command;
  const fs::path file = command.home() / "images.npy";
  std::ofstream(file) << "\x93NUMPY and what follows";
  expect_complaint(command.run(measure_and({"--profile", file.string()})), 1, "is not a link profile");
  EXPECT_EQ(read_text(file), "\x93NUMPY and what follows");
}

TEST(CommandLink, EndsCleanlyWhenInterrupted) {
  const Command command;
  for (const int signal : {SIGINT, SIGTERM}) {
    const CommandResult result =
        command.interrupt({"link", "--device", "host", "--max-bytes", "8MiB"}, "host memory copy", signal);
    EXPECT_EQ(result.status, 130) << result.errors;
    EXPECT_THAT(result.errors, EndsWith("penstock: interrupted; nothing was stored\n"));
    EXPECT_EQ(result.output, "");
    EXPECT_TRUE(files_below(command.home()).empty());
  }
}

TEST(CommandLink, KnowsBeforehandWhatItCannotWrite) {
  const Command command;
  const CommandResult result = command.run(measure_and({"--json", "/nowhere/all.json"}));
  expect_complaint(result, 1, "/nowhere/all.json");
}

TEST(CommandLink, NeedsAPlaceForTheProfile) {
  Command command;
  command.environment = {"PENSTOCK_LIBCUDA=/nowhere", "HOME=relative", "XDG_CACHE_HOME="};
  expect_complaint(command.run(kMeasure), 1, "--profile");
  EXPECT_EQ(command.run({"info"}).status, 0);
}

TEST(CommandLink, ReportsAndReplacesADamagedProfile) {
  const Command command;
  const DeviceInfo info = Device::open("host").info();
  const fs::path file = LinkProfile::file_for(command.home() / ".cache", info);
  fs::create_directories(file.parent_path());
  std::ofstream(file) << "{\"format\": ";
  EXPECT_THAT(command.run({"info"}).errors, StartsWith("penstock: ignored: " + file.string()));

  DeviceInfo other = info;
  other.name += " of somebody else";
  LinkProfile::defaults(other).save(file);
  EXPECT_THAT(command.run({"info"}).errors, HasSubstr("of somebody else"));

  const CommandResult measured = command.run(kMeasure);
  EXPECT_EQ(measured.status, 0);
  EXPECT_THAT(measured.errors, HasSubstr("of somebody else"));
  EXPECT_TRUE(LinkProfile::load(file, info).has_value());
}

}  // namespace
}  // namespace penstock
