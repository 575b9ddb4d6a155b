#include "cli/command.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/device/device.hpp>
#include <penstock/transfer/feed_model.hpp>
#include <penstock/transfer/group_profile.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <gmock/gmock.h>
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
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::read_text;
using ::testing::StartsWith;

const std::vector<std::string> kMeasure{"link",        "--device", "host",          "--quick",
                                        "--max-bytes", "64KiB",    "--repetitions", "2"};

std::vector<std::string> measure_and(std::vector<std::string> more) {
  std::vector<std::string> arguments = kMeasure;
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::vector<fs::path> files_below(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  return files;
}

void expect_complaint(const CommandResult& result, int status, const std::string& words) {
  EXPECT_EQ(result.status, status) << result.errors;
  EXPECT_THAT(result.errors, StartsWith("penstock: "));
  EXPECT_THAT(result.errors, HasSubstr(words));
  EXPECT_EQ(std::count(result.errors.begin(), result.errors.end(), '\n'), 1) << result.errors;
  EXPECT_EQ(result.output, "");
}

TEST(CommandLine, SaysItsVersionAndHelps) {
  const Command command;
  const CommandResult version = command.run({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_THAT(version.output, ::testing::MatchesRegex("penstock [0-9]+\\.[0-9]+\\.[0-9]+\n"));
  const CommandResult help = command.run({"--help"});
  EXPECT_EQ(help.status, 0);
  for (const char* name : {"info", "link", "predict", "feed", "load", "doctor"}) {
    EXPECT_THAT(help.output, HasSubstr(name));
    EXPECT_EQ(command.run({name, "--help"}).status, 0);
  }
}

TEST(CommandLine, RefusesWrongUseWithOneLineAndStatusTwo) {
  const Command command;
  expect_complaint(command.run({}), 2, "subcommand");
  expect_complaint(command.run({"fly"}), 2, "fly");
  expect_complaint(command.run({"info", "--loud"}), 2, "--loud");
  expect_complaint(command.run({"predict"}), 2, "BYTES");
  expect_complaint(command.run({"predict", "many"}), 2, "not a size");
  expect_complaint(command.run({"predict", "4KiB", "--from", "paper"}), 2, "paper");
  expect_complaint(command.run({"predict", "4KiB", "--pieces", "0"}), 2, "--pieces");
  expect_complaint(command.run({"link", "--max-bytes", "1 parsec"}), 2, "not a size");
  expect_complaint(command.run({"link", "--repetitions", "-1"}), 2, "--repetitions");
  expect_complaint(command.run({"link", "--no-store", "--profile", "x"}), 2, "--no-store");
}

TEST(CommandLine, ReportsAFailureWithOneLineAndStatusOne) {
  const Command command;
  expect_complaint(command.run({"info", "--device", "abacus"}), 1, "abacus");
  expect_complaint(command.run({"link", "--device", "cuda:0"}), 1, "/nowhere/libcuda.so.1");
  expect_complaint(command.run({"predict", "4KiB", "--from", "pinned", "--to", "pageable"}), 1, "link");
  expect_complaint(command.run({"predict", "4KiB", "--from", "device", "--path", "staged"}), 1, "staged");
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
                            "pinned pool", "ceiling", "GB/s", "The link profile is stored in"}) {
    EXPECT_THAT(result.output, HasSubstr(words));
  }
  // By the size of a sample, and the host's by that of a batch, too.
  EXPECT_THAT(result.output, ContainsRegex("\n64 B +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+\n"));
  EXPECT_THAT(result.output, ContainsRegex("\n256 B +[0-9.]+ +[0-9.]+"));
  EXPECT_THAT(result.errors, HasSubstr("% staged H2D\n"));
  EXPECT_THAT(result.errors, Not(HasSubstr("\r"))) << "a bar is for terminals";
  EXPECT_TRUE(std::all_of(result.output.begin(), result.output.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x80 || c == '\xc2' || c == '\xb5';
  })) << "no UTF-8 locale, no lines and blocks";

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
  const json time = json::parse(
      command.run({"predict", "16KiB", "--device", "host", "--from", "pinned", "--json", "-"}).output);
  EXPECT_TRUE(time["measured"].get<bool>());
  EXPECT_EQ(time["seconds"], profile->predict(16 * kKiB, 1, {MemoryKind::pinned, MemoryKind::device}));
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

TEST(CommandLink, DrawsInUnicodeOnATerminalThatHasIt) {
  Command command;
  command.environment.emplace_back("LANG=C.UTF-8");
  const CommandResult result = command.run_on_terminal(measure_and({"--no-store"}));
  ASSERT_EQ(result.status, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("─"));
  EXPECT_THAT(result.errors, HasSubstr("\r"));
  EXPECT_THAT(result.errors, HasSubstr("█"));
  EXPECT_THAT(result.errors, ::testing::EndsWith("\r\033[K")) << "the bar goes when it is done";
  EXPECT_TRUE(files_below(command.home()).empty());
  command.environment.back() = "LANG=C";
  const CommandResult ascii = command.run(measure_and({"--no-store"}));
  EXPECT_THAT(ascii.output, Not(HasSubstr("─")));
}

TEST(CommandLink, PutsTheProfileWhereItIsTold) {
  Command command;
  const fs::path file = command.home() / "kept" / "here.json";
  const CommandResult result = command.run(measure_and({"--profile", file.string(), "--json", "-"}));
  ASSERT_EQ(result.status, 0) << result.errors;
  EXPECT_EQ(json::parse(result.output)["series"].size(), 19u);
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
    EXPECT_THAT(result.errors, ::testing::EndsWith("penstock: interrupted; nothing was stored\n"));
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
  EXPECT_EQ(command.run({"predict", "1MiB", "--device", "host"}).status, 0);
}

TEST(CommandLink, ReportsAndReplacesADamagedProfile) {
  const Command command;
  const DeviceInfo info = Device::open("host").info();
  const fs::path file = LinkProfile::file_for(command.home() / ".cache", info);
  fs::create_directories(file.parent_path());
  std::ofstream(file) << "{\"format\": ";
  EXPECT_THAT(command.run({"info"}).errors, StartsWith("penstock: ignored: " + file.string()));
  const CommandResult predicted = command.run({"predict", "1MiB", "--device", "host"});
  EXPECT_EQ(predicted.status, 0);
  EXPECT_THAT(predicted.errors, StartsWith("penstock: ignored: "));
  EXPECT_THAT(predicted.output, HasSubstr("careful defaults"));

  DeviceInfo other = info;
  other.name += " of somebody else";
  LinkProfile::defaults(other).save(file);
  EXPECT_THAT(command.run({"info"}).errors, HasSubstr("of somebody else"));

  const CommandResult measured = command.run(kMeasure);
  EXPECT_EQ(measured.status, 0);
  EXPECT_THAT(measured.errors, HasSubstr("of somebody else"));
  EXPECT_TRUE(LinkProfile::load(file, info).has_value());
}

TEST(CommandPredict, PrintsTimeAndPath) {
  const Command command;
  const CommandResult staged = command.run({"predict", "1GiB", "--device", "host"});
  EXPECT_EQ(staged.status, 0) << staged.errors;
  EXPECT_THAT(staged.output, StartsWith("1 GiB from pageable to device memory of host: "));
  EXPECT_THAT(staged.output, HasSubstr("staged path"));
  const CommandResult packed = command.run({"predict", "4MB", "--pieces", "1000", "--device", "host"});
  EXPECT_THAT(packed.output, HasSubstr("in 1000 pieces"));
  EXPECT_THAT(packed.output, HasSubstr("packed path"));
  const CommandResult forced = command.run(
      {"predict", "1MiB", "--device", "host", "--from", "device", "--to", "pinned", "--path", "packed"});
  EXPECT_THAT(forced.output, HasSubstr("from device to pinned memory"));
  EXPECT_THAT(forced.output, HasSubstr("packed path"));
}

TEST(CommandPredict, AsksTheModelForAFeed) {
  const Command command;
  const CommandResult result = command.run(
      {"predict",    "--samples", "8KiB",      "--batch", "128",         "--shuffle", "--from",   "int16",
       "--to",       "float32",   "--step-ms", "2",       "--residency", "25%",       "--gather", "host",
       "--prefetch", "3",         "--threads", "2",       "--device",    "host",      "--json",   "-"});
  ASSERT_EQ(result.status, 0) << result.errors;
  const DeviceInfo info = Device::open("host").info();
  const FeedPrediction expected = predict_feed(LinkProfile::defaults(info), info.tuning,
                                               {.fields = {{.path = GatherPath::host,
                                                            .sample_bytes = 8192,
                                                            .delivered_bytes = 16384,
                                                            .converts = true,
                                                            .resident = 0.25}},
                                                .batch = 128,
                                                .step_seconds = 2e-3,
                                                .prefetch_depth = 3,
                                                .threads = 2});
  const json value = json::parse(result.output);
  EXPECT_EQ(value["seconds"], expected.seconds);
  EXPECT_EQ(value["samples_per_second"], 128 / expected.seconds);
  EXPECT_EQ(value["step_seconds"], 2e-3);
  EXPECT_EQ(value["loader_seconds"], 0);
  EXPECT_EQ(value["stall_seconds"], expected.stall_seconds);
  EXPECT_EQ(value["exposed_transfer_seconds"], expected.exposed_transfer_seconds);
  EXPECT_EQ(value["gather_seconds"], expected.gather_seconds);
  EXPECT_EQ(value["transfer_seconds"], expected.transfer_seconds);
  EXPECT_EQ(value["kernel_seconds"], expected.kernel_seconds);
  EXPECT_EQ(value["batch_seconds"], expected.batch_seconds);
  EXPECT_EQ(value["limited_by"], feed_limit_name(expected.limited_by));
  EXPECT_EQ(value["gather"], "host");
  EXPECT_EQ(value["delivered_bytes"], 16384);
  EXPECT_FALSE(value.contains("workers"));
}

TEST(CommandPredict, TellsWhatWorkersWouldGive) {
  const Command command;
  const std::string file = (command.home() / "verdict.json").string();
  std::ofstream(file)
      << R"({"samples_per_batch": 99.6, "stages": {"fetch": 0.8, "collate": 0.2, "consumer": null},
    "busy_seconds": 0.1, "receive_seconds": 0.002, "workers": {"configured": 3, "processors": 2}})";
  const std::vector<std::string> words{"predict", "--samples", "8KiB", "--verdict", file, "--device", "host"};
  const CommandResult result = command.run(words);
  ASSERT_EQ(result.status, 0) << result.errors;
  for (const char* line : {"\n  loader           33", "\n  workers     a batch every   samples/s\n",
                           "\n  3                  333 ms         300   given\n",
                           "\n  32                51.0 ms        1961   pays\n"}) {
    EXPECT_THAT(result.output, HasSubstr(line));
  }
  std::vector<std::string> for_programs = words;
  for_programs.insert(for_programs.end(), {"--json", "-"});
  const json value = json::parse(command.run(for_programs).output);
  EXPECT_EQ(value["workers"]["given"], 3);
  EXPECT_EQ(value["workers"]["processors"], 2);
  EXPECT_NEAR(value["seconds"].get<double>(), 1.0 / 3, 1e-9);
  std::vector<unsigned> numbers;
  for (const json& each : value["workers"]["predicted"]) {
    numbers.push_back(each["workers"]);
    EXPECT_NEAR(each["samples_per_second"].get<double>() * each["seconds"].get<double>(), 100, 1e-6);
  }
  EXPECT_EQ(numbers, (std::vector<unsigned>{0, 1, 2, 3, 4, 8, 16, 32, 64}));
  EXPECT_EQ(value["workers"]["pays"], 32) << "two processors have 102 ms of each batch to do";
}

