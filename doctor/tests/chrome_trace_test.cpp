#include "doctor/report/chrome_trace.hpp"

#include "doctor/tests/timelines.hpp"
#include "support/matchers.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using nlohmann::json;
using test::TimelineBuilder;

std::string written(const Timeline& timeline, const Diagnosis& diagnosis, bool gzip = false) {
  std::string text;
  write_chrome_trace(timeline, diagnosis, [&text](std::string_view piece) { text += piece; }, gzip);
  return text;
}

json trace_of(const Timeline& timeline) {
  return json::parse(written(timeline, diagnose_timeline(timeline)));
}

/// Nanoseconds of a number of microseconds.
std::int64_t ns(const json& value) { return std::llround(value.get<double>() * 1000); }

/// Checks a trace against the trace event format, and what this writer adds to it: each event has what its
/// phase asks for, each track is named and belongs to one process, and its events are in order and nest.
void expect_valid(const json& trace) {
  std::map<int, int> process_of;
  std::map<int, std::vector<std::int64_t>> open;
  std::map<int, std::int64_t> last;
  std::set<int> named_processes;
  std::set<int> named_tracks;
  EXPECT_THAT((std::set<std::string>{"ms", "ns"}), Contains(trace["displayTimeUnit"]));
  ASSERT_TRUE(trace["traceEvents"].is_array());
  for (const json& event : trace["traceEvents"]) {
    ASSERT_TRUE(event["pid"].is_number_integer() && event["tid"].is_number_integer()) << event;
    ASSERT_TRUE(event["name"].is_string()) << event;
    const int pid = event["pid"];
    const int tid = event["tid"];
    if (event["ph"] == "M") {
      const std::string name = event["name"];
      const bool is_name = name == "process_name" || name == "thread_name";
      ASSERT_TRUE(is_name || name == "process_sort_index" || name == "thread_sort_index") << event;
      EXPECT_TRUE(is_name ? event["args"]["name"].is_string()
                          : event["args"]["sort_index"].is_number_integer());
      if (name == "process_name") named_processes.insert(pid);
      if (name == "thread_name") {
        EXPECT_TRUE(named_tracks.insert(tid).second) << event;
        process_of[tid] = pid;
      }
      continue;
    }
    ASSERT_EQ(event["ph"], "X") << event;
    ASSERT_TRUE(event["cat"].is_string()) << event;
    ASSERT_TRUE(event["ts"].is_number() && event["dur"].is_number()) << event;
    EXPECT_TRUE(!event.contains("args") || event["args"].is_object()) << event;
    const std::int64_t begin = ns(event["ts"]);
    const std::int64_t end = begin + ns(event["dur"]);
    EXPECT_GE(begin, last[tid]) << event;
    EXPECT_GE(end, begin) << event;
    EXPECT_THAT(named_processes, Contains(pid));
    EXPECT_THAT(named_tracks, Contains(tid));
    EXPECT_EQ(process_of[tid], pid);
    last[tid] = begin;
    std::vector<std::int64_t>& around = open[tid];
    while (!around.empty() && around.back() <= begin) around.pop_back();
    EXPECT_TRUE(around.empty() || end <= around.back()) << event;
    around.push_back(end);
  }
}

/// The events of a category.
std::vector<json> events_of(const json& trace, std::string_view category) {
  std::vector<json> found;
  for (const json& event : trace["traceEvents"]) {
    if (event.value("cat", "") == category) found.push_back(event);
  }
  return found;
}

std::vector<std::string> track_names(const json& trace, std::string_view what = "thread_name") {
  std::vector<std::string> names;
  for (const json& event : trace["traceEvents"]) {
    if (event["name"] == what) names.push_back(event["args"]["name"]);
  }
  return names;
}

/// Steps of 1 ms with a pageable copy of 4 MB, a kernel and a wait for the loader. The clock starts at
/// `start`.
TimelineBuilder pageable_loop(std::int64_t start = 0) {
  TimelineBuilder builder;
  for (std::int64_t t = start; t < start + 5000; t += 1000) builder.pageable_step(t, 502);
  return builder;
}

