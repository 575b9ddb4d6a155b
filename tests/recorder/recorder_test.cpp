#include "doctor/recording_format.hpp"
#include "recorder/numa_nodes.hpp"
#include "recorder/recorder_fixture.hpp"

#include <penstock/doctor/recording.hpp>
#include <penstock/doctor/timeline.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace penstock {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using testing::CommandResult;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Lt;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

class Recorder : public testing::RecorderTest {
 protected:
  /// The report of the test's program with `words`.
  [[nodiscard]] json examine(const std::vector<std::string>& words) const {
    const CommandResult result = run(words, {"--json", path("report.json")});
    return read_report();
  }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((command_.home() / name).parent_path());
    std::ofstream(command_.home() / name) << text;
  }
};

TEST_F(Recorder, ExaminesAProgramAndPassesItsOutputAndStatusOn) {
  const CommandResult result = run({"init", "steps=50", "say=hello", "exit=5"});
  EXPECT_EQ(result.status, 5);
  EXPECT_EQ(result.output, "hello\n");
  EXPECT_THAT(result.errors,
              AllOf(HasSubstr("GPU 0: 49 steps of 1."), HasSubstr("pageable-copies"),
                    HasSubstr("Copies from pageable memory: 1 in a step, 1.91 MiB at 10.0 GB/s"),
                    HasSubstr("Waits of the host for the GPU: 1 in a step"),
                    Not(HasSubstr("without its exit handlers"))));
}

TEST_F(Recorder, KnowsTheLinksOfTheMachineThatTheProgramRanOn) {
  constexpr const char* kKnown = "The lines are what the link profile of Fake GPU";
  command_.environment.insert(command_.environment.end(),
                              {"PENSTOCK_LIBCUDA=" PENSTOCK_FAKE_DRIVER, "HOME=" + command_.home().string()});
  const auto page = [&](const std::string& name) {
    EXPECT_EQ(run({"init", "steps=20"}, {"--html", path(name), "--record", path(name + ".records")}).status,
              0);
    return read(name);
  };
  EXPECT_THAT(page("before.html"), Not(HasSubstr(kKnown)));
  ASSERT_EQ(
      command_.run({"link", "--device", "cuda:0", "--quick", "--max-bytes", "64KiB", "--repetitions", "2"})
          .status,
      0);
  EXPECT_THAT(page("after.html"), HasSubstr(kKnown));
  // A recording may be another machine's.
  ASSERT_EQ(command_.run({"doctor", path("after.html.records"), "--html", path("elsewhere.html")}).status, 0);
  EXPECT_THAT(read("elsewhere.html"), Not(HasSubstr(kKnown)));
}

TEST_F(Recorder, CountsEveryCallOnce) {
  const json report = examine({"init", "steps=20"});
  ASSERT_THAT(report.at("processes"), SizeIs(1));
  const json& process = report.at("processes")[0];
  EXPECT_EQ(process.at("schema"), "penstock-trace-diagnosis/1");
  EXPECT_EQ(report.at("exit_status"), 0);
  // Of each step: two copies, their two calls, two kernels, their two calls, and a synchronization.
  EXPECT_EQ(process.at("events"), 9 * 20);
  EXPECT_EQ(process.at("devices")[0].at("copies_to_device").at("count"), 19);
}

TEST_F(Recorder, CountsEveryCallOnceWithAnOldCupti) {
  command_.environment.emplace_back("FAKE_CUPTI_OLD=1");
  EXPECT_EQ(examine({"init", "steps=20"}).at("processes")[0].at("events"), 9 * 20);
  EXPECT_EQ(run({"init", "profiler"}).output, "profiler: 0, 1 subscriber, activities 0\n");
}

TEST_F(Recorder, LeavesLaunchesThatAreRecordedTwiceToTheDriver) {
  command_.environment.emplace_back("FAKE_CUPTI_DOUBLES=1");
  const json report = examine({"init", "steps=20", "recorded", "steps=200"});
  // Two more of each step until that was seen.
  EXPECT_THAT(report.at("processes")[0].at("events").get<int>(), AllOf(Ge(9 * 220), Lt(9 * 220 + 2 * 100)));
}

TEST_F(Recorder, KeepsLaunchesOfTheRuntimeThatComeOnce) {
  EXPECT_EQ(examine({"init", "launches=40", "recorded", "launches=60"}).at("processes")[0].at("events"),
            2 * 100);
}

TEST_F(Recorder, ReadsMoreBuffersThanMayWait) {
  command_.environment.emplace_back("FAKE_CUPTI_SMALL_BUFFERS=1");
  EXPECT_EQ(examine({"init", "steps=50"}).at("processes")[0].at("events"), 9 * 50);
}

