#include "cli/command.hpp"
#include "cli/shared/terminal.hpp"
#include "doctor/report/trace_report.hpp"
#include "support/matchers.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace penstock {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::CommandResult;
using testing::expect_complaint;

std::string event(const char* category, const std::string& name, int begin, int end,
                  const std::string& args = "{}") {
  return fmt::format(R"(,{{"ph":"X","cat":"{}","name":"{}","pid":1,"tid":1,"ts":{},"dur":{},"args":{}}})",
                     category, name, begin, end - begin, args);
}

/// Steps of 1 ms: a pageable copy of 4 MB for 400 us, then a kernel. `frame` is the function around it. After
/// each fourth step, there is a pause of `pause` us.
std::string trace_text(const std::string& frame = "train.py(3): main", int steps = 5, int pause = 0) {
  std::string text = R"({"deviceProperties": [{"id": 0, "name": "A GPU"}], "traceEvents": [{"ph": "M"})";
  for (int i = 0; i < steps; ++i) {
    const int t = i * 1000 + i / 4 * pause;
    const auto args = [i](int call) {
      return fmt::format(R"({{"device":0,"stream":7,"correlation":{},"bytes":4000000}})", 10 * i + call);
    };
    text += event("user_annotation", fmt::format("ProfilerStep#{}", i), t, t + 1000) +
            event("python_function", frame, t, t + 999) +
            event("cpu_op", "aten::to", t + 1, t + 410, R"({"Input type": ["float"]})") +
            event("cuda_runtime", "cudaMemcpyAsync", t + 2, t + 402, args(1)) +
            event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", t + 2, t + 402, args(1)) +
            event("cuda_runtime", "cudaStreamSynchronize", t + 402, t + 404, args(2)) +
            event("cuda_runtime", "cudaLaunchKernel", t + 415, t + 420, args(3)) +
            event("kernel", "gemm", t + 424, t + 1000, args(3));
  }
  return text + "]}";
}

class TraceDoctor : public testing::CommandTest {
 protected:
  TraceDoctor() { write("trace.json", trace_text()); }
  [[nodiscard]] CommandResult examine(const std::vector<std::string>& more = {}) const {
    return command_.run(testing::joined({{"doctor", path("trace.json")}, more}));
  }
  /// Writes link.json for the host device, and returns that one's name.
  std::string measure_link() const {
    const CommandResult result = command_.run({"link", "--device", "host", "--quick", "--max-bytes", "64KiB",
                                               "--repetitions", "2", "--profile", path("link.json")});
    EXPECT_EQ(result.status, 0) << result.errors;
    return json::parse(read("link.json")).at("profile").at("device_name");
  }
  /// Writes trace.json with these GPUs. `names` are as in JSON.
  void name_devices(const std::vector<std::string>& names) const {
    std::string described;
    for (std::size_t i = 0; i < names.size(); ++i)
      described += fmt::format(R"({}{{"id": {}, "name": "{}"}})", i > 0 ? "," : "", i, names[i]);
    const std::string only = R"({"id": 0, "name": "A GPU"})";
    std::string text = trace_text();
    write("trace.json", text.replace(text.find(only), only.size(), described));
  }
};

TEST_F(TraceDoctor, TellsWhereTheTimeWentAndWhatToChange) {
  const CommandResult result = examine();
  ASSERT_EQ(result.status, 0) << result.errors;
  EXPECT_EQ(result.errors, "");
  EXPECT_THAT(result.output, HasSubstr("GPU 0 (A GPU): 5 steps of 1.00 ms\n"));
  EXPECT_THAT(result.output, HasSubstr("57.6 %"));
  EXPECT_THAT(result.output, HasSubstr("pageable-copies\n"));
  EXPECT_THAT(result.output, HasSubstr("at train.py(3): main, aten::to: 5 times, 19.1 MiB, 2.00 ms\n"));
  EXPECT_THAT(result.output, HasSubstr("gain: at most 402 µs of a step, 40.2 %\n"));
  EXPECT_THAT(result.output, HasSubstr("not examined\n  Waiting for data:"));
}

