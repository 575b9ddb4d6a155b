#include "doctor/read/recording.hpp"
#include "doctor/read/recording_format.hpp"
#include "doctor/tests/recorder/recorder_fixture.hpp"
#include "doctor/timeline/timeline.hpp"
#include "support/matchers.hpp"

#include <penstock/transfer/link_profile.hpp>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
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
using testing::CommandResult;
using ::testing::Lt;

class Recorder : public testing::RecorderTest {
 protected:
  /// The report of the test's program with `words`.
  [[nodiscard]] json examine(const std::vector<std::string>& words) const {
    const CommandResult result = run(words, {"--json", path("report.json")});
    return read_report();
  }
  /// As the module in which PyTorch has its DataLoader.
  void install(const std::string& text) {
    for (const char* const package : {"torch", "torch/utils", "torch/utils/data"})
      write(std::string("lib/site-packages/") + package + "/__init__.py", "");
    write("lib/site-packages/torch/utils/data/dataloader.py", text);
    command_.environment.push_back("PYTHONPATH=" + path("lib/site-packages"));
  }
};

TEST_F(Recorder, ExaminesAProgramAndPassesItsOutputAndStatusOn) {
  const CommandResult result = run({"init", "steps=50", "say=hello", "exit=5"});
  EXPECT_EQ(result.status, 5);
  EXPECT_EQ(result.output, "hello\n");
  EXPECT_THAT(result.errors,
              AllOf(HasSubstr("GPU 0: 48 steps of 1."), HasSubstr("pageable-copies"),
                    HasSubstr("Copies from pageable memory: 1 in a step, 1.91 MiB at 10.0 GB/s"),
                    HasSubstr("Waits of the host for the GPU: 1 in a step"),
                    Not(HasSubstr("without its exit handlers"))));
}

TEST_F(Recorder, RunsWhatIsSaidToRunAndReadsWhatIsSaidToRead) {
  const CommandResult run = command_.run({"doctor", "run", "--record", path("recorded"), "--",
                                          PENSTOCK_RECORDER_PROGRAM, "init", "steps=20", "exit=5"});
  EXPECT_EQ(run.status, 5);
  EXPECT_THAT(run.errors, HasSubstr("pageable-copies"));
  const CommandResult report = command_.run({"doctor", "read", path("recorded")});
  EXPECT_EQ(report.status, 0) << report.errors;
  EXPECT_THAT(report.output, HasSubstr("pageable-copies"));
  EXPECT_EQ(report.output, command_.run({"doctor", path("recorded")}).output);
}

TEST_F(Recorder, KnowsTheLinksOfTheMachineThatTheProgramRanOn) {
  command_.environment.insert(command_.environment.end(),
                              {"PENSTOCK_LIBCUDA=" PENSTOCK_FAKE_DRIVER, "HOME=" + command_.home().string()});
  const auto gain = [&] { return read_report()["processes"][0]["findings"][0]["gain_seconds_per_step"]; };
  // A recording may be another machine's, so no profile is taken for it.
  const auto gains = [&](const std::string& folder) {
    const std::vector<std::string> as_json{"--json", path("report.json")};
    EXPECT_EQ(run({"init", "steps=20"}, testing::joined({as_json, {"--record", path(folder)}})).status, 0);
    const json here = gain();
    EXPECT_EQ(command_.run(testing::joined({{"doctor", path(folder)}, as_json})).status, 0);
    return std::pair(here, gain());
  };
  const auto [unknown, elsewhere] = gains("before");
  EXPECT_EQ(unknown, elsewhere);
  ASSERT_EQ(
      command_.run({"link", "--device", "cuda:0", "--quick", "--max-bytes", "64KiB", "--repetitions", "2"})
          .status,
      0);
  for (const fs::directory_entry& stored : fs::directory_iterator(command_.home() / ".cache/penstock")) {
    std::ifstream file(stored.path());
    LinkProfile profile = LinkProfile::parse({std::istreambuf_iterator(file), {}});
    // The links of a busy host may be no faster than those of the recording.
    for (auto& [curve, points] : profile.curves) {
      for (LinkProfile::Point& point : points) point.seconds *= 1e-3;
    }
    profile.save(stored.path());
  }
  const auto [known, elsewhere_again] = gains("after");
  EXPECT_NE(known, elsewhere_again);
}