TEST_F(Recorder, LeavesOutWhatIsNotWanted) {
  const CommandResult lines = run({"init", "steps=20"}, {"--no-lines"});
  EXPECT_THAT(lines.errors,
              AllOf(HasSubstr("Left out of the recording, as it was asked for: lines."),
                    HasSubstr("no stack of a call could be read"), Not(HasSubstr("program.cpp"))));
  EXPECT_THAT(
      run({"init", "again=30"}, {"--no-contents"}).errors,
      AllOf(HasSubstr("asked for: contents."), HasSubstr("program.cpp"), Not(HasSubstr("same-data-again"))));
  EXPECT_THAT(run({"init", "steps=3"}, {"--no-lines", "--no-contents"}).errors, HasSubstr("lines,contents."));
}

TEST_F(Recorder, LeavesOutRecordsOfTheGpuAndOfCalls) {
  const auto events = [&](const char* without) {
    command_.environment.back() = std::string("PENSTOCK_RECORD_WITHOUT=") + without;
    return examine({"init", "steps=20"}).at("processes")[0].at("events").get<int>();
  };
  command_.environment.emplace_back();
  EXPECT_EQ(events("kernels"), 7 * 20);
  EXPECT_EQ(events("launches"), 7 * 20);
  EXPECT_EQ(events("calls"), 6 * 20);
  EXPECT_EQ(events("launches,calls"), 4 * 20);
  EXPECT_EQ(events("launches,,"), 7 * 20);
}

/// The ids of the first process's findings, and of what was not examined.
std::set<std::string> found_in(const json& report) {
  std::set<std::string> found;
  for (const json& finding : report.at("processes")[0].at("findings")) found.insert(finding.at("id"));
  return found;
}
std::set<std::string> not_examined_in(const json& report) {
  std::set<std::string> names;
  for (const json& part : report.at("processes")[0].at("not_examined")) {
    for (const json& name : part.at("names")) names.insert(name);
  }
  return names;
}

TEST_F(Recorder, RefusesVariablesThatItCannotUse) {
  const auto refused = [&](const std::string& variable, const std::vector<std::string>& options = {}) {
    command_.environment.back() = variable;
    const CommandResult result = run({"init", "say=started"}, options);
    EXPECT_EQ(result.output, result.status == 0 ? "started\n" : "");
    return result.errors;
  };
  command_.environment.emplace_back();
  for (const std::string records : {"abc", "0", "", "12k", "-1", "268435457"}) {
    EXPECT_THAT(refused("PENSTOCK_RECORDS=" + records),
                HasSubstr("is '" + records + "', and not a number of records from 1 to 268435456"));
  }
  EXPECT_THAT(refused("PENSTOCK_RECORDS=268435456"), Not(HasSubstr("not a number")));
  for (const std::string without : {"foo", "calls,foo"}) {
    EXPECT_THAT(
        refused("PENSTOCK_RECORD_WITHOUT=" + without),
        HasSubstr("PENSTOCK_RECORD_WITHOUT names 'foo'; it may have kernels, launches, calls, lines"));
  }
  EXPECT_THAT(refused("PENSTOCK_RECORD_WITHOUT=foo", {"--no-lines"}), Not(HasSubstr("foo")));
  EXPECT_THAT(refused("PENSTOCK_RECORD_WITHOUT=kernels,launches,calls,lines,contents,nodes"),
              Not(HasSubstr("it may have")));
}

TEST_F(Recorder, JudgesNothingThatWasLeftOut) {
  std::ofstream(path("budget.txt")) << "no synchronizations\nno blocking-copies\nno pinning\n"
                                       "no device-allocations\nlaunch_or_sync below 90 %\n";
  const auto broken = [&](const std::string& without) {
    command_.environment.back() = "PENSTOCK_RECORD_WITHOUT=" + without;
    const CommandResult result =
        run({"init", "pinned=20"},
            {"--budget", path("budget.txt"), "--html", path("page.html"), "--json", path("report.json")});
    EXPECT_EQ(result.status, 3) << result.errors;
    return read_report().at("processes")[0].at("budget").at("broken").size();
  };
  command_.environment.emplace_back();
  for (const char* const without : {"calls", "launches"}) {
    SCOPED_TRACE(without);
    EXPECT_EQ(broken(without), 5U);
    EXPECT_THAT(found_in(read_report()), IsEmpty());
    const json parts = read_report().at("processes")[0].at("devices")[0].at("parts");
    EXPECT_EQ(parts.at("other_idle").at("seconds"), 0);
    EXPECT_GT(parts.at("not_observed").at("seconds"), 0);
  }
  EXPECT_EQ(broken("kernels"), 5U);
  const json process = read_report().at("processes")[0];
  EXPECT_THAT(process.at("findings"), IsEmpty());
  EXPECT_EQ(process.at("devices")[0].at("parts").at("not_observed").at("share"), 1);
  EXPECT_EQ(process.at("devices")[0].at("copies_to_device").at("exposed_seconds"), nullptr);
  EXPECT_THAT(read("page.html"),
              AllOf(HasSubstr("No kernels were recorded in"), HasSubstr("Nothing was judged"),
                    HasSubstr("what hides them is not known<br>"), Not(HasSubstr("Kernels run in"))));
}

/// Why something was not examined, as one text.
std::string reasons_in(const json& report) {
  std::string text;
  for (const json& part : report.at("processes")[0].at("not_examined"))
    text += part.at("text").get<std::string>() + "\n";
  return text;
}