TEST_F(TraceDoctor, TellsHowStepsVary) {
  write("trace.json", trace_text("train.py(3): main", 20));
  EXPECT_THAT(examine().output, HasSubstr("GPU 0 (A GPU): 20 steps of 1.00 ms\n"));
  write("trace.json", trace_text("train.py(3): main", 20, 500));
  const CommandResult result = examine({"--json", path("found.json")});
  EXPECT_THAT(
      result.output,
      HasSubstr("GPU 0 (A GPU): 20 steps of 1.10 ms on average, 8 in 10 of them 1.00 ms to 1.50 ms\n"));
  const json times = json::parse(read("found.json"))["devices"][0]["step_times"];
  EXPECT_DOUBLE_EQ(times["tenth_seconds"], 1e-3);
  EXPECT_DOUBLE_EQ(times["median_seconds"], 1e-3);
  EXPECT_DOUBLE_EQ(times["nine_tenths_seconds"], 1.5e-3);
  EXPECT_EQ(times["mean_error_seconds"], nullptr) << "too few steps to tell";
  write("trace.json", trace_text("train.py(3): main", 40, 500));
  const json more = json::parse(examine({"--json", "-"}).output)["devices"][0]["step_times"];
  EXPECT_GT(more["mean_error_seconds"], 10e-6);
}

TEST(WindowText, TellsOfAFewLongSteps) {
  DeviceAccount account;
  account.steps = 100;
  account.step_times = StepTimes{.tenth = 1e-3, .median = 1e-3, .nine_tenths = 1.01e-3, .mean_error = {}};
  account.window = {0, 103'000'000};
  EXPECT_EQ(cli::window_text(account), "GPU 0: 100 steps of 1.03 ms");
  account.window = {0, 104'000'000};
  EXPECT_EQ(cli::window_text(account),
            "GPU 0: 100 steps of 1.04 ms on average, 8 in 10 of them 1.00 ms to 1.01 ms");
}

TEST_F(TraceDoctor, CountsThePlacesThatItLeavesOut) {
  std::string text = trace_text("train.py(3): main", 5);
  const auto rename_next = [&text](const std::string& name) {
    const std::string known = "train.py(3): main";
    text.replace(text.find(known), known.size(), name);
    return text;
  };
  rename_next("train.py(10): a");
  rename_next("train.py(20): b");
  write("trace.json", rename_next("train.py(30): c"));
  EXPECT_THAT(examine().output, HasSubstr("\n  and 1 more place; --json has all\n"));
  write("trace.json", rename_next("train.py(40): d"));
  EXPECT_THAT(examine().output, HasSubstr("\n  and 2 more places; --json has all\n"));
}

TEST_F(TraceDoctor, SpeaksOfOneStepIfThereIsOne) {
  write("trace.json", trace_text("train.py(3): main", 1));
  const CommandResult result = examine({"--html", path("page.html")});
  ASSERT_EQ(result.status, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("GPU 0 (A GPU): 1 step of 1.00 ms\n"));
  EXPECT_THAT(read("page.html"), HasSubstr("1&nbsp;step of 1.00&nbsp;ms"));
}

TEST_F(TraceDoctor, SpeaksOfTheRecordingIfThereAreNoSteps) {
  std::string text = trace_text("train.py(3): main", 4);  // too few for steps to be found
  for (std::size_t at = text.find("ProfilerStep#"); at != std::string::npos; at = text.find("ProfilerStep#"))
    text.replace(at, 12, "other");
  const std::size_t wait = text.rfind(']');
  text.insert(wait, event("user_annotation", "enumerate(DataLoader)#x.__next__", 4000, 5000) +
                        event("kernel", "last", 5000, 5010, R"({"device":0,"stream":7,"correlation":99})"));
  write("trace.json", text);
  const CommandResult result = examine({"--html", path("page.html")});
  ASSERT_EQ(result.status, 0) << result.errors;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("GPU 0 (A GPU): 5.01 ms, no steps found\n"),
                    HasSubstr("gain: at most 1.61 ms of the recording"),
                    HasSubstr("waits for its loader: 1.00 ms of 5.01 ms."), Not(HasSubstr("of a step"))));
  EXPECT_THAT(read("page.html"), AllOf(HasSubstr("ms of the recording, "), Not(HasSubstr("of a step,"))));
}