TEST_F(Recorder, CountsEveryCallOnce) {
  const json report = examine({"init", "steps=20"});
  ASSERT_THAT(report.at("processes"), SizeIs(1));
  const json& process = report.at("processes")[0];
  EXPECT_EQ(process.at("schema"), "penstock-trace-diagnosis/1");
  EXPECT_EQ(report.at("exit_status"), 0);
  // Of each step: two copies, their two calls, two kernels, their two calls, and a synchronization.
  EXPECT_EQ(process.at("events"), 9 * 20);
  EXPECT_EQ(process.at("devices")[0].at("copies_to_device").at("count"), 18);
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
  EXPECT_THAT(run({"init", "steps=20"}, {"--no-lines"}).errors,
              HasSubstr("Left out of the recording, as it was asked for: lines."));
  EXPECT_THAT(run({"init", "again=30"}, {"--no-contents"}).errors,
              AllOf(HasSubstr("asked for: contents."), Not(HasSubstr("same-data-again"))));
  EXPECT_THAT(run({"init", "steps=3"}, {"--no-lines", "--no-contents"}).errors, HasSubstr("lines,contents."));
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
}

/// Why something was not examined, as one text.
std::string reasons_in(const json& report) {
  std::string text;
  for (const json& part : report.at("processes")[0].at("not_examined"))
    text += part.at("text").get<std::string>() + "\n";
  return text;
}

TEST_F(Recorder, JudgesNothingThatCuptiRefused) {
  const auto examine_without = [&](const std::string& refused) {
    command_.environment.back() = "FAKE_CUPTI_REFUSES=" + refused;
    const CommandResult result =
        run({"init", "steps=20"}, {"--html", path("page.html"), "--json", path("report.json")});
    EXPECT_EQ(result.status, 0) << result.errors;
    EXPECT_THAT(not_examined_in(read_report()),
                IsSupersetOf({"synchronizations", "pinning", "launch_or_sync"}));
    EXPECT_THAT(reasons_in(read_report()),
                AllOf(HasSubstr("(error 27 of CUPTI)."), Not(HasSubstr("were left out"))));
    return result.errors;
  };
  command_.environment.emplace_back();
  EXPECT_THAT(examine_without("10"), HasSubstr("Nothing was judged, as no kernels were recorded"));
  EXPECT_THAT(reasons_in(read_report()), HasSubstr("gains: CUPTI refused to record kernels."));
  const json idle = read_report().at("processes")[0].at("devices")[0];
  EXPECT_EQ(idle.at("parts").at("not_observed").at("share"), 1);
  EXPECT_EQ(idle.at("copies_to_device").at("exposed_seconds"), nullptr);
  EXPECT_THAT(read("page.html"),
              AllOf(HasSubstr("No kernels were recorded in"), HasSubstr("Nothing was judged"),
                    HasSubstr("what hides them is not known<br>"), Not(HasSubstr("Kernels run in"))));
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
                              {"FAKE_CUPTI_OLD=1", "FAKE_CUPTI_REFUSES=subscribers,5"});
  EXPECT_THAT(run({"init", "steps=20"}, {"--record", path("run")}).errors,
              HasSubstr("CUPTI refused to record"));
  const Timeline timeline = read_recordings(path("run")).at(0).timeline;
  EXPECT_FALSE(timeline.has_launches || timeline.has_calls);
  EXPECT_TRUE(timeline.refused.launches && timeline.refused.calls);
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