TEST_F(Recorder, JudgesNothingThatCuptiRefused) {
  std::ofstream(path("budget.txt")) << "no synchronizations\nno pinning\nlaunch_or_sync below 90 %\n";
  const auto examine_without = [&](const std::string& refused) {
    command_.environment.back() = "FAKE_CUPTI_REFUSES=" + refused;
    const CommandResult result =
        run({"init", "steps=20"}, {"--budget", path("budget.txt"), "--json", path("report.json")});
    EXPECT_EQ(result.status, 3) << result.errors;
    EXPECT_THAT(read_report().at("processes")[0].at("budget").at("broken"), SizeIs(3));
    EXPECT_THAT(reasons_in(read_report()),
                AllOf(HasSubstr("(error 27 of CUPTI)."), Not(HasSubstr("were left out"))));
    return result.errors;
  };
  command_.environment.emplace_back();
  EXPECT_THAT(examine_without("10"), HasSubstr("Nothing was judged, as no kernels were recorded"));
  EXPECT_THAT(reasons_in(read_report()), HasSubstr("gains: CUPTI refused to record kernels."));
  EXPECT_THAT(found_in(read_report()), IsEmpty());
  EXPECT_THAT(examine_without("1"), AllOf(HasSubstr("Nothing was judged, as no copies were recorded"),
                                          HasSubstr("copies to the GPU a step: not recorded")));
  EXPECT_THAT(reasons_in(read_report()), HasSubstr("gains: CUPTI refused to record copies."));
  EXPECT_THAT(found_in(read_report()), IsEmpty());
  const json device = read_report().at("processes")[0].at("devices")[0];
  EXPECT_EQ(device.at("copies_to_device").at("count"), nullptr);
  EXPECT_GT(device.at("parts").at("kernel").at("seconds"), 0);
  static_cast<void>(examine_without("cudaStreamSynchronize,cuStreamSynchronize"));
  EXPECT_THAT(reasons_in(read_report()),
              AllOf(HasSubstr("CUPTI refused to record calls other than launches."),
                    HasSubstr("CUPTI refused to record stream synchronizations (error 27 of CUPTI).\n")));
  EXPECT_THAT(not_examined_in(read_report()), IsSupersetOf({"blocking-copies", "synchronizations"}));
  // This one cannot choose calls, so it is asked for all of the driver and of the runtime.
  command_.environment.insert(command_.environment.begin(), "FAKE_CUPTI_OLD=1");
  for (const char* const refused : {"4", "5", "4,5"}) {
    static_cast<void>(examine_without(refused));
    EXPECT_THAT(reasons_in(read_report()),
                HasSubstr("CUPTI refused to record the calls that launch kernels."));
  }
}

TEST_F(Recorder, LacksAllCallsIfCuptiRefusesCallbacksAndTheirRecords) {
  command_.environment.insert(command_.environment.end(),
                              {"FAKE_CUPTI_OLD=1", "FAKE_CUPTI_REFUSES=subscribers,5", ""});
  const auto refused = [&](const std::string& without) {
    command_.environment.back() = "PENSTOCK_RECORD_WITHOUT=" + without;
    const std::string folder = path("without " + without);
    EXPECT_THAT(run({"init", "steps=20"}, {"--record", folder}).errors, HasSubstr("CUPTI refused to record"));
    const Timeline timeline = read_recordings(folder).at(0).timeline;
    EXPECT_FALSE(timeline.has_launches && timeline.has_calls);
    return std::pair(timeline.refused.launches, timeline.refused.calls);
  };
  EXPECT_EQ(refused(""), std::pair(true, true));
  EXPECT_EQ(refused("launches"), std::pair(false, true));
  EXPECT_EQ(refused("calls"), std::pair(true, false));
}

TEST_F(Recorder, ManagesIfCuptiRefusesSomeFunctionsOfAKind) {
  for (const char* const refused : {"cudaStreamSynchronize,cudaMemcpyAsync", "cuStreamSynchronize"}) {
    SCOPED_TRACE(refused);
    command_.environment.push_back(std::string("FAKE_CUPTI_REFUSES=") + refused);
    const json report = examine({"init", "steps=20"});
    EXPECT_THAT(reasons_in(report), Not(HasSubstr("CUPTI refused")));
    EXPECT_THAT(found_in(report), IsSupersetOf({"pageable-copies", "synchronizations"}));
    command_.environment.pop_back();
  }
}