TEST_F(TraceDoctor, WritesTheSameAsJson) {
  const CommandResult result = examine({"--json", "-"});
  ASSERT_EQ(result.status, 0) << result.errors;
  const json value = json::parse(result.output);
  EXPECT_EQ(value["schema"], "penstock-trace-diagnosis/1");
  EXPECT_EQ(value["trace"], path("trace.json"));
  EXPECT_EQ(value["events"], 41);
  ASSERT_THAT(value["devices"], SizeIs(1));
  const json& device = value["devices"][0];
  EXPECT_EQ(device["steps"], 5);
  EXPECT_DOUBLE_EQ(device["step_seconds"], 1e-3);
  EXPECT_EQ(device["step_times"], nullptr) << "too few steps to tell";
  double share = 0;
  for (const auto& [name, part] : device["parts"].items()) share += part["share"].get<double>();
  EXPECT_NEAR(share, 1, 1e-12);
  EXPECT_NEAR(device["parts"]["exposed_copy"]["seconds"].get<double>(), 2e-3, 1e-12);
  EXPECT_EQ(device["copies_to_device"]["bytes"], 20000000);
  ASSERT_THAT(value["findings"], SizeIs(1));
  const json& finding = value["findings"][0];
  EXPECT_EQ(finding["id"], "pageable-copies");
  EXPECT_EQ(finding["severity"], "medium");
  EXPECT_EQ(finding["count_per_step"], 1.0);
  EXPECT_NEAR(finding["gain_seconds_per_step"]["high"].get<double>(), 402e-6, 1e-12);
  EXPECT_EQ(finding["places"][0]["function"], "train.py(3): main");
  EXPECT_EQ(finding["places"][0]["file"], "train.py");
  EXPECT_EQ(finding["places"][0]["line"], 3);
  EXPECT_EQ(finding["places"][0]["idle_seconds"], nullptr);
  EXPECT_EQ(finding["places"][0]["stack"], json({"train.py(3): main"}));
  EXPECT_EQ(value["not_examined"][0]["names"], json({"waiting-for-data", "waiting_for_data"}));
}

TEST_F(TraceDoctor, TellsWhoCalledAPlace) {
  const auto draw = [this](const std::vector<std::string>& callers) {
    std::string text = trace_text("send.py(3): send");
    std::string frames;
    int depth = 10;
    for (const std::string& caller : callers)
      frames += event("python_function", caller, -depth, 5000 + depth), --depth;
    write("trace.json", text.insert(text.rfind(']'), frames));
    EXPECT_EQ(examine({"--html", path("page.html"), "--json", path("out.json")}).status, 0);
    return json::parse(read("out.json"))["findings"][0]["places"][0]["stack"];
  };
  const std::string one = "\n<div class=\"callers\">called from train.py(9): &lt;b&gt;</div></li>";
  EXPECT_EQ(draw({"train.py(9): <b>"}), json({"send.py(3): send", "train.py(9): <b>"}));
  EXPECT_THAT(read("page.html"), HasSubstr(one));
  EXPECT_EQ(draw({"main.py(1): <module>", "train.py(9): <b>"}),
            json({"send.py(3): send", "train.py(9): <b>", "main.py(1): <module>"}));
  EXPECT_THAT(read("page.html"),
              HasSubstr("\n<details class=\"callers\"><summary>called from train.py(9): &lt;b&gt;</summary>"
                        "<div>called from main.py(1): &lt;module&gt;</div></details></li>"));
  EXPECT_EQ(draw({}), json({"send.py(3): send"}));
  EXPECT_THAT(read("page.html"), Not(HasSubstr("called from")));
}

TEST_F(TraceDoctor, TellsWhatTheGpuIdlesAfterAWait) {
  std::string text = trace_text();
  for (std::size_t at = 0; (at = text.find("4000000", at)) != std::string::npos;) text.replace(at, 7, "4");
  write("trace.json", text);
  const CommandResult result = examine({"--json", path("out.json")});
  EXPECT_THAT(result.output, HasSubstr("5 times, 10.0 µs, then the GPU idles 110 µs\n"));
  const json finding = json::parse(read("out.json"))["findings"][0];
  EXPECT_EQ(finding["id"], "synchronizations");
  EXPECT_NEAR(finding["places"][0]["idle_seconds"].get<double>(), 110e-6, 1e-9);
}

TEST_F(TraceDoctor, WritesTextAndAFile) {
  const CommandResult result = examine({"--json", path("out.json")});
  ASSERT_EQ(result.status, 0) << result.errors;
  EXPECT_EQ(result.output, examine().output);
  EXPECT_EQ(json::parse(read("out.json"))["events"], 41);
}