TEST_F(Recorder, JudgesNoCallsIfCuptiRefusesThoseOfTheDriverThatCopy) {
  // Copies have the correlation of the driver's call, also if the runtime makes it.
  for (const char* const copies : {"again=30", "again-driver=30"}) {
    SCOPED_TRACE(copies);
    command_.environment.emplace_back("FAKE_CUPTI_REFUSES=cuMemcpyHtoDAsync,cuMemcpyDtoHAsync");
    EXPECT_THAT(reasons_in(examine({"init", copies})), HasSubstr("Copies without a call: 60.\n"));
    command_.environment.back() = "FAKE_CUPTI_REFUSES=cuMemcpyHtoDAsync";
    const json report = examine({"init", copies});
    EXPECT_THAT(reasons_in(report),
                AllOf(HasSubstr("CUPTI refused to record some calls that copy. Copies without a call: 30.\n"),
                      HasSubstr("CUPTI refused to record calls other than launches.")));
    EXPECT_THAT(not_examined_in(report),
                IsSupersetOf({"blocking-copies", "exposed-copies", "same-data-again"}));
    command_.environment.pop_back();
    EXPECT_THAT(reasons_in(examine({"init", copies})), Not(HasSubstr("CUPTI refused")));
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

/// The reasons of a finding of the first process. Empty: it is not found.
std::string meaning_in(const json& report, const std::string& id) {
  for (const json& finding : report.at("processes")[0].at("findings")) {
    if (finding.at("id") == id) return finding.at("meaning");
  }
  return "";
}

TEST_F(Recorder, SeesCopiesThatTheDefaultStreamHoldsUp) {
  EXPECT_THAT(meaning_in(examine({"init", "default-stream=40"}), "exposed-copies"),
              HasSubstr("work on the default stream waits"));
  // The same copies and kernels, all of them on the default stream.
  EXPECT_THAT(meaning_in(examine({"init", "pinned=40"}), "exposed-copies"), Not(HasSubstr("default stream")));
}

TEST_F(Recorder, ManagesWithoutTheKindsOfStreams) {
  command_.environment.emplace_back("FAKE_CUPTI_NO_STREAMS=1");
  const CommandResult result = run({"init", "default-stream=40"}, {"--json", path("report.json")});
  EXPECT_THAT(result.errors, Not(HasSubstr("CUPTI refused")));
  EXPECT_THAT(meaning_in(read_report(), "exposed-copies"), HasSubstr("a stream of their own"));
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

TEST_F(Recorder, NamesTheDevices) {
  const json report = examine({"driver=" PENSTOCK_FAKE_LIBCUDA, "init", "fresh=30"});
  EXPECT_EQ(report.at("processes")[0].at("devices")[0].at("name"), "Fake GPU 0");
}

TEST_F(Recorder, TellsTheKernelBesideItsGrid) {
  command_.environment.emplace_back("FAKE_CUPTI_GRIDS=1");
  const json report = examine({"init", "steps=40"});
  const json steps = report.at("processes")[0].at("devices")[0].at("steps");
  ASSERT_TRUE(steps.is_number()) << "grids differ from step to step";
  EXPECT_THAT(steps.get<int>(), AllOf(Ge(36), ::testing::Le(40)));
}

TEST_F(Recorder, SaysThatNothingWasRecordedAndWhatTheReasonMayBe) {
  const std::string words =
      "nothing was recorded: no process loaded the recorder. Either none used CUDA, or they did not get this "
      "environment (containers, sudo, ssh).";
  const CommandResult result = run({"steps=3"});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.errors, HasSubstr(words));
  EXPECT_THAT(command_
                  .run({"doctor", "--", "env", "-u", "CUDA_INJECTION64_PATH", PENSTOCK_RECORDER_PROGRAM,
                        "init", "steps=3"})
                  .errors,
              HasSubstr(words));
}

TEST_F(Recorder, AFileThatCannotBeReadCostsOnlyItself) {
  const CommandResult result = run_script("$PROGRAM init steps=30; : >$PENSTOCK_RECORD/1.penstock; exit 7",
                                          {"--json", path("report.json"), "--record", path("run")});
  EXPECT_EQ(result.status, 7);
  EXPECT_THAT(result.errors, AllOf(HasSubstr("GPU 0: 28 steps"),
                                   HasSubstr("1.penstock: it is not a recording of penstock doctor.")));
  const json report = read_report();
  EXPECT_THAT(report.at("processes"), SizeIs(1));
  EXPECT_THAT(report.at("remarks"), SizeIs(1));
  const CommandResult again = command_.run({"doctor", path("run")});
  EXPECT_EQ(again.status, 0);
  EXPECT_THAT(again.output, AllOf(HasSubstr("GPU 0: 28 steps"), HasSubstr("1.penstock: it is not")));
  write("bad/1.penstock", "");
  EXPECT_EQ(command_.run({"doctor", path("bad")}).status, 1);
}

TEST_F(Recorder, AFailureOfTheReportKeepsTheStatusAndWhatWasRecorded) {
  fs::create_directory(path("out"));
  command_.environment.push_back("OUT=" + path("out"));
  const CommandResult result =
      run_script("$PROGRAM init steps=30; rm -r $OUT; exit 7", {"--json", path("out/report.json")});
  EXPECT_EQ(result.status, 7);
  EXPECT_THAT(result.errors, AllOf(HasSubstr("GPU 0: 28 steps"), HasSubstr("report.json cannot be written")));
  const std::string before = "penstock: the recordings stay in ";
  ASSERT_THAT(result.errors, HasSubstr(before));
  const std::size_t begin = result.errors.find(before) + before.size();
  const std::string folder = result.errors.substr(begin, result.errors.find(';', begin) - begin);
  EXPECT_THAT(command_.run({"doctor", folder}).output, HasSubstr("GPU 0: 28 steps"));
  fs::remove_all(folder);
  const CommandResult gone =
      run_script("rm -r $PENSTOCK_RECORD; : >$PENSTOCK_RECORD; exit 7", {"--record", path("run")});
  EXPECT_EQ(gone.status, 7);
  EXPECT_THAT(gone.errors, HasSubstr("run cannot be read: Not a directory"));
  fs::remove(path("run"));
  EXPECT_EQ(run_script("rm -r $PENSTOCK_RECORD; : >$PENSTOCK_RECORD", {"--record", path("run")}).status, 1);
}

TEST_F(Recorder, RefusesAFolderWithoutRoom) {
  const std::string program = "\"$PENSTOCK\" doctor -- " PENSTOCK_RECORDER_PROGRAM " init say=started";
  const CommandResult limited = command_.run_script("ulimit -f 1000; " + program);
  EXPECT_EQ(limited.status, 1);
  EXPECT_THAT(limited.errors, HasSubstr("a recording takes 3.53 MiB at least, and files may have "));
  EXPECT_THAT(limited.output, IsEmpty());
  const std::string mount = "mount -t tmpfs -o size=1m tmpfs small 2>/dev/null || exit 77; ";
  fs::create_directory(path("small"));
  const CommandResult full = command_.run_script("exec unshare -rm sh -c '" + mount +
                                                 "export TMPDIR=$PWD/small; exec " + program + "'");
  EXPECT_THAT(full.output, IsEmpty());
  if (full.status == 77 || full.errors.find("unshare") != std::string::npos)
    GTEST_SKIP() << "no file system can be mounted here";
  EXPECT_THAT(full.errors, HasSubstr("small has room for 1 MiB, and a recording takes 3.53 MiB at least"));
}

TEST_F(Recorder, TellsOfAProcessThatHadNoRoom) {
  const CommandResult result = run_script("$PROGRAM init steps=20; ulimit -f 1000; $PROGRAM init steps=20",
                                          {"--json", path("report.json")});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(
      result.errors,
      AllOf(
          HasSubstr("GPU 0: 18 steps"),
          HasSubstr(".penstock.unfinished: its process ended before it was recorded, or there was no room")));
  EXPECT_THAT(read_report().at("remarks"), SizeIs(1));
}

TEST_F(Recorder, RefusesFoldersForTemporaryFilesThatDoNotExist) {
  command_.environment.emplace_back("TMPDIR=/nonexistent");
  const CommandResult result = run({"say=started"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.errors,
              HasSubstr("penstock: TMPDIR names '/nonexistent', which is not a folder; correct it"));
  EXPECT_THAT(result.output, IsEmpty());
}

TEST_F(Recorder, ItsStandardOutputHasOnlyWhatIsWrittenThere) {
  const CommandResult result = run({"init", "steps=20", "say=hello"}, {"--json", "-"});
  EXPECT_EQ(result.status, 0);
  EXPECT_TRUE(json::accept(result.output)) << result.output;
  EXPECT_THAT(result.errors, AllOf(HasSubstr("hello\n"), HasSubstr("GPU 0: 18 steps")));
  const CommandResult verified =
      run({"init", "steps=20"}, {"--json", "-", "--verify", "$PROGRAM init pinned=20 say=changed"});
  EXPECT_TRUE(json::accept(verified.output)) << verified.output;
  EXPECT_THAT(verified.errors, HasSubstr("changed\n"));
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
  EXPECT_THAT(result.errors, AllOf(HasSubstr("GPU 0: 18 steps"), HasSubstr("started a profiler of its own")));
}

TEST_F(Recorder, ReportsWhatWasFlushedIfTheProgramIsKilled) {
  const CommandResult result = run({"init", "steps=30", "recorded", "kill"});
  EXPECT_EQ(result.status, 128 + SIGKILL);
  EXPECT_THAT(result.errors, AllOf(HasSubstr("GPU 0: 28 steps"), HasSubstr("without its exit handlers")));
}

TEST_F(Recorder, ReportsWhatWasFlushedIfTheProgramSkipsItsExitHandlers) {
  const CommandResult result = run({"init", "steps=30", "recorded", "_exit"});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.errors, AllOf(HasSubstr("GPU 0: 28 steps"), HasSubstr("without its exit handlers")));
}

TEST_F(Recorder, AForkedChildLeavesTheRecordingAlone) {
  const json report = examine({"init", "steps=20", "fork", "steps=20"});
  ASSERT_THAT(report.at("processes"), SizeIs(1));
  EXPECT_EQ(report.at("processes")[0].at("events"), 9 * 40);
}

TEST_F(Recorder, AChildThatIsForkedWhileRecordsAreReadEnds) {
  command_.environment.emplace_back("FAKE_CUPTI_SLOW=1");
  EXPECT_EQ(run({"init", "steps=20", "recorded", "fork"}).status, 0);
}

TEST_F(Recorder, RecordsEachProcess) {
  const CommandResult result =
      run_script("$PROGRAM init steps=20 & $PROGRAM init pinned=20; wait; $PROGRAM init",
                 {"--json", path("report.json")});
  ASSERT_EQ(result.status, 0) << result.errors;
  const json report = read_report();
  EXPECT_THAT(report.at("processes"), SizeIs(2));
  EXPECT_THAT(report.at("remarks"), SizeIs(1));
  EXPECT_NE(report.at("processes")[0].at("process"), report.at("processes")[1].at("process"));
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
}

TEST_F(Recorder, SaysWhichPartOfALongRunItsReportCovers) {
  const auto told = [&](const char* records) {
    command_.environment.back() = std::string("PENSTOCK_RECORDS=") + records;
    const CommandResult result =
        run({"init", "steps=50"}, {"--json", path("report.json"), "--html", path("page.html")});
    return std::vector<std::string>{result.errors, reasons_in(read_report()), read("page.html")};
  };
  command_.environment.emplace_back();
  EXPECT_THAT(told("90"), ::testing::Each(ContainsRegex(
                              "The recording keeps the last 90(&nbsp;| )of 450(&nbsp;| )records, so the "
                              "report covers only the\\s+last [0-9.]+(&nbsp;| )ms\\.")));
  EXPECT_THAT(told("450"), ::testing::Each(Not(HasSubstr("keeps the last"))));
}

TEST_F(Recorder, PassesSignalsOn) {
  const CommandResult result = command_.interrupt({"doctor", "--", PENSTOCK_RECORDER_PROGRAM, "init",
                                                   "steps=30", "recorded", "complain=ready", "sleep=60000"},
                                                  "ready", SIGTERM);
  EXPECT_EQ(result.status, 128 + SIGTERM);
  EXPECT_THAT(result.errors, HasSubstr("GPU 0: 28 steps"));
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
  EXPECT_EQ(alone.status, 0) << alone.errors;
  EXPECT_EQ(behind_the_name(alone.output), behind_the_name(first.errors));
  const CommandResult several = command_.run({"doctor", "trace.json", file});
  EXPECT_EQ(several.status, 2);
  EXPECT_THAT(several.errors, HasSubstr("is a recording; pass it alone"));
}

TEST_F(Recorder, AFolderWithoutRecordingsIsRefused) {
  fs::create_directory(path("empty"));
  const CommandResult result = command_.run({"doctor", path("empty")});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.errors,
              AllOf(HasSubstr("holds no recording; penstock doctor --record FOLDER -- COMMAND makes"),
                    Not(HasSubstr("--record " + path("empty")))));
}

TEST_F(Recorder, ShowsAllProcessesOnOnePage) {
  const CommandResult result = run_script("$PROGRAM init pinned=40; $PROGRAM init steps=20",
                                          {"--json", path("report.json"), "--html", path("page.html")});
  ASSERT_EQ(result.status, 0) << result.errors;
  const json processes = read_report().at("processes");
  const auto name = [&](std::size_t i) {
    return "process " + std::to_string(processes.at(i).at("process").get<int>());
  };
  const std::string page = read("page.html");
  const auto times = [&page](const std::string& words) { return testing::count_of(page, words); };
  for (const std::size_t i : {0, 1}) {
    const std::string heading = "<h3 class=\"process\">" + name(i) + "</h3>\n";
    EXPECT_EQ(times(heading + "<h3>GPU 0"), 1U);
    EXPECT_EQ(times(heading), 2U) << "it has an account and findings";
    EXPECT_EQ(times(processes.at(i).at("trace").get<std::string>() + ": "), 1U);
  }
  EXPECT_EQ(times("</span>pageable-copies</h3>"), 1U);
  EXPECT_GT(page.find("</span>pageable-copies</h3>"), page.rfind("\"process\">" + name(1)));
  EXPECT_THAT(page, HasSubstr("The most to gain is in " + name(1) + ", by pageable-copies: "));
}

TEST_F(Recorder, SaysOnceWhatItDidNotExamineInAllProcesses) {
  const CommandResult result = run_script("$PROGRAM init steps=20; $PROGRAM init steps=2",
                                          {"--json", path("report.json"), "--html", path("page.html")});
  ASSERT_EQ(result.status, 0) << result.errors;
  const std::string number = std::to_string(read_report().at("processes").at(1).at("process").get<int>());
  const std::string page = read("page.html");
  const std::size_t all = page.find("<li>Waiting for data: ");
  ASSERT_NE(all, std::string::npos);
  EXPECT_EQ(page.find("<li>Waiting for data: ", all + 1), std::string::npos);
  EXPECT_EQ(page.substr(all, page.find("</li>", all) - all).find("(process"), std::string::npos);
  EXPECT_THAT(page, HasSubstr("fewer than 4&nbsp;steps were recorded. (process " + number + ")</li>"));
  EXPECT_THAT(page, HasSubstr("% of the time.")) << "only one of them has steps";
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
  EXPECT_THAT(command_.run({"doctor", "--record", "run"}).errors,
              HasSubstr("a program behind -- is required"));
  for (const std::vector<std::string>& other :
       {std::vector<std::string>{"--loader", "a.py:b"}, {"base.json"}}) {
    const CommandResult both = run({"say=started"}, other);
    EXPECT_EQ(both.status, 2);
    EXPECT_THAT(both.errors, HasSubstr(other.back()));
    EXPECT_THAT(both.output, IsEmpty());
  }
  command_.environment.emplace_back("PENSTOCK_RECORDER=/nowhere.so");
  const CommandResult missing = run({"init", "say=started"});
  EXPECT_EQ(missing.status, 1);
  EXPECT_THAT(missing.errors, HasSubstr("PENSTOCK_RECORDER names '/nowhere.so', and there is no such file"));
  EXPECT_THAT(missing.output, IsEmpty());
}

TEST_F(Recorder, SaysWhyAProgramCannotBeStarted) {
  EXPECT_THAT(command_.run({"doctor", "--", "./nothere/program"}).errors,
              HasSubstr("penstock: there is no file './nothere/program'\n"));
  EXPECT_THAT(command_.run({"doctor", "--", "no-train.py", "--epochs", "3"}).errors,
              HasSubstr("no program 'no-train.py' in the PATH; "
                        "write penstock doctor -- python no-train.py --epochs 3\n"));
  write("unknown-script", "#! /nope/python -s\n");
  fs::permissions(path("unknown-script"), fs::perms::owner_all);
  const std::string words =
      path("unknown-script") + " cannot be started: its first line asks for /nope/python, which is missing";
  EXPECT_THAT(command_.run({"doctor", "--", path("unknown-script")}).errors, HasSubstr(words));
  command_.environment[0] = "PATH=/usr/bin:" + command_.home().string();
  EXPECT_THAT(command_.run({"doctor", "--", "unknown-script"}).errors, HasSubstr(words));
}

TEST_F(Recorder, SaysWhatToDoAboutAFileThatIsNotExecutable) {
  for (const char* name : {"train.sh", "train.py", "train"}) write(name, "#!/bin/sh\nexit 0\n");
  const auto complaint = [this](const std::string& word) {
    const CommandResult result = command_.run({"doctor", "--", word, "--epochs", "3"});
    EXPECT_EQ(result.status, 1);
    return result.errors;
  };
  const std::string begin = " cannot be started: it is not executable; write chmod +x ";
  for (const auto& [name, interpreter] : {std::pair("train.sh", "bash "), {"train.py", "python "}}) {
    const std::string file = path(name);
    EXPECT_EQ(complaint(file), "penstock: " + file + begin + file + ", or penstock doctor -- " + interpreter +
                                   file + " --epochs 3\n");
  }
  EXPECT_EQ(complaint(path("train")), "penstock: " + path("train") + begin + path("train") + "\n");
  command_.environment[0] = "PATH=/usr/bin:" + command_.home().string();
  EXPECT_THAT(complaint("train"), HasSubstr(path("train") + begin + path("train") + "\n"));
}

TEST_F(Recorder, SaysThatAFolderOrATextIsNotAProgram) {
  const auto complaint = [this](const std::string& word) {
    return command_.run({"doctor", "--", word}).errors;
  };
  fs::create_directory(path("folder"));
  EXPECT_EQ(complaint(path("folder")),
            "penstock: " + path("folder") + " cannot be started: it is a folder; name a program in it\n");
  write("words.sh", "exit 0\n");
  fs::permissions(path("words.sh"), fs::perms::owner_all);
  EXPECT_THAT(
      complaint(path("words.sh")),
      AllOf(HasSubstr("cannot be started: it is neither a program for this machine nor a script "),
            HasSubstr("such as #!/bin/bash; write penstock doctor -- bash " + path("words.sh") + "\n")));
  EXPECT_THAT(complaint("no-train.sh"),
              HasSubstr("no program 'no-train.sh' in the PATH; write penstock doctor -- bash no-train.sh\n"));
}

TEST_F(Recorder, KnowsNoPlacesOfCompiledProgramsButWhatToChangeInThem) {
  const json report = examine({"init", "steps=30"});
  EXPECT_THAT(places_in(report),
              ElementsAre(std::pair("pageable-copies", ""), std::pair("synchronizations", "")));
  EXPECT_THAT(report.at("processes")[0].at("findings")[0].at("change"), HasSubstr("cudaMallocHost"));
  EXPECT_THAT(reasons_in(report), HasSubstr("Places in the program: no lines of Python were recorded.\n"));
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
  install(kPackage);
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
  EXPECT_THAT(result.errors, AllOf(HasSubstr("other.py(22): train"), HasSubstr("host-work"),
                                   HasSubstr("other.py(21): train"), Not(HasSubstr("waiting-for-data"))));
}

// A step of 12 ms in its own code, most of them within a package; or a hundred launches.
constexpr const char* kWorking = R"(import ctypes, os, sys, time
from numpy import slow
gpu = ctypes.CDLL(os.environ['PENSTOCK_LIBCUPTI'])
gpu.fake_copy.argtypes = [ctypes.c_uint64, ctypes.c_int]
gpu.fake_launch.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
gpu.fake_sleep.argtypes = [ctypes.c_uint64]

def decode():
    slow.work(0.006)
    time.sleep(0.006)

def launch():
    for _ in range(100):
        gpu.fake_launch(b'small', 1000)

gpu.fake_init()
for step in range(25):
    if 'decode' in sys.argv:
        decode()
    if 'launch' in sys.argv:
        launch()
    if 'sleep' in sys.argv:
        gpu.fake_sleep(12000000)
    gpu.fake_copy(2000000, 1)
    gpu.fake_launch(b'forward', 1000000)
    gpu.fake_item()
)";
constexpr const char* kSlowPackage = R"(import time
def work(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        time.sleep(0.0001)
)";