TEST_F(Recorder, TakesRecordsOfCallsIfCuptiRefusesAllCallbacks) {
  const auto seen_without = [&](const std::string& refused) {
    command_.environment.push_back("FAKE_CUPTI_REFUSES=" + refused);
    const json report = examine({"init", "steps=20"});
    EXPECT_THAT(
        reasons_in(report),
        AllOf(HasSubstr("CUPTI refused callbacks, so there are no places of calls (error 27 of CUPTI).\n"),
              Not(HasSubstr("CUPTI refused to record"))));
    command_.environment.pop_back();
    return std::pair(found_in(report), not_examined_in(report));
  };
  const auto seen = seen_without("callbacks");
  EXPECT_THAT(seen.first, IsSupersetOf({"pageable-copies", "synchronizations"}));
  EXPECT_EQ(seen, seen_without("subscribers"));
  command_.environment.emplace_back("FAKE_CUPTI_REFUSES=callbacks");
  EXPECT_THAT(run({"init", "steps=20", "profiler"}).output, HasSubstr("profiler: 0, 1 subscriber"))
      << "the program may subscribe";
}

TEST_F(Recorder, SaysWhatItCountsAsIdleIfCuptiRefusedIt) {
  command_.environment.emplace_back("FAKE_CUPTI_REFUSES=2,12,22");
  const json report = examine({"init", "steps=20"});
  const std::string refused = "CUPTI refused to record ";
  const std::string idle = " (error 27 of CUPTI), so their time counts as idle.\n";
  EXPECT_THAT(reasons_in(report), AllOf(HasSubstr(refused + "memory sets" + idle),
                                        HasSubstr(refused + "copies between GPUs" + idle)));
  EXPECT_THAT(found_in(report), Contains("pageable-copies"));
}

TEST_F(Recorder, SeesTheSameDataSentAgain) {
  for (const char* const word : {"again=30", "again-driver=30"}) {
    SCOPED_TRACE(word);
    const json report = examine({"init", word});
    EXPECT_THAT(found_in(report), Contains("same-data-again"));
    EXPECT_THAT(not_examined_in(report), Not(Contains("same-data-again")));
  }
  const json fresh = examine({"init", "fresh=30"});
  EXPECT_THAT(found_in(fresh), AllOf(Contains("pageable-copies"), Not(Contains("same-data-again"))));
  EXPECT_THAT(not_examined_in(fresh), Not(Contains("same-data-again")));
}

TEST_F(Recorder, SeesCopiesThatTheDefaultStreamHoldsUp) {
  const json report = examine({"init", "default-stream=40"});
  EXPECT_THAT(found_in(report), AllOf(Contains("default-stream-waits"), Not(Contains("exposed-copies"))));
  EXPECT_THAT(not_examined_in(report), Not(Contains("default-stream-waits")));
  // The same copies and kernels, all of them on the default stream.
  EXPECT_THAT(found_in(examine({"init", "pinned=40"})), Not(Contains("default-stream-waits")));
}

TEST_F(Recorder, ManagesWithoutTheKindsOfStreams) {
  command_.environment.emplace_back("FAKE_CUPTI_NO_STREAMS=1");
  const CommandResult result = run({"init", "default-stream=40"}, {"--json", path("report.json")});
  EXPECT_THAT(result.errors, Not(HasSubstr("CUPTI refused")));
  EXPECT_THAT(found_in(read_report()),
              AllOf(Contains("exposed-copies"), Not(Contains("default-stream-waits"))));
  EXPECT_THAT(not_examined_in(read_report()), Contains("default-stream-waits"));
}

TEST_F(Recorder, ContentsThatCannotBeReadAreNotExamined) {
  // The source of these copies is null.
  const json report = examine({"init", "steps=30"});
  EXPECT_THAT(found_in(report), Not(Contains("same-data-again")));
  EXPECT_THAT(not_examined_in(report), Contains("same-data-again"));
}

/// The first place of each finding.
std::map<std::string, std::string> places_in(const json& report) {
  std::map<std::string, std::string> places;
  for (const json& finding : report.at("processes")[0].at("findings"))
    places[finding.at("id")] = finding.at("places")[0].at("function");
  return places;
}