TEST(ChromeTrace, HoldsWhatWasRecordedAndFound) {
  const json trace = trace_of(pageable_loop().sorted());
  expect_valid(trace);
  EXPECT_THAT(events_of(trace, "kernel"), SizeIs(5));
  EXPECT_THAT(events_of(trace, "copy"), SizeIs(5));
  EXPECT_THAT(events_of(trace, "call"), SizeIs(15));
  EXPECT_THAT(events_of(trace, "operator"), SizeIs(5));
  EXPECT_THAT(events_of(trace, "frame"), SizeIs(5));
  EXPECT_THAT(events_of(trace, "loader"), SizeIs(5));
  EXPECT_THAT(events_of(trace, "step"), SizeIs(5));
  EXPECT_EQ(trace["otherData"]["left_out"], "0");
  const json copy = events_of(trace, "copy")[1];
  EXPECT_EQ(copy["name"], "copy H2D");
  EXPECT_EQ(ns(copy["ts"]), 1'102'000);
  EXPECT_EQ(ns(copy["dur"]), 400'000);
  EXPECT_EQ(copy["args"]["bytes"], 4'000'000);
  EXPECT_EQ(copy["args"]["GB/s"], 10.0);
  EXPECT_EQ(copy["args"]["from"], "pageable");
  EXPECT_THAT(track_names(trace, "process_name"), ElementsAre("penstock doctor", "host", "GPU 0"));
}

TEST(ChromeTrace, HasATrackForEachFindingWithItsEvidence) {
  const json trace = trace_of(pageable_loop().sorted());
  const std::vector<json> findings = events_of(trace, "finding");
  ASSERT_THAT(findings, SizeIs(2));
  EXPECT_THAT(track_names(trace),
              IsSupersetOf({"steps", "medium: pageable-copies", "medium: waiting-for-data"}));
  for (const json& finding : findings) {
    EXPECT_EQ(ns(finding["ts"]), 0);
    EXPECT_EQ(ns(finding["dur"]), 5'000'000);
    EXPECT_THAT(finding["args"]["places"], SizeIs(1));
    EXPECT_THAT(finding["args"]["text"].get<std::string>(), HasSubstr("a step"));
  }
  const std::vector<json> evidence = events_of(trace, "evidence");
  ASSERT_THAT(evidence, SizeIs(10));
  EXPECT_EQ(evidence[1]["name"], "pageable-copies");
  EXPECT_EQ(ns(evidence[1]["ts"]), 1'102'000);
}

TEST(ChromeTrace, CountsTimesFromTheFirstRecord) {
  // As PyTorch's profiler counts: since 1970. A double of microseconds would lose the nanoseconds.
  Timeline timeline = pageable_loop(1'700'000'000'000'000).sorted();
  for (TimelineWork& work : timeline.work) ++work.time.begin;
  const json trace = trace_of(timeline);
  expect_valid(trace);
  EXPECT_EQ(ns(events_of(trace, "kernel")[0]["ts"]), 522'001);
}

TEST(ChromeTrace, GivesEventsThatDoNotNestTracksOfTheirOwn) {
  TimelineBuilder builder;
  builder.kernel(0, 10, 30);
  builder.kernel(1, 20, 40);  // overlaps the one before it
  builder.kernel(2, 40, 50);
  builder.kernel(3, 40, 50, 8);
  builder.copy(CopyDirection::d2h, MemoryKind::pinned, 8, 5, 6, 35, 45);
  builder.op("aten::a", 100, 120);
  builder.op("aten::b", 110, 130);
  const json trace = trace_of(builder.sorted());
  expect_valid(trace);
  EXPECT_THAT(events_of(trace, "kernel"), SizeIs(4));
  EXPECT_THAT(events_of(trace, "operator"), SizeIs(2));
  EXPECT_THAT(track_names(trace),
              ElementsAre("thread 0", "thread 0 (2)", "stream 7", "stream 7 (2)", "stream 8"));
}

TEST(ChromeTrace, PutsTheLongerOfTwoThatBeginAtOnceFirst) {
  TimelineBuilder builder;
  builder.call(CallKind::launch, 100, 110);
  builder.op("aten::a", 100, 120);
  builder.timeline.work.push_back({TimelineBuilder::us(200, 210), 7, 0});
  const json trace = trace_of(builder.sorted());
  expect_valid(trace);
  EXPECT_THAT(track_names(trace), ElementsAre("thread 0", "stream 7"));
}

TEST(ChromeTrace, CountsWhatNestsInNoTrack) {
  TimelineBuilder builder;
  for (std::int64_t i = 0; i < 70; ++i) builder.kernel(i, 100 + i, 300 + i);
  const json trace = trace_of(builder.sorted());
  expect_valid(trace);
  EXPECT_THAT(events_of(trace, "kernel"), SizeIs(64));
  EXPECT_EQ(trace["otherData"]["left_out"], "6");
}

TEST(ChromeTrace, KeepsThreadsAndDevicesApart) {
  TimelineBuilder builder = pageable_loop();
  for (std::int64_t t = 0; t < 5000; t += 1000) {
    builder.call(CallKind::launch, t + 100, t + 600, 3);
    builder.timeline.work.push_back({TimelineBuilder::us(t + 400, t + 700), 7, 1});
  }
  builder.timeline.devices[1] = "A \"GPU\"";
  const json trace = trace_of(builder.sorted());
  expect_valid(trace);
  EXPECT_THAT(track_names(trace, "process_name"),
              ElementsAre("penstock doctor", "host", "GPU 0", "GPU 1 (A \"GPU\")"));
  EXPECT_THAT(track_names(trace), IsSupersetOf({"thread 0", "thread 3", "medium: pageable-copies on GPU 0"}));
}

TEST(ChromeTrace, WritesEachNameAsText) {
  TimelineBuilder builder = pageable_loop();
  builder.op("a\"b\\c\n\x01</script>\xff", 600, 700);
  const json trace = trace_of(builder.sorted());
  expect_valid(trace);
  const std::vector<json> ops = events_of(trace, "operator");
  EXPECT_EQ(ops[1]["name"], "a\"b\\c\n\x01</script>\xef\xbf\xbd");
}

TEST(ChromeTrace, CutsEvidenceWhereItsFindingEnds) {
  TimelineBuilder builder = pageable_loop();
  builder.copy(CopyDirection::h2d, MemoryKind::pageable, 4'000'000, 4990, 4991, 4995, 5400, 20);
  const json trace = trace_of(builder.sorted());
  expect_valid(trace);
  std::int64_t end = 0;
  for (const json& event : events_of(trace, "evidence"))
    end = std::max(end, ns(event["ts"]) + ns(event["dur"]));
  EXPECT_EQ(end, 5'000'000);
}

TEST(ChromeTrace, IsPackedIfAsked) {
  TimelineBuilder builder;
  for (std::int64_t i = 0; i < 20'000; ++i) builder.kernel(2 * i, 100 + 2 * i, 101 + 2 * i);
  const Timeline timeline = builder.sorted();
  const Diagnosis diagnosis = diagnose_timeline(timeline);
  const std::string plain = written(timeline, diagnosis);
  const std::string packed = written(timeline, diagnosis, true);
  EXPECT_LT(packed.size(), plain.size() / 4);
  std::string text(plain.size() + 1, '\0');
  z_stream stream{};
  ASSERT_EQ(::inflateInit2(&stream, 15 + 16), Z_OK);
  std::string input = packed;
  stream.next_in = reinterpret_cast<Bytef*>(input.data());
  stream.avail_in = static_cast<uInt>(input.size());
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<uInt>(text.size());
  EXPECT_EQ(::inflate(&stream, Z_FINISH), Z_STREAM_END);
  text.resize(stream.total_out);
  ::inflateEnd(&stream);
  EXPECT_TRUE(text == plain);
}

TEST(ChromeTrace, IsGivenInPieces) {
  TimelineBuilder builder;
  for (std::int64_t i = 0; i < 20'000; ++i) builder.kernel(2 * i, 100 + 2 * i, 101 + 2 * i);
  const Timeline timeline = builder.sorted();
  std::size_t longest = 0;
  std::size_t pieces = 0;
  write_chrome_trace(timeline, diagnose_timeline(timeline), [&](std::string_view piece) {
    longest = std::max(longest, piece.size());
    ++pieces;
  });
  EXPECT_GT(pieces, 10U);
  EXPECT_LT(longest, 100'000U);
}

}  // namespace
}  // namespace penstock