class WorkingRecorder : public Recorder {
 protected:
  void SetUp() override {
    if (interpreters().empty()) GTEST_SKIP() << "there is no Python 3.10 to 3.14";
    write("lib/site-packages/numpy/__init__.py", "");
    write("lib/site-packages/numpy/slow.py", kSlowPackage);
    write("work.py", kWorking);
    command_.environment.push_back("PYTHONPATH=" + path("lib/site-packages"));
  }
  [[nodiscard]] json examine_python(const std::string& python, const std::string& word,
                                    const std::vector<std::string>& options = {}) const {
    EXPECT_EQ(
        command_
            .run(testing::joined(
                {{"doctor", "--json", path("report.json")}, options, {"--", python, path("work.py"), word}}))
            .status,
        0);
    return read_report();
  }
};

TEST_F(WorkingRecorder, NamesTheLinesOfTheProgramsOwnWork) {
  for (const std::string& python : interpreters()) {
    SCOPED_TRACE(python);
    const json report = examine_python(python, "decode");
    ASSERT_THAT(found_in(report), Contains("host-work"));
    EXPECT_THAT(not_examined_in(report), Not(Contains("host-work")));
    std::set<std::string> lines;
    for (const json& finding : report.at("processes")[0].at("findings")) {
      if (finding.at("id") != "host-work") continue;
      for (const json& place : finding.at("places")) lines.insert(place.at("function"));
    }
    EXPECT_THAT(lines, IsSupersetOf({path("work.py") + "(9): decode", path("work.py") + "(10): decode"}));
  }
}