/// The `extra` of each kind of call that a folder's only recording has.
std::map<CallKind, std::set<std::uint16_t>> extras_of_calls(const fs::path& folder) {
  std::map<CallKind, std::set<std::uint16_t>> extras;
  std::ifstream file(fs::directory_iterator(folder)->path(), std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  recording::Header header{};
  std::memcpy(&header, bytes.data(), sizeof header);
  for (std::uint64_t i = 0; i < header.written; ++i) {
    recording::Record record{};
    std::memcpy(&record, bytes.data() + header.ring_offset + i * sizeof record, sizeof record);
    if (record.type == recording::RecordType::call)
      extras[static_cast<CallKind>(record.detail)].insert(record.extra);
  }
  return extras;
}

TEST_F(Recorder, AsksForTheNumaNodesOfLargeCopies) {
  ASSERT_EQ(run({"init", "fresh=20"}, {"--record", path("run")}).status, 0);
  auto extras = extras_of_calls(path("run"));
  // Copies of 4 bytes to the host are of this kind, too.
  EXPECT_THAT(extras[CallKind::copy], AllOf(Contains(0), SizeIs(Ge(2))));
  EXPECT_THAT(extras[CallKind::launch], ElementsAre(0));
  const int one = 1;
  const bool may_ask = recorder::node_of_memory(&one, sizeof one) != 0;
  const std::uint8_t only = recorder::only_node("/sys");
  extras[CallKind::copy].erase(0);
  for (const unsigned nodes : extras[CallKind::copy]) {
    EXPECT_EQ((nodes & 0xFFu) != 0, may_ask);
    EXPECT_NE(nodes >> 8u, 0U) << "the thread's";
    if (only != 0) {
      EXPECT_EQ(nodes, only << 8u | (may_ask ? only : 0U));
    }
  }
  command_.environment.emplace_back("PENSTOCK_RECORD_WITHOUT=nodes");
  ASSERT_EQ(run({"init", "fresh=20"}, {"--record", path("without")}).status, 0);
  EXPECT_THAT(extras_of_calls(path("without"))[CallKind::copy], ElementsAre(0));
}

TEST_F(Recorder, FindsCopiesOfMemoryAtAnotherNumaNode) {
  // The driver names a place in /sys, which leads out of it.
  const std::string device = "tmp/penstock-gpu-" + std::to_string(::getpid());
  if (!fs::exists("/sys/bus/pci/devices/../../../../tmp")) GTEST_SKIP() << "/sys names no devices";
  fs::create_directory("/" + device);
  std::ofstream("/" + device + "/numa_node") << "200\n";
  command_.environment.push_back("FAKE_BUS_ID=../../../../" + device);
  const json report = examine({"driver=" PENSTOCK_FAKE_LIBCUDA, "init", "fresh=30"});
  fs::remove_all("/" + device);
  EXPECT_THAT(found_in(report), Contains("far-memory"));
  EXPECT_THAT(places_in(report)["far-memory"], HasSubstr("program"));
  EXPECT_EQ(report.at("processes")[0].at("devices")[0].at("name"), "Fake GPU 0");
  for (const json& finding : report.at("processes")[0].at("findings")) {
    if (finding.at("id") != "far-memory") continue;
    EXPECT_THAT(finding.at("change"), HasSubstr("--membind=200"));
  }
}

TEST_F(Recorder, ANodeThatIsNotKnownIsNotExamined) {
  const json report = examine({"driver=" PENSTOCK_FAKE_LIBCUDA, "init", "fresh=30"});
  EXPECT_THAT(found_in(report), Not(Contains("far-memory")));
  if (recorder::only_node("/sys") != 0) {
    EXPECT_THAT(not_examined_in(report), Not(Contains("far-memory"))) << "all is at the only node";
  } else {
    EXPECT_THAT(not_examined_in(report), Contains("far-memory"));
  }
}

TEST_F(Recorder, TellsTheKernelBesideItsGrid) {
  command_.environment.emplace_back("FAKE_CUPTI_GRIDS=1");
  const json report = examine({"init", "steps=40"});
  const json steps = report.at("processes")[0].at("devices")[0].at("steps");
  ASSERT_TRUE(steps.is_number()) << "grids differ from step to step";
  EXPECT_THAT(steps.get<int>(), AllOf(Ge(36), ::testing::Le(40)));
}

TEST_F(Recorder, SaysThatNoCudaWasUsed) {
  const CommandResult result = run({"steps=3"});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.errors, HasSubstr("the program used no CUDA"));
}

TEST_F(Recorder, SaysThatNothingWasDone) {
  const CommandResult result = run({"init"});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.errors, HasSubstr("no work of a GPU was recorded"));
}

TEST_F(Recorder, SaysThatCuptiIsMissing) {
  command_.environment.back() = "PENSTOCK_LIBCUPTI=/nowhere/libcupti.so";
  const CommandResult result = run({"init", "steps=3", "say=done"});
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.output, "done\n");
  EXPECT_THAT(result.errors, HasSubstr("CUPTI was not found"));
}

TEST_F(Recorder, KeepsOffIfAnotherProfilerHasSubscribed) {
  command_.environment.emplace_back("FAKE_CUPTI_TAKEN=1");
  const CommandResult result = run({"init", "steps=3", "activities"});
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.output, "activities 0\n");
  EXPECT_THAT(result.errors, HasSubstr("Another profiler was recording the program already"));
}

TEST_F(Recorder, LetsTheProgramsOwnProfilerSubscribe) {
  const CommandResult result = run({"init", "steps=20", "profiler", "steps=20"});
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.output, "profiler: 0, 1 subscriber, activities 0\n");
  EXPECT_THAT(result.errors, AllOf(HasSubstr("GPU 0: 19 steps"), HasSubstr("started a profiler of its own")));
}

TEST_F(Recorder, ReportsWhatWasFlushedIfTheProgramIsKilled) {
  const CommandResult result = run({"init", "steps=30", "recorded", "kill"});
  EXPECT_EQ(result.status, 128 + SIGKILL);
  EXPECT_THAT(result.errors, AllOf(HasSubstr("GPU 0: 29 steps"), HasSubstr("without its exit handlers")));
}

TEST_F(Recorder, ReportsWhatWasFlushedIfTheProgramSkipsItsExitHandlers) {
  const CommandResult result = run({"init", "steps=30", "recorded", "_exit"});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.errors, AllOf(HasSubstr("GPU 0: 29 steps"), HasSubstr("without its exit handlers")));
}

