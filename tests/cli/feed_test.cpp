#include "cli/command.hpp"
#include "cli/datasets.hpp"
#include "support/matchers.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/device/device.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <regex>

namespace penstock {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::Command;
using testing::CommandResult;
using testing::count_of;
using testing::random_values;
using testing::read_text;

using Arguments = std::vector<std::string>;

constexpr std::size_t kSamples = 100;
constexpr std::size_t kPixels = std::size_t{3} * 5 * 7;

/// A home with a dataset of two .npy files in it.
class Feed : public ::testing::Test {
 protected:
  Feed() {
    testing::write_npy(images, "|u1", {kSamples, 3, 5, 7},
                       random_values<std::uint8_t>(kSamples * kPixels, 1, 255));
    testing::write_npy(labels, "<i8", {kSamples}, random_values<std::int64_t>(kSamples, 2, 9));
  }

  [[nodiscard]] Arguments feed(const Arguments& more, const std::string& device = "host") const {
    Arguments arguments{"feed", images.string(), labels.string(), "--device", device};
    if (std::find(more.begin(), more.end(), "--batch") == more.end()) {
      arguments.insert(arguments.end(), {"--batch", "32"});
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  /// The account of a feed that succeeds.
  [[nodiscard]] json account(Arguments more, const std::string& device = "host") const {
    more.insert(more.end(), {"--json", "-"});
    const CommandResult result = command.run(feed(more, device));
    EXPECT_EQ(result.status, 0) << result.errors;
    return result.status == 0 ? json::parse(result.output) : json{};
  }

  void expect_complaint(const Arguments& more, int status, const std::string& words,
                        const std::string& device = "host") const {
    testing::expect_complaint(command.run(feed(more, device)), status, words);
  }

  Command command;
  const fs::path images = command.home() / "images.npy";
  const fs::path labels = command.home() / "labels.npy";
};

TEST_F(Feed, CountsAndVerifiesEveryByte) {
  for (const char* device : {"host", "host:late=1"}) {
    const json value = account({"--epochs", "3", "--shuffle", "--to", "float32", "--verify"}, device);
    EXPECT_EQ(value["samples"], 300);
    EXPECT_EQ(value["batches"], 12);
    EXPECT_EQ(value["bytes"], 300 * (kPixels * 4 + 8));
    EXPECT_EQ(value["link_bytes"], 300 * (kPixels + 1)) << "pixels as stored, labels in one byte each";
    EXPECT_EQ(value["verified"], true);
    EXPECT_EQ(value["compared"]["bytes"], value["bytes"]);
    EXPECT_EQ(value["compared"]["batches"], 12);
    EXPECT_EQ(value["interrupted"], false);
    EXPECT_TRUE(value["error"].is_null());
    EXPECT_EQ(value["device"]["spec"], device);
    EXPECT_EQ(value["options"]["epochs"], 3);
    EXPECT_GT(value["seconds"], 0.0);
    EXPECT_GT(value["samples_per_second"], 0.0);
    EXPECT_GT(value["link_gbps"], 0.0);
    for (const char* name : {"link_efficiency", "stall_seconds", "exposed_transfer_seconds", "gather_seconds",
                             "transfer_seconds", "compute_seconds", "mean_ready", "ring_bytes"}) {
      EXPECT_TRUE(value[name].is_number()) << name;
    }
    // "unknown": on a loaded machine the first batch may take longer than all others.
    EXPECT_THAT(
        (std::vector<std::string>{"consumer", "link", "gather", "device", "residency", "batches", "unknown"}),
        Contains(value["limited_by"].get<std::string>()));
    ASSERT_EQ(value["epochs"].size(), 3u);
    for (const json& epoch : value["epochs"]) {
      EXPECT_EQ(epoch["samples"], 100);
      EXPECT_EQ(epoch["complete"], true);
    }
  }
}

class FeedDevice : public Feed, public ::testing::WithParamInterface<const char*> {};

// On a GPU: the command's own path from files to a checked account, with a step in place of a model.
TEST_P(FeedDevice, FeedsFilesAndChecksThem) {
  const std::string device = std::string(GetParam()) == "Cuda" ? "cuda:0" : "host";
  if (device == "cuda:0") {
    if (Device::open("auto").info().backend != "cuda") GTEST_SKIP() << "waived: no NVIDIA driver";
    command.environment = {"HOME=" + command.home().string()};
  }
  for (const char* gather : {"automatic", "host", "zero-copy", "copy-engine"}) {
    for (const char* residency : {"none", "auto", "0.25"}) {
      const json value = account({"--gather", gather, "--residency", residency, "--shuffle", "--verify",
                                  "--epochs", "2", "--to", "float32", "--step-ms", "0.5"},
                                 device);
      EXPECT_EQ(value["verified"], true) << gather << " " << residency;
      EXPECT_EQ(value["samples"], 200);
      EXPECT_EQ(value["timed_batches"], value["batches"]);
      EXPECT_GT(value["compute_seconds"], 0.003) << "eight steps";
    }
  }
}
INSTANTIATE_TEST_SUITE_P(On, FeedDevice, ::testing::Values("Host", "Cuda"),
                         [](const auto& each) { return std::string(each.param); });

TEST_F(Feed, DoesNotCallVerifiedWhatWasNotCompared) {
  const json value = account({"--step-ms", "5"});
  EXPECT_EQ(value["samples"], 100);
  EXPECT_EQ(value["timed_batches"], value["batches"]) << "the account waits for the last step";
  EXPECT_GT(value["compute_seconds"], 0.019) << "four steps";
  EXPECT_EQ(value["verified"], false);
  EXPECT_EQ(value["compared"]["bytes"], 0);
}

TEST_F(Feed, EveryWayOfFeedingBringsTheSameBytes) {
  for (const char* gather : {"automatic", "host", "zero-copy", "copy-engine"}) {
    for (const char* residency : {"none", "all", "auto", "0.25"}) {
      const json value =
          account({"--gather", gather, "--residency", residency, "--shuffle", "--verify", "--to",
                   "images=bfloat16", "--epochs", "2", "--prefetch", "3", "--threads", "2"},
                  "host:late=1");
      EXPECT_EQ(value["verified"], true) << gather << " " << residency;
      EXPECT_EQ(value["samples"], 200);
      EXPECT_EQ(value["resident_bytes"].get<std::size_t>() > 0, residency != std::string("none"))
          << residency;
    }
  }
  EXPECT_EQ(account({"--load-limit", "1", "--gather", "host", "--verify"})["verified"], true);
}

TEST_F(Feed, FeedsTheFakeDriversDevice) {
  command.environment.back() = std::string("PENSTOCK_LIBCUDA=") + PENSTOCK_FAKE_DRIVER;
  const json value =
      account({"--shuffle", "--to", "float16", "--verify", "--epochs", "2", "--step-ms", "0.01"}, "cuda:1");
  EXPECT_EQ(value["device"]["spec"], "cuda:1");
  EXPECT_EQ(value["verified"], true);
  EXPECT_EQ(value["samples"], 200);
}

TEST_F(Feed, TakesABatchThatIsLargerThanTheDataset) {
  EXPECT_EQ(account({"--batch", "1000", "--verify"})["batches"], 1);
}

TEST_F(Feed, PrintsThePlanAndTheAccount) {
  const fs::path report = command.home() / "report.html";
  const CommandResult result =
      command.run(feed({"--epochs", "2", "--to", "float32", "--verify", "--report", report.string()}));
  ASSERT_EQ(result.status, 0) << result.errors;
  EXPECT_THAT(result.output, StartsWith("100 samples, "));
  for (const char* words : {"images: uint8 3x5x7", "labels: ", "penstock link --device host", "\nepoch ",
                            "Verified: all 85600 bytes of 8 batches", " the pace"}) {
    EXPECT_THAT(result.output, HasSubstr(words));
  }
  EXPECT_THAT(result.output, EndsWith("The report is in " + report.string() + ".\n"));
  EXPECT_EQ(result.errors, "  0 % epoch 1 of 2\n 50 % epoch 2 of 2\n") << "a bar is for terminals";
}

TEST_F(Feed, ShowsABarOnATerminal) {
  const CommandResult result =
      command.run_on_terminal(feed({"--epochs", "40", "--step-ms", "2", "--verify"}));
  ASSERT_EQ(result.status, 0) << result.errors;
  EXPECT_THAT(result.errors, AllOf(HasSubstr("\r["), HasSubstr("/40, "), HasSubstr(" samples/s, "),
                                   HasSubstr(" left"), EndsWith("\r\033[K")));
}

TEST_F(Feed, GoesByTheStoredProfile) {
  ASSERT_EQ(command.run({"link", "--device", "host", "--quick", "--max-bytes", "64KiB", "--repetitions", "2"})
                .status,
            0);
  EXPECT_THAT(command.run(feed({})).output, Not(HasSubstr("penstock link --device")));
  const json value = account({});
  EXPECT_EQ(value["profile_measured"], true);
  EXPECT_GT(value["link_ceiling"], 0.0);
  EXPECT_GT(value["link_efficiency"], 0.0);
  command.environment = {"PENSTOCK_LIBCUDA=/nowhere", "HOME=relative", "XDG_CACHE_HOME="};
  EXPECT_EQ(account({})["profile_measured"], false) << "there is no place for profiles";
}

TEST_F(Feed, SaysWhyTheStoredProfileIsIgnored) {
  const fs::path file = LinkProfile::file_for(command.home() / ".cache", Device::open("host").info());
  fs::create_directories(file.parent_path());
  std::ofstream(file) << "{\"format\": ";
  const fs::path report = command.home() / "report.html";
  const json value = account({"--report", report.string()});
  EXPECT_EQ(value["profile_measured"], false);
  EXPECT_THAT(value["profile_ignored"].get<std::string>(), StartsWith(file.string()));
  EXPECT_THAT(read_text(report), HasSubstr("The link profile is ignored: "));
}

TEST_F(Feed, WarnsOfWhatIsLeftOut) {
  const CommandResult result = command.run_script("mkdir set && cp " + images.string() +
                                                  " set/images.npy && ln -s loop.npy set/loop.npy && "
                                                  "\"$PENSTOCK\" feed set --device host");
  EXPECT_EQ(result.status, 0) << result.errors;
  EXPECT_THAT(result.errors, ContainsRegex("penstock: warning: set/loop.npy is left out: .*\n"));
}

TEST_F(Feed, EndsCleanlyWhenInterrupted) {
  const fs::path json_file = command.home() / "out.json";
  const fs::path report = command.home() / "report.html";
  for (const int signal : {SIGINT, SIGTERM}) {
    const CommandResult result = command.interrupt(
        feed({"--epochs", "1000000", "--verify", "--json", json_file.string(), "--report", report.string()}),
        "epoch 3 of", signal);
    EXPECT_EQ(result.status, 130) << result.errors;
    EXPECT_THAT(result.errors, EndsWith("penstock: interrupted; the account ends there\n"));
    EXPECT_THAT(result.output, AllOf(HasSubstr("Verified: all "), HasSubstr("The report is in ")));
    const json value = json::parse(read_text(json_file));
    EXPECT_EQ(value["interrupted"], true);
    EXPECT_EQ(value["verified"], true) << "of what was given out";
    EXPECT_GE(value["samples"], 200);
    EXPECT_LT(value["samples"], 100000000);
    EXPECT_THAT(read_text(report), AllOf(HasSubstr("Interrupted"), HasSubstr("</html>")));
  }
}

TEST_F(Feed, TellsOfAFailureInMidFeed) {
  const fs::path json_file = command.home() / "out.json";
  const CommandResult result = command.run_and(feed({"--epochs", "1000000", "--load-limit", "1", "--gather",
                                                     "host", "--verify", "--json", json_file.string()}),
                                               "epoch 3 of", [&] { fs::resize_file(images, 1000); });
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.errors, HasSubstr("\npenstock: "));
  EXPECT_THAT(result.errors, HasSubstr(images.string()));
  const json value = json::parse(read_text(json_file));
  EXPECT_THAT(value["error"].get<std::string>(), HasSubstr(images.string()));
  EXPECT_EQ(value["verified"], false);
  EXPECT_GE(value["samples"], 200);
}

TEST_F(Feed, TheReportSaysWhenAndHowItWasMadeAndWhatItsFiguresMean) {
  const fs::path report = command.home() / "it's <i>here.html";
  const fs::path file = command.home() / "out.json";
  const CommandResult result = command.run(feed({"--batch", "4", "--epochs", "2", "--step-ms", "0.1",
                                                 "--report", report.string(), "--json", file.string()}));
  ASSERT_EQ(result.status, 0) << result.errors;
  const std::string page = read_text(report);
  const json value = json::parse(read_text(file));
  EXPECT_THAT(page, ContainsRegex("<p class=\"run\">20[0-9]{2}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2} "
                                  "[+-][0-9]{4}<br><code>"));
  EXPECT_THAT(page, HasSubstr("<span>--report</span> <span>&#39;" + command.home().string() +
                              "/it&#39;\\&#39;&#39;s &lt;i&gt;here.html&#39;</span> <span>--json</span> "));
  std::string sentence = value["sentence"];
  sentence.replace(sentence.find(". ") + 1, 1, "</h1>\n<p class=\"advice\">");
  sentence = std::regex_replace("<h1>" + sentence, std::regex("([0-9]) "), "$1&nbsp;");
  sentence = std::regex_replace(sentence, std::regex("`([^`]*)`"), "<code>$1</code>");
  EXPECT_THAT(page, HasSubstr(sentence));
  for (const char* name :
       {"your step", "waiting for data", "… for the transfer", "host gather", "over the link"}) {
    EXPECT_THAT(page, HasSubstr("<th><details><summary>" + std::string(name) + "</summary><p>"));
  }
}

/// The numbers that `pattern` matches first, in the order of the text.
std::vector<double> numbers_of(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::vector<double> numbers;
  for (std::sregex_iterator match(text.begin(), text.end(), regex), end; match != end; ++match)
    numbers.push_back(std::stod((*match)[1]));
  return numbers;
}

TEST_F(Feed, TheReportDrawsTheStepAndTypicalBatchesAndTheRate) {
  const fs::path report = command.home() / "report.html";
  ASSERT_EQ(
      command.run(feed({"--batch", "4", "--epochs", "2", "--step-ms", "0.1", "--report", report.string()}))
          .status,
      0);
  const std::string page = read_text(report);
  const auto after = [&page](const std::string& words, const std::string& end) {
    const std::size_t begin = page.find(words);
    return begin == std::string::npos ? "" : page.substr(begin, page.find(end, begin) - begin);
  };
  double shares = 0;
  for (const double share : numbers_of(after("<div class=\"bar\"", "</div>"), "width:([0-9.]+)%"))
    shares += share;
  EXPECT_NEAR(shares, 100, 0.01) << "the step and its waits are all of the time";

  const std::string batches = after("<h2>Some batches", "</section>");
  const std::vector<double> seen =
      numbers_of(after("your step works</div>", "class=\"span\""), "batch ([0-9]+):");
  EXPECT_THAT(seen, SizeIs(::testing::AllOf(::testing::Ge(15U), ::testing::Le(16U))));
  EXPECT_THAT(batches, Not(HasSubstr("epoch 1, batch 1:"))) << "not the start-up";
  for (const double left : numbers_of(batches, "left:([0-9.]+)%")) EXPECT_LE(left, 100);

  const std::string rates = after("<div class=\"rates\"", "</section>");
  double widths = 0;
  for (const double width : numbers_of(rates, "width:([0-9.]+)%")) widths += width;
  ASSERT_NEAR(widths, 100, 0.1);
  EXPECT_EQ(std::ranges::max(numbers_of(rates, "height:([0-9.]+)%")), 100);
  EXPECT_EQ(count_of(rates, "<b "), 1U) << "an epoch begins within";
}

TEST_F(Feed, WritesAReportOfASingleBatch) {
  const fs::path report = command.home() / "report.html";
  const CommandResult result = command.run(feed({"--batch", "100", "--report", report.string()}));
  ASSERT_EQ(result.status, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("\n1 batch is too few to tell what sets the pace. Feed at least 4"));
  EXPECT_THAT(read_text(report), HasSubstr("<h1>1&nbsp;batch is too few to tell what sets the pace.</h1>"));
}

TEST_F(Feed, WritesAReportThatLoadsNothing) {
  const fs::path report = command.home() / "report.html";
  const fs::path odd = command.home() / "<b>&odd.npy";
  fs::copy_file(labels, odd);
  const CommandResult result = command.run(
      feed({odd.string(), "--epochs", "2", "--to", "float32", "--verify", "--report", report.string()}));
  ASSERT_EQ(result.status, 0) << result.errors;
  const std::string page = read_text(report);
  EXPECT_THAT(page, StartsWith("<!DOCTYPE html>"));
  for (const char* loader : {"src=", "href=", "<link", "@import", "url(", "<script", "<b>&"}) {
    EXPECT_THAT(page, Not(HasSubstr(loader)));
  }
  for (const char* words : {"&lt;b&gt;&amp;odd", "Where the time went", "Verified: all"}) {
    EXPECT_THAT(page, HasSubstr(words));
  }
}

TEST_F(Feed, RefusesWrongUseWithOneLineAndStatusTwo) {
  const fs::path report = command.home() / "report.html";
  expect_complaint({"--to", "abacus", "--report", report.string()}, 2, "abacus");
  EXPECT_FALSE(fs::exists(report)) << "nothing was fed";
  expect_complaint({"--epochs", "0"}, 2, "--epochs");
  expect_complaint({"--batch", "0"}, 2, "--batch");
  expect_complaint({"--prefetch", "65"}, 2, "--prefetch");
  expect_complaint({"--step-ms", "-1"}, 2, "--step-ms");
  expect_complaint({"--budget", "much"}, 2, "not a size");
  expect_complaint({"--to", "abacus"}, 2, "abacus");
  expect_complaint({"--to", "pictures=float32"}, 2, "no field 'pictures'; it has: images, labels");
  expect_complaint({"--to", "images=int8"}, 2, "'images' is stored as uint8 and cannot be delivered as int8");
  expect_complaint({"--residency", "most"}, 2, "most");
  expect_complaint({"--gather", "pigeon"}, 2, "pigeon");
  const CommandResult none = command.run({"feed"});
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.errors, HasSubstr("SOURCES"));
}

TEST_F(Feed, ReportsWhatCannotBeReadOrWritten) {
  const fs::path broken = command.home() / "broken.npy";
  std::ofstream(broken) << read_text(images).substr(0, 2000);
  expect_complaint({broken.string()}, 1, broken.string());
  expect_complaint({"/nowhere/x.npy"}, 1, "/nowhere/x.npy");
  expect_complaint({"no-such-dataset"}, 1, "no-such-dataset");
  expect_complaint({"--report", "/nowhere/report.html"}, 1, "/nowhere/report.html");
  expect_complaint({"--json", "/nowhere/out.json"}, 1, "/nowhere/out.json");
  expect_complaint({"--report", command.home().string()}, 1, command.home().string());
  testing::write_npy(broken, "|u1", {3}, std::vector<std::uint8_t>(3));
  expect_complaint({broken.string()}, 1, "broken");
}

TEST_F(Feed, ReportsWhatDoesNotFit) {
  expect_complaint({"--residency", "all", "--budget", "4KiB"}, 1, "KiB");
  expect_complaint({}, 1, "KiB", "host:memory=4KiB");
  expect_complaint({}, 1, "libcuda", "cuda:0");
}

}  // namespace
}  // namespace penstock