TEST_F(WorkingRecorder, FindsNoWorkBetweenLaunches) {
  EXPECT_THAT(found_in(examine_python(*interpreters().begin(), "launch")), Not(Contains("host-work")));
}

/// Those that are a millisecond from the ends of a call at least.
std::ptrdiff_t looks_within_calls(const Timeline& timeline) {
  return std::ranges::count_if(timeline.looks, [&timeline](const TimelineLook& look) {
    return std::ranges::any_of(timeline.calls, [&look](const TimelineCall& call) {
      return call.thread == look.thread && look.time > call.time.begin + 1'000'000 &&
             look.time + 1'000'000 < call.time.end;
    });
  });
}

TEST_F(WorkingRecorder, LooksAtNothingInACall) {
  const json report = examine_python(*interpreters().begin(), "sleep", {"--record", path("run")});
  EXPECT_THAT(found_in(report), Not(Contains("host-work")));
  const Timeline timeline = read_recordings(path("run")).at(0).timeline;
  EXPECT_TRUE(timeline.has_looks);
  // A call may begin while the recorder looks.
  EXPECT_LT(looks_within_calls(timeline), 5);
}

TEST_F(WorkingRecorder, LooksAtNothingWithoutLines) {
  const json report =
      examine_python(*interpreters().begin(), "decode", {"--no-lines", "--record", path("run")});
  EXPECT_THAT(found_in(report), Not(Contains("host-work")));
  EXPECT_THAT(not_examined_in(report), Contains("host-work"));
  EXPECT_THAT(read_recordings(path("run")).at(0).timeline.looks, IsEmpty());
}