TEST_F(Recorder, AForkedChildLeavesTheRecordingAlone) {
  const json report = examine({"init", "steps=20", "fork", "steps=20"});
  ASSERT_THAT(report.at("processes"), SizeIs(1));
  EXPECT_EQ(report.at("processes")[0].at("events"), 9 * 40);
}

TEST_F(Recorder, RecordsEachProcess) {
  command_.environment.push_back("PROGRAM=" PENSTOCK_RECORDER_PROGRAM);
  const CommandResult result =
      command_.run({"doctor", "--json", path("report.json"), "--", "sh", "-c",
                    "$PROGRAM init steps=20 & $PROGRAM init pinned=20; wait; $PROGRAM init"});
  ASSERT_EQ(result.status, 0) << result.errors;
  const json report = read_report();
  EXPECT_THAT(report.at("processes"), SizeIs(2));
  EXPECT_THAT(report.at("remarks"), SizeIs(1));
  EXPECT_NE(report.at("processes")[0].at("process"), report.at("processes")[1].at("process"));
}

TEST_F(Recorder, KeepsTheLastRecordsIfTheRingIsFull) {
  command_.environment.emplace_back("PENSTOCK_RECORDS=90");
  const CommandResult result = run({"init", "steps=50"});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.errors, AllOf(HasSubstr("90 events"), HasSubstr("keeps the last 90 of 450 records")));
}

TEST_F(Recorder, CountsRecordsThatWereDropped) {
  command_.environment.emplace_back("FAKE_CUPTI_DROPS=1");
  EXPECT_THAT(run({"init", "steps=20"}).errors, HasSubstr("CUPTI had no room for 3 records"));
}

TEST_F(Recorder, AProgramAtItsLimitForFilesGoesOn) {
  const CommandResult result = command_.run_script("ulimit -f 9550; PENSTOCK_LIBCUPTI=" PENSTOCK_FAKE_CUPTI
                                                   " \"$PENSTOCK\" doctor -- " PENSTOCK_RECORDER_PROGRAM
                                                   " init steps=8000 say=done; echo status $?");
  EXPECT_EQ(result.output, "done\nstatus 0\n");
  EXPECT_THAT(result.errors, HasSubstr("The recording keeps the last 32768 of 72000 records"));
  EXPECT_THAT(result.errors, HasSubstr("GPU 0, kernels: 16000 times"));
}

TEST_F(Recorder, PassesSignalsOn) {
  const CommandResult result = command_.interrupt({"doctor", "--", PENSTOCK_RECORDER_PROGRAM, "init",
                                                   "steps=30", "recorded", "complain=ready", "sleep=60000"},
                                                  "ready", SIGTERM);
  EXPECT_EQ(result.status, 128 + SIGTERM);
  EXPECT_THAT(result.errors, HasSubstr("GPU 0: 29 steps"));
}

TEST_F(Recorder, KeepsRecordingsAndReadsThemAgain) {
  const CommandResult first = run({"init", "steps=20"}, {"--record", path("run")});
  ASSERT_EQ(first.status, 0) << first.errors;
  const CommandResult again = command_.run({"doctor", path("run")});
  EXPECT_EQ(again.status, 0) << again.errors;
  const auto behind_the_name = [](const std::string& text) { return text.substr(text.find(": 180 events")); };
  EXPECT_EQ(behind_the_name(again.output), behind_the_name(first.errors));
  const CommandResult third = run({"init"}, {"--record", path("run")});
  EXPECT_EQ(third.status, 2);
  EXPECT_THAT(third.errors, HasSubstr("is not empty; name a new folder"));
  const std::string file = fs::directory_iterator(path("run"))->path().string();
  const CommandResult alone = command_.run({"doctor", file});
  EXPECT_EQ(alone.status, 2);
  EXPECT_THAT(alone.errors, HasSubstr("is one recording; pass its folder: penstock doctor " + path("run")));
}

TEST_F(Recorder, AFolderWithoutRecordingsIsRefused) {
  fs::create_directory(path("empty"));
  const CommandResult result = command_.run({"doctor", path("empty")});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.errors,
              AllOf(HasSubstr("holds no recording; penstock doctor --record FOLDER -- COMMAND makes"),
                    Not(HasSubstr("--record " + path("empty")))));
}

TEST_F(Recorder, ABudgetHoldsForEachProcess) {
  write("budget", "no pageable-copies\n");
  EXPECT_EQ(run({"init", "pinned=20"}, {"--budget", path("budget")}).status, 0);
  EXPECT_EQ(run({"init", "steps=20"}, {"--budget", path("budget")}).status, 3);
  EXPECT_EQ(run({"init", "steps=20", "exit=4"}, {"--budget", path("budget")}).status, 4);
  EXPECT_EQ(run({"init"}, {"--budget", path("budget")}).status, 3);  // nothing was seen to hold it
}