TEST(CommandPredict, TakesTheStepAndTheBatchOfAVerdict) {
  const Command command;
  const std::string file = (command.home() / "verdict.json").string();
  std::ofstream(file)
      << R"({"samples_per_batch": 64, "stages": {"fetch": 0.8, "collate": 0.2, "consumer": 1.5},
    "busy_seconds": null, "receive_seconds": null, "workers": {"configured": 2, "processors": 8}})";
  const auto predicted = [&](std::vector<std::string> more) {
    std::vector<std::string> words{"predict",  "--samples", "8KiB",   "--verdict", file,
                                   "--device", "host",      "--json", "-"};
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult result = command.run(words);
    EXPECT_EQ(result.status, 0) << result.errors;
    return json::parse(result.output);
  };
  const json told = predicted({});
  EXPECT_EQ(told["batch"], 64);
  EXPECT_EQ(told["step_seconds"], 1.5);
  EXPECT_EQ(told["limited_by"], "consumer");
  EXPECT_EQ(told["workers"]["processors"], 8);
  const json given = predicted({"--batch", "32", "--step-ms", "2"});
  EXPECT_EQ(given["batch"], 32);
  EXPECT_EQ(given["step_seconds"], 2e-3);
  EXPECT_EQ(given["limited_by"], "fetch");
}