TEST_F(WorkingRecorder, KeepsNoFramesThatSayNothing) {
  static_cast<void>(examine_python(*interpreters().begin(), "decode", {"--record", path("run")}));
  std::ifstream file(fs::directory_iterator(path("run"))->path(), std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(bytes, HasSubstr("work.py"));
  EXPECT_EQ(bytes.find("numpy/slow.py"), std::string::npos);
}

// A line for each look, and more of them than the recorder makes stacks of.
constexpr const char* kManyLines = R"(import ctypes, os
gpu = ctypes.CDLL(os.environ['PENSTOCK_LIBCUPTI'])
gpu.fake_copy.argtypes = [ctypes.c_uint64, ctypes.c_int]
gpu.fake_init()
gpu.fake_copy(2000000, 1)
lines = ['import time']
for i in range(4000):
    lines.append('time.sleep(0.001)')
    if i % 10 == 9:
        lines.append('copy(2000000, 1)')
exec(compile('\n'.join(lines), 'many.py', 'exec'), {'copy': gpu.fake_copy})
)";

TEST_F(WorkingRecorder, LeavesRoomForThePlacesOfCalls) {
  write("many.py", kManyLines);
  const CommandResult result =
      command_.run({"doctor", "--record", path("run"), "--", *interpreters().begin(), path("many.py")});
  ASSERT_EQ(result.status, 0) << result.errors;
  const Timeline timeline = read_recordings(path("run")).at(0).timeline;
  std::set<std::uint32_t> places;
  for (const TimelineLook& look : timeline.looks) places.insert(look.name);
  EXPECT_GT(places.size(), 100U);
  EXPECT_LE(places.size(), 1100U) << "with those that calls had before";
}