TEST_F(TraceDoctor, WritesAPageThatLoadsNothing) {
  const CommandResult result = examine({"--html", path("page.html")});
  ASSERT_EQ(result.status, 0) << result.errors;
  const std::string page = read("page.html");
  for (const char* words :
       {"<h1>Kernels run in 57.6&nbsp;% of a step of 1.00&nbsp;ms.</h1>",
        "The most to gain is by pageable-copies: at most 402&nbsp;µs of a step, 40.2&nbsp;%.",
        "GPU 0&nbsp;(A GPU): 5&nbsp;steps of 1.00&nbsp;ms",
        "<i class=\"compute\" style=\"width:57.600%\">58 %</i>",
        "class=\"severity medium\">medium</span>pageable-copies",
        "<li>train.py(3): main, aten::to: 5 times, 19.1 MiB, 2.00 ms</li>",
        "<pre>for batch in penstock.feed(loader): ...; penstock.to_device(x) ",
        "<pre>DataLoader(..., pin_memory=True), or ", "<li>Waiting for data: the thread"}) {
    EXPECT_THAT(page, HasSubstr(words));
  }
  for (const char* loader : {"src=", "href=", "<link", "@import", "url(", "<script"}) {
    EXPECT_THAT(page, Not(HasSubstr(loader)));
  }
}

TEST_F(TraceDoctor, SaysOnceWhatTwoGpusHaveInCommon) {
  const auto headline = [this](int kernels) {
    std::string text = trace_text();
    for (int i = 0; i < kernels; ++i) {
      text.insert(text.rfind(']'),
                  event("kernel", "gemm", 1000 * i + 424, 1000 * i + 1000, R"({"device":1,"stream":7})"));
    }
    write("trace.json", text);
    EXPECT_EQ(examine({"--html", path("page.html")}).status, 0);
    const std::string page = read("page.html");
    return page.substr(page.find("<h1>"), 60);
  };
  EXPECT_THAT(headline(1), StartsWith("<h1>Kernels run in 11.5&nbsp;to 57.6&nbsp;% of a step"));
  EXPECT_THAT(headline(5), StartsWith("<h1>Kernels run in 57.6&nbsp;% of a step"));
}

TEST_F(TraceDoctor, SaysThatTheProfileIsOfAnotherDevice) {
  const std::string device = measure_link();
  const std::string said = "the profile of --profile is of " + device + ", and the recorded GPU is A GPU.";
  EXPECT_THAT(examine({"--profile", path("link.json"), "--json", "-"}).output, HasSubstr(said));
  name_devices({"A GPU", "Another", "A GPU"});
  EXPECT_THAT(examine({"--profile", path("link.json"), "--json", "-"}).output,
              HasSubstr("the recorded GPU is A GPU, Another."));
  name_devices({device});
  EXPECT_THAT(examine({"--profile", path("link.json"), "--json", "-"}).output,
              AllOf(StartsWith("{"), Not(HasSubstr("the profile of --profile"))));
}

TEST_F(TraceDoctor, LetsTheNameOfAnotherDeviceForgeNothing) {
  measure_link();
  name_devices({R"(A\nhigh: forged\u202e)"});
  const CommandResult result = examine({"--profile", path("link.json"), "--html", path("page.html")});
  ASSERT_EQ(result.status, 0) << result.errors;
  EXPECT_THAT(result.output, AllOf(HasSubstr("the profile of --profile"), Not(HasSubstr("\nhigh: forged"))));
  EXPECT_THAT(read("page.html"),
              AllOf(HasSubstr("the recorded GPU is A high: forged\\xe2"), Not(HasSubstr("\u202e"))));
}

TEST_F(TraceDoctor, LetsNamesOfATraceRunNothingInThePage) {
  write("trace.json", trace_text(R"(a.py(1): </script><script>evil()</script>{{data}}\u202e\u0007\udcff)"));
  const CommandResult result = examine({"--html", path("page.html")});
  ASSERT_EQ(result.status, 0) << result.errors;
  const std::string page = read("page.html");
  EXPECT_THAT(page, HasSubstr("<li>a.py(1): &lt;/script&gt;&lt;script&gt;evil()&lt;/script&gt;{{data}}"));
  EXPECT_THAT(page, Not(HasSubstr("<script>evil")));
  for (const char* odd : {"\u202e", "\a", "\xed\xb3\xbf"}) EXPECT_THAT(page, Not(HasSubstr(odd)));
}