TEST_F(Recorder, OtherInjectionsAreRefused) {
  command_.environment.emplace_back("CUDA_INJECTION64_PATH=/opt/other.so");
  const CommandResult result = run({"init", "say=done"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.errors, HasSubstr("another profiler wants to record the program"));
  EXPECT_THAT(result.output, IsEmpty());
}

TEST_F(Recorder, SaysWhatIsWrongWithTheCommand) {
  EXPECT_THAT(command_.run({"doctor", "--", "no-such-program"}).errors,
              HasSubstr("there is no program 'no-such-program' in the PATH"));
  EXPECT_THAT(command_.run({"doctor", "--"}).errors, HasSubstr("no program behind --"));
  EXPECT_THAT(command_.run({"doctor", "--record", "run"}).errors, HasSubstr("--record needs a program"));
  command_.environment.emplace_back("PENSTOCK_RECORDER=/nowhere.so");
  EXPECT_THAT(run({"init", "steps=3"}).errors, HasSubstr("/nowhere.so"));
}

constexpr const char* kProgramSource = PENSTOCK_SOURCE "/tests/fake_cupti/program.cpp";

/// "program.cpp(12)": the line of the test's program that has this text.
std::string line_with(const std::string& text) {
  std::ifstream source(kProgramSource);
  int number = 1;
  for (std::string line; std::getline(source, line) && line.find(text) == std::string::npos;) ++number;
  return std::string(kProgramSource) + "(" + std::to_string(number) + ")";
}

TEST_F(Recorder, NamesTheLinesOfCompiledPrograms) {
  if (!fs::exists("/usr/bin/addr2line") && !fs::exists("/usr/bin/llvm-addr2line"))
    GTEST_SKIP() << "there is no addr2line";
  auto places = places_in(examine({"init", "steps=30"}));
  EXPECT_THAT(places["pageable-copies"], StartsWith(line_with("fake_copy(2'000'000")));
  EXPECT_THAT(places["synchronizations"], StartsWith(line_with("fake_item()")));
  EXPECT_THAT(places["synchronizations"], HasSubstr("work"));
}

TEST_F(Recorder, TakesRangesOfNvtxForSteps) {
  EXPECT_THAT(run({"init", "ranges=23"}).errors, HasSubstr("GPU 0: 23 steps of "));
  EXPECT_THAT(run({"init", "library=23"}).errors, HasSubstr("No steps were found"))
      << "a library's own ranges";
  command_.environment.emplace_back("NVTX_INJECTION64_PATH=/nowhere.so");
  EXPECT_THAT(run({"init", "ranges=23"}).errors, HasSubstr("No steps were found")) << "another tool has them";
}

TEST_F(Recorder, SeesAllocationsOfTheGpusMemory) {
  const json report = examine({"init", "allocating=30"});
  EXPECT_THAT(found_in(report), Contains("device-allocations"));
  EXPECT_THAT(places_in(report)["device-allocations"], HasSubstr("program"));
}

TEST_F(Recorder, NamesTheFunctionsOfCompiledProgramsWithoutTools) {
  command_.environment[0] = "PATH=/nowhere";
  const auto places = places_in(examine({"init", "steps=30"}));
  EXPECT_EQ(places.at("synchronizations"), "recorder_program: (anonymous namespace)::work()");
}

/// Interpreters whose frames can be read: those of the PATH, and pyenv's.
std::set<std::string> interpreters() {
  std::set<std::string> found;
  const char* const home = std::getenv("HOME");
  const char* const pyenv = std::getenv("PYENV_ROOT");
  const fs::path versions =
      (pyenv != nullptr ? fs::path(pyenv) : fs::path(home != nullptr ? home : "/") / ".pyenv") / "versions";
  for (int minor = 10; minor <= 14; ++minor) {
    const std::string name = "python3." + std::to_string(minor);
    for (const char* const folder : {"/usr/bin", "/usr/local/bin"}) {
      if (fs::exists(fs::path(folder) / name)) found.insert(fs::path(folder) / name);
    }
    std::error_code error;
    for (const auto& version : fs::directory_iterator(versions, error)) {
      if (fs::exists(version.path() / "bin" / name)) found.insert(version.path() / "bin" / name);
    }
  }
  return found;
}

// Frames of a caller, of a generator, and of code that an installed package calls.
constexpr const char* kTraining = R"(import ctypes, os, sys
from torch.utils.data.dataloader import Loader
gpu = ctypes.CDLL(os.environ['PENSTOCK_LIBCUPTI'])
gpu.fake_copy.argtypes = [ctypes.c_uint64, ctypes.c_int]
gpu.fake_launch.argtypes = [ctypes.c_char_p, ctypes.c_uint64]

def to_gpu(
        batch):
    Loader.copy(
        gpu)

def batches():
    for batch in Loader(20):
        yield batch

def train():
    for batch in batches():
        to_gpu(batch)
        gpu.fake_launch(b'forward', 1000000)
        gpu.fake_item()

gpu.fake_init()
train()
)";
constexpr const char* kPackage = R"(import time
class Loader:
    def __init__(self, count):
        self.count = count
    def __iter__(self):
        return self
    def __next__(self):
        if self.count == 0:
            raise StopIteration
        self.count -= 1
        return self.wait()
    def wait(self):
        time.sleep(0.02)
    @staticmethod
    def copy(gpu):
        gpu.fake_copy(2000000, 1)
)";