TEST_F(Recorder, SeesWaitsForPenstocksOwnLoaders) {
  const auto pythons = interpreters();
  if (pythons.empty()) GTEST_SKIP() << "there is no Python 3.10 to 3.14";
  command_.environment.push_back("PYTHONPATH=" + path("lib/site-packages"));
  write("lib/site-packages/penstock/__init__.py", "");
  for (const std::string module : {"_loader.loader", "_feed.iterator", "_feed.native", "_feed.other"}) {
    SCOPED_TRACE(module);
    std::string file = module;
    std::ranges::replace(file, '.', '/');
    write("lib/site-packages/penstock/" + file + ".py", kPackage);
    std::string program = kTraining;
    program.replace(program.find("torch.utils.data.dataloader"), 27, "penstock." + module);
    write("train.py", program);
    const CommandResult result =
        command_.run({"doctor", "--json", path("report.json"), "--", *pythons.begin(), path("train.py")});
    ASSERT_EQ(result.status, 0) << result.errors;
    const json report = read_report();
    if (module == "_feed.other") {
      EXPECT_THAT(found_in(report), Not(Contains("waiting-for-data")));
      continue;
    }
    EXPECT_EQ(places_in(report)["waiting-for-data"], path("train.py") + "(13): batches");
    EXPECT_THAT(result.errors, HasSubstr(module == "_loader.loader" ? "penstock.Loader.__next__"
                                                                    : "penstock.feed.__next__"));
    EXPECT_THAT(result.errors, HasSubstr("change: print(loader.stats())"));
  }
}