TEST_F(TraceDoctor, WritesOneThingToStandardOutput) {
  const CommandResult page = examine({"--html", "-"});
  EXPECT_THAT(page.output, AllOf(StartsWith("<!DOCTYPE html>"), EndsWith("</html>\n")));
  const CommandResult verdict = examine({"--json", "-", "--html", path("page.html")});
  EXPECT_EQ(json::parse(verdict.output)["events"], 41);
  expect_complaint(examine({"--html", "-", "--json", "-"}), 2, "only one of --json and --html");
}

TEST_F(TraceDoctor, NeverWritesOverWhatItReads) {
  for (const char* name : {"trace.json", "link.json"}) {
    for (const char* option : {"--json", "--html"})
      expect_complaint(examine({"--profile", path("link.json"), option, path(name)}), 2, "would overwrite");
  }
  expect_complaint(examine({"--html", path("a"), "--json", path("a")}), 2, "the file of --json");
  EXPECT_EQ(read("trace.json"), trace_text());
}

TEST_F(TraceDoctor, KeepsAnOldFileIfTheTraceIsDamaged) {
  write("out.json", "old");
  write("trace.json", trace_text().substr(0, 1000));
  for (const char* option : {"--json", "--html"}) {
    expect_complaint(examine({option, path("out.json")}), 1, "byte 1000 of the text");
    EXPECT_EQ(read("out.json"), "old");
  }
}

TEST_F(TraceDoctor, RefusesWrongUse) {
  expect_complaint(examine({"--loader", "train.py:loader"}), 2, "train.py:loader");
  expect_complaint(examine({"--step", "5"}), 2, "--step");
  expect_complaint(examine({"--seconds", "5"}), 2, "--seconds");
  expect_complaint(command_.run({"doctor", "--html", path("page.html")}), 2, "TRACE is required");
  expect_complaint(command_.run({"doctor", path("none.json")}), 1, "none.json cannot be read: No such file");
  write("link.json", "{}");
  expect_complaint(examine({"--profile", path("link.json")}), 1, "link.json");
  expect_complaint(examine({"--profile", path("none.json")}), 1, "none.json cannot be read: No such file");
  write("link.json", std::string(2 << 20, ' '));
  expect_complaint(examine({"--profile", path("link.json")}), 1, "larger than 1 MiB");
}

TEST_F(TraceDoctor, TakesAWordForWhatToDo) {
  const std::string trace = path("trace.json");
  const CommandResult result = command_.run({"doctor", "read", trace, "--json", path("report.json")});
  EXPECT_EQ(result.status, 0) << result.errors;
  EXPECT_EQ(result.output, examine().output);
  EXPECT_EQ(json::parse(read("report.json")).at("schema"), "penstock-trace-diagnosis/1");
  const std::string help = command_.run({"doctor", "read", "--help"}).output;
  EXPECT_THAT(help, HasSubstr("Usage: penstock doctor read [OPTIONS] TRACE"));
  expect_complaint(command_.run({"doctor", "read"}), 2, "TRACE is required; see penstock doctor read --help");
  // Where no folder has that name.
  expect_complaint(command_.run_script("\"$PENSTOCK\" doctor run"), 2,
                   "a program behind -- is required; see penstock doctor run --help");
  expect_complaint(command_.run({"doctor", "run", "python", "a.py"}), 2,
                   "write penstock doctor run -- python a.py; see penstock doctor run --help");
  expect_complaint(command_.run({"doctor", "run", "--verify", "ls", "--record", path("x"), "--", "ls"}), 2,
                   "--verify excludes --record");
  expect_complaint(command_.run({"doctor", "read", trace, "--record", "x"}), 2,
                   "see penstock doctor read --help");
  expect_complaint(command_.run({"doctor", "read", trace, "--", "ls"}), 2, "exclude each other");
}

TEST_F(TraceDoctor, KnowsTracesThatAreNamedAsWhatToDo) {
  for (const std::string name : {"run", "read", "loader"}) {
    fs::create_directories(command_.home() / name);
    const CommandResult alone = command_.run_script("\"$PENSTOCK\" doctor " + name);
    EXPECT_THAT(alone.errors, HasSubstr(name + " holds no recording")) << "a folder";
    EXPECT_THAT(command_.run_script("\"$PENSTOCK\" doctor " + name + " --help").output,
                HasSubstr("Usage: penstock doctor " + name));
    const CommandResult traces = command_.run_script("\"$PENSTOCK\" doctor read " + name);
    EXPECT_EQ(traces.errors, alone.errors);
  }
  EXPECT_EQ(command_.run_script("\"$PENSTOCK\" doctor run -- true").status, 0);
}