TEST(CommandPredict, RefusesWhatIsNoVerdict) {
  const Command command;
  const std::string file = (command.home() / "verdict.json").string();
  const auto refused = [&](const std::string& text, const std::string& reason) {
    std::ofstream(file) << text;
    expect_complaint(command.run({"predict", "--samples", "8KiB", "--verdict", file}), 1, reason);
  };
  expect_complaint(command.run({"predict", "--samples", "8KiB", "--verdict", file}), 1, "cannot be read");
  refused("{}", "penstock doctor --loader FILE.py:NAME --json");
  refused("not JSON", "is not a loader's verdict");
  refused(R"({"samples_per_batch": 64, "stages": {"fetch": -1, "collate": 0.2, "consumer": 1.5},
    "busy_seconds": null, "receive_seconds": null, "workers": {"configured": 2, "processors": 8}})",
          "is not a loader's verdict");
  expect_complaint(
      command.run({"predict", "--samples", "8KiB", "--verdict", file, "--device", "host", "--json", file}), 2,
      "would overwrite the verdict");
}

TEST(CommandPredict, ChoosesAFeedsGatherAsALoaderDoes) {
  Command command;
  command.environment.back() = std::string("PENSTOCK_LIBCUDA=") + PENSTOCK_FAKE_DRIVER;
  const auto gather = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"predict", "--device", "cuda:0", "--json", "-"};
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult result = command.run(words);
    EXPECT_EQ(result.status, 0) << result.errors;
    return json::parse(result.output)["gather"].get<std::string>();
  };
  EXPECT_EQ(gather({"--samples", "64KiB", "--shuffle"}), "copy-engine");
  EXPECT_EQ(gather({"--samples", "31KiB", "--shuffle"}), "zero-copy");
  EXPECT_EQ(gather({"--samples", "1KiB"}), "copy-engine");
  EXPECT_EQ(gather({"--samples", "1KiB", "--gather", "zero-copy"}), "zero-copy");

  LinkProfile slow =
      LinkProfile::defaults(Device::open("cuda:0", {.driver_library = PENSTOCK_FAKE_DRIVER}).info());
  for (auto& point : slow.curves[LinkProfile::Curve::zero_copy_h2d]) point.seconds *= 100;
  const std::string file = (command.home() / "slow.json").string();
  slow.save(file);
  EXPECT_EQ(gather({"--samples", "1KiB", "--shuffle", "--profile", file}), "host");
}