TEST_F(Recorder, NamesTheLinesOfPythonPrograms) {
  write("träin.py", kTraining);
  for (const char* const package : {"torch", "torch/utils", "torch/utils/data"})
    write(std::string("lib/site-packages/") + package + "/__init__.py", "");
  write("lib/site-packages/torch/utils/data/dataloader.py", kPackage);
  command_.environment.push_back("PYTHONPATH=" + path("lib/site-packages"));
  const auto pythons = interpreters();
  if (pythons.empty()) GTEST_SKIP() << "there is no Python 3.10 to 3.14";
  for (const std::string& python : pythons) {
    SCOPED_TRACE(python);
    const CommandResult result =
        command_.run({"doctor", "--json", path("report.json"), "--", python, path("träin.py")});
    ASSERT_EQ(result.status, 0) << result.errors;
    const json report = read_report();
    ASSERT_THAT(report.at("processes"), SizeIs(1)) << result.errors;
    std::map<std::string, std::string> places = places_in(report);
    EXPECT_EQ(places["pageable-copies"], path("träin.py") + "(9): to_gpu");
    EXPECT_EQ(places["synchronizations"], path("träin.py") + "(20): train");
    EXPECT_EQ(places["waiting-for-data"], path("träin.py") + "(13): batches");
  }
  // Time that the program spends elsewhere is no wait.
  std::string other = kTraining;
  other.replace(other.find("Loader(20)"), 10, "range(20)")
      .replace(other.find("        gpu.fake_item"), 0, "        time.sleep(0.02)\n");
  write("other.py", "import time\n" + other);
  const CommandResult result = command_.run({"doctor", "--", *pythons.begin(), path("other.py")});
  EXPECT_THAT(result.errors, AllOf(HasSubstr("other.py(22): train"), Not(HasSubstr("waiting-for-data"))));
}

TEST_F(Recorder, SeesWaitsForPenstocksOwnLoaders) {
  const auto pythons = interpreters();
  if (pythons.empty()) GTEST_SKIP() << "there is no Python 3.10 to 3.14";
  command_.environment.push_back("PYTHONPATH=" + path("lib/site-packages"));
  write("lib/site-packages/penstock/__init__.py", "");
  for (const std::string module : {"_loader", "_feed", "_native_feed", "_other"}) {
    SCOPED_TRACE(module);
    write("lib/site-packages/penstock/" + module + ".py", kPackage);
    std::string program = kTraining;
    program.replace(program.find("torch.utils.data.dataloader"), 27, "penstock." + module);
    write("train.py", program);
    const CommandResult result =
        command_.run({"doctor", "--json", path("report.json"), "--", *pythons.begin(), path("train.py")});
    ASSERT_EQ(result.status, 0) << result.errors;
    const json report = read_report();
    if (module == "_other") {
      EXPECT_THAT(found_in(report), Not(Contains("waiting-for-data")));
      continue;
    }
    EXPECT_EQ(places_in(report)["waiting-for-data"], path("train.py") + "(13): batches");
    EXPECT_THAT(result.errors,
                HasSubstr(module == "_loader" ? "penstock.Loader.__next__" : "penstock.feed.__next__"));
    EXPECT_THAT(result.errors, HasSubstr("change: print(loader.stats())"));
  }
}

TEST_F(Recorder, HearsOfWaitsForLoadersOfCompiledPrograms) {
  const CommandResult result = run({"fed=2", "init", "fed=30"});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.errors, AllOf(HasSubstr("waiting-for-data"), HasSubstr("penstock::Loader::next"),
                                   HasSubstr("program.cpp(83): ")));
}

// Code that is gone before anybody can ask for its name, and bytes of no sense in its place.
constexpr const char* kShortLived = R"(import ctypes, os, time
gpu = ctypes.CDLL(os.environ['PENSTOCK_LIBCUPTI'])
gpu.fake_copy.argtypes = [ctypes.c_uint64, ctypes.c_int]
gpu.fake_init()
gpu.fake_copy(2000000, 1)
end = time.monotonic() + 1
number = 0
while time.monotonic() < end:
    code = compile('for i in range(100): pass', '/nowhere/%d/%s' % (number, 'y' * (number * 7 % 900)), 'exec')
    exec(code)
    del code
    others = [b'\xff' * length for length in range(60, 900, 60)]
    number += 1
)";

TEST_F(Recorder, LooksAtCodeThatIsGoneWithoutHarm) {
  write("short_lived.py", kShortLived);
  const auto pythons = interpreters();
  if (pythons.empty()) GTEST_SKIP() << "there is no Python 3.10 to 3.14";
  for (const std::string& python : pythons) {
    SCOPED_TRACE(python);
    EXPECT_EQ(command_.run({"doctor", "--", python, path("short_lived.py")}).status, 0);
  }
}

}  // namespace
}  // namespace penstock