TEST_F(TraceDoctor, SaysWhatToWriteInPlaceOfATrace) {
  write("train.py", "import torch");
  write("program", "#!/bin/sh\n");
  fs::permissions(path("program"), fs::perms::owner_all);
  const std::string train = path("train.py");
  expect_complaint(command_.run({"doctor", train}), 2,
                   "write penstock doctor -- python " + train + ", or --loader " + train + ":NAME");
  expect_complaint(command_.run({"doctor", train + ":loader"}), 2,
                   "write penstock doctor --loader " + train + ":loader");
  expect_complaint(command_.run({"doctor", path("program")}), 2,
                   "write penstock doctor -- " + path("program"));
  expect_complaint(command_.run({"doctor", "no-program"}), 2, "write penstock doctor -- no-program");
  expect_complaint(command_.run({"doctor", "python", "train.py"}), 2,
                   "write penstock doctor -- python train.py; see penstock doctor --help");
  expect_complaint(command_.run({"doctor", "train.py", "--epochs", "3"}), 2,
                   "write penstock doctor -- python train.py --epochs 3; see penstock doctor --help");
  for (const std::string& recorded : {path("trace.json"), path("trace.json.gz"), path("")}) {
    const CommandResult typo = command_.run({"doctor", recorded, "--htlm", "page.html"});
    expect_complaint(typo, 2, "--htlm");
    EXPECT_THAT(typo.errors, Not(HasSubstr("to run a program"))) << recorded;
  }
  expect_complaint(command_.run({"doctor", path(""), "train.py"}), 2,
                   "write penstock doctor -- " + path("") + " train.py;");
  expect_complaint(examine({"--loud"}), 2, "--loud; see penstock doctor --help");
  expect_complaint(command_.run({"--loud"}), 2, "see penstock --help");
  write("trace.json", "");
  expect_complaint(examine(), 1, "trace.json is empty: its export did not finish.");
}

TEST_F(TraceDoctor, LetsNamesOfATraceNeitherForgeLinesNorMoveTheCursor) {
  write("trace.json", trace_text(R"(a.py(1): x\nhigh: forged\u001b[2J)"));
  const CommandResult result = examine();
  ASSERT_EQ(result.status, 0) << result.errors;
  EXPECT_THAT(result.output, Not(HasSubstr("\nhigh: forged")));
  EXPECT_THAT(result.output, Not(HasSubstr("\x1b")));
}

TEST_F(TraceDoctor, FitsItsLinesIntoTheTerminal) {
  std::istringstream lines(examine().output);
  for (std::string line; std::getline(lines, line);) {
    const bool names_file = line.find(command_.home().string()) != std::string::npos;
    EXPECT_TRUE(names_file || cli::display_width(line) <= 80) << line;
  }
}

TEST(TraceReport, SaysThatSizesOfCopiesAreNotKnown) {
  DeviceAccount account;
  account.h2d = {.count = 3, .bytes = 0, .unsized = 3, .busy = 90'000, .exposed = 90'000};
  EXPECT_EQ(cli::copies_text(account, CopyDirection::h2d),
            "copies to the GPU in all: 3, of unknown size, at an unknown rate; 0 s hidden, 90.0 µs exposed");
  account.h2d.unsized = 1;
  account.h2d.bytes = 4096;
  EXPECT_EQ(
      cli::copies_text(account, CopyDirection::h2d),
      "copies to the GPU in all: 3, 4 KiB and 1 of unknown size, at an unknown rate; 0 s hidden, 90.0 µs "
      "exposed");
}

TEST(TraceReport, CountsNoCopiesWhereNoneWereRecorded) {
  DeviceAccount account;
  account.steps = 2;
  EXPECT_EQ(cli::copies_text(account, CopyDirection::h2d), "copies to the GPU a step: none");
  account.has_copies = false;
  EXPECT_EQ(cli::copies_text(account, CopyDirection::h2d), "copies to the GPU a step: not recorded");
}

}  // namespace
}  // namespace penstock