TEST(CommandPredict, PrintsTheStagesOfAFeed) {
  const Command command;
  const CommandResult result = command.run({"predict", "--samples", "147KiB", "--shuffle", "--step-ms", "900",
                                            "--gather", "host", "--device", "host"});
  ASSERT_EQ(result.status, 0) << result.errors;
  EXPECT_THAT(result.output,
              StartsWith("256 samples of 147 KiB a batch, host gather, to host: a batch every "));
  for (const char* words :
       {"\n  your step        900 ms\n", "\n  waiting for data ", "\n  host gather      ",
        "\n  transfer         ", "\n  cost of a batch  ", "\nlimited by: your step\n", "careful defaults"}) {
    EXPECT_THAT(result.output, HasSubstr(words));
  }
  EXPECT_THAT(result.output, Not(HasSubstr("device gather")));
}

TEST(CommandPredict, RefusesAFeedThatCannotBe) {
  const Command command;
  const auto refused = [&](std::vector<std::string> words, const std::string& reason) {
    words.insert(words.begin(), "predict");
    expect_complaint(command.run(words), 2, reason);
  };
  refused({"1MiB", "--samples", "1KiB"}, "excludes");
  refused({"1MiB", "--batch", "3"}, "--samples");
  refused({"--samples", "1KiB", "--pieces", "3"}, "excludes");
  refused({"--samples", "1KiB", "--from", "paper"}, "paper");
  refused({"--samples", "1KiB", "--to", "pinned"}, "pinned");
  refused({"--samples", "1KiB", "--from", "float32", "--to", "uint8"}, "without loss");
  refused({"--samples", "3B", "--from", "int16"}, "no whole number");
  refused({"--samples", "1KiB", "--residency", "auto"}, "name a fraction");
  refused({"--samples", "1KiB", "--residency", "half"}, "--residency");
  refused({"--samples", "1KiB", "--gather", "hand"}, "--gather");
  refused({"1MiB", "--verdict", "verdict.json"}, "--samples");
}

}  // namespace
}  // namespace penstock