TEST_F(Recorder, PlacesAWaitOutsideTheOutermostLoader) {
  const auto pythons = interpreters();
  if (pythons.empty()) GTEST_SKIP() << "there is no Python 3.10 to 3.14";
  std::string package = kPackage;
  package.replace(package.find("time.sleep(0.02)"), 16, "Source().__next__()");
  // Not installed, so that its own lines are of the program, too.
  command_.environment.push_back("PYTHONPATH=" + path("source"));
  write("source/penstock/__init__.py", "");
  write("source/penstock/_feed/iterator.py",
        package + "class Source:\n    def __next__(self):\n        time.sleep(0.02)\n");
  std::string program = kTraining;
  program.replace(program.find("torch.utils.data.dataloader"), 27, "penstock._feed.iterator");
  write("train.py", program);
  const CommandResult result =
      command_.run({"doctor", "--json", path("report.json"), "--", *pythons.begin(), path("train.py")});
  ASSERT_EQ(result.status, 0) << result.errors;
  EXPECT_EQ(places_in(read_report())["waiting-for-data"], path("train.py") + "(13): batches");
}

TEST_F(Recorder, HearsOfWaitsForLoadersOfCompiledPrograms) {
  const CommandResult result = run({"fed=2", "init", "fed=30"});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.errors, AllOf(HasSubstr("waiting-for-data"), HasSubstr("penstock::Loader::next")));
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
    gpu.fake_copy(2000000, 1)
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
