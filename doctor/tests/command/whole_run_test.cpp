#include "doctor/report/whole_run.hpp"

#include "doctor/report/trace_report.hpp"
#include "support/matchers.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>

namespace penstock::cli {
namespace {

/// Ten of 100 seconds.
Recording recording() {
  Recording recording;
  recording.timeline.names = {"train.py(3): main", "train.py(3): main"};
  recording.whole_run = WholeRun{};
  recording.whole_run->seconds = 100;
  recording.whole_run->timeline_seconds = 10;
  return recording;
}

std::string text_of(const Recording& recording) { return whole_run_text(*whole_run_report(recording), 80); }

TEST(WholeRunReports, JoinStacksOfOneLine) {
  Recording two = recording();
  two.whole_run->lines = {{0, "copy", {3, 2048, 1}},
                          {1, "copy", {4, 2048, 2}},
                          {1, "pinning", {1, 0, 0.5}},
                          {std::nullopt, "kernel launch", {50, 0, 7}},
                          {0, "DataLoader.__next__", {5, 0, 20}}};
  EXPECT_EQ(text_of(two),
            "the whole run, 100 s\n"
            "  train.py(3): main, DataLoader.__next__: 5 times, 20.0 s\n"
            "  (place not recorded), kernel launch: 50 times, 7.00 s\n"
            "  train.py(3): main, copy: 7 times, 4 KiB, 3.00 s\n"
            "  train.py(3): main, pinning: 1 time, 500 ms\n\n");
  const nlohmann::ordered_json lines = whole_run_json(*whole_run_report(two))["lines"];
  EXPECT_EQ(lines[0].dump(), R"({"function":"train.py(3): main","file":"train.py","line":3,)"
                             R"("call":"DataLoader.__next__","count":5,"bytes":0,"seconds":20.0})");
  EXPECT_EQ(lines[1]["line"], nullptr);
}

TEST(WholeRunReports, TellKindsOfCopiesAndWork) {
  Recording all = recording();
  for (const RunCopies& copies : {RunCopies{0, CopyDirection::h2d, MemoryKind::pageable, MemoryKind::device},
                                  RunCopies{0, CopyDirection::h2d, MemoryKind::pageable, std::nullopt},
                                  RunCopies{0, CopyDirection::d2h, MemoryKind::device, MemoryKind::pinned},
                                  RunCopies{0, CopyDirection::d2h, MemoryKind::device, std::nullopt},
                                  RunCopies{1, CopyDirection::d2d, MemoryKind::device, MemoryKind::device}})
    all.whole_run->copies[copies] = {1, 1024, 1};
  all.whole_run->work = {{{1, false}, {9, 0, 1}}, {{1, true}, {8, 0, 1}}, {{2, true}, {}}};
  EXPECT_EQ(text_of(all),
            "the whole run, 100 s\n"
            "  GPU 0, copies from pageable memory: 2 times, 2 KiB, 2.00 s\n"
            "  GPU 0, copies to pinned memory: 1 time, 1 KiB, 1.00 s\n"
            "  GPU 0, copies to unknown memory: 1 time, 1 KiB, 1.00 s\n"
            "  GPU 1, copies within GPUs: 1 time, 1 KiB, 1.00 s\n"
            "  GPU 1, kernels: 9 times, 1.00 s\n"
            "  GPU 1, memory sets: 8 times, 1.00 s\n\n");
  const nlohmann::ordered_json json = whole_run_json(*whole_run_report(all));
  EXPECT_EQ(json["seconds"], 100);
  EXPECT_EQ(json["copies"].size(), 5U);
  EXPECT_EQ(json["copies"][0]["source"], "pageable");
  EXPECT_EQ(json["copies"][0]["destination"], nullptr);
  EXPECT_EQ(json["copies"][2]["direction"], "D2H");
  EXPECT_EQ(json["work"][1]["kind"], "memory set");
  EXPECT_EQ(json["work"][1]["count"], 8);
}

TEST(WholeRunReports, SayWhatIsLeftOut) {
  Recording many = recording();
  for (std::uint32_t i = 0; i < 12; ++i) {
    many.timeline.names.push_back("line " + std::to_string(i));
    many.whole_run->lines.push_back({2 + i, "copy", {1, 0, 1}});
  }
  many.whole_run->other_calls = {40, 512, 2};
  many.whole_run->other_work = {30, 0, 2};
  EXPECT_THAT(
      text_of(many),
      AllOf(HasSubstr("  and 2 more lines; --json has all\n"),
            HasSubstr("  others, for which the recording had no room, calls: 40 times, 512 B, 2.00 s\n"),
            HasSubstr("no room, kernels and memory sets: 30"), Not(HasSubstr("no room, copies"))));
  const nlohmann::ordered_json json = whole_run_json(*whole_run_report(many));
  EXPECT_EQ(json["lines"].size(), 12U);
  EXPECT_EQ(json["others"]["calls"]["count"], 40);
  EXPECT_EQ(json["others"]["copies"]["count"], 0);
}

TEST(WholeRunReports, OfNoTimeHaveNoShare) {
  Recording none = recording();
  none.whole_run->seconds = 0;
  none.whole_run->timeline_seconds = 0;
  EXPECT_EQ(coverage_text(*whole_run_report(none)),
            "The timeline covers the last 0 s of 0 s, 0 % of the run.");
}

}  // namespace
}  // namespace penstock::cli
