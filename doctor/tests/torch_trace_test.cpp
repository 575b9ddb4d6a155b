#include "doctor/read/torch_trace.hpp"

#include "doctor/tests/traces.hpp"
#include "doctor/timeline/call_sites.hpp"
#include "doctor/timeline/frame_names.hpp"
#include "doctor/timeline/timeline.hpp"
#include "support/matchers.hpp"
#include "support/temp_directory.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {
namespace {

namespace fs = std::filesystem;
using test::parse_trace;
using test::trace_text_complaint;

constexpr const char* kTrace = R"trace({"schemaVersion": 1,
"deviceProperties": [{"id": 1, "name": "A GPU", "maxThreads": [1, {"x": "]"}]}],
"traceEvents": [
{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#7", "pid": 9, "tid": 9, "ts": 100, "dur": 50.5},
{"ph": "X", "cat": "user_annotation", "name": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
 "pid": 9, "tid": 9, "ts": 101, "dur": 2},
{"ph": "X", "cat": "python_function", "name": "torch/nn/module.py(4): call", "pid": 9, "tid": 9, "ts": 103, "dur": 20},
{"ph": "X", "cat": "python_function", "name": "<built-in method to of Tensor>", "pid": 9, "tid": 9, "ts": 103, "dur": 20},
{"ph": "X", "cat": "python_function", "name": "nn.Module: Linear_0", "pid": 9, "tid": 9, "ts": 103, "dur": 20},
{"ph": "X", "cat": "python_function", "name": "train.py(12): main", "pid": 9, "tid": 9, "ts": 103, "dur": 20},
{"ph": "X", "cat": "cpu_op", "name": "aten::copy_", "pid": 9, "tid": 9, "ts": 104.25, "dur": 9,
 "args": {"External id": 5, "Input type": ["float", "unsigned char", "Scalar"], "Input Strides": [[3, 1], []],
          "Input Dims": [[2, 3], [2, 3], []], "Concrete Inputs": ["", "\"}", "\\"]}},
{"ph": "X", "cat": "cpu_op", "name": "aten::cat", "pid": 9, "tid": 10, "ts": 1, "dur": 1,
 "args": {"Input type": ["TensorList", ""], "Input Dims": [[[2], [3]], []]}},
{"ph": "X", "cat": "cuda_runtime", "name": "cudaMemcpyAsync", "pid": 9, "tid": 9, "ts": 105, "dur": 1.5,
 "args": {"cbid": 41, "correlation": 77}},
{"ph": "X", "cat": "cuda_runtime", "name": "cudaEventQuery", "pid": 9, "tid": 9, "ts": 107, "dur": 1, "args": {}},
{"ph": "X", "cat": "cuda_runtime", "name": "cudaStreamSynchronize", "pid": 9, "tid": 9, "ts": 107, "dur": 3},
{"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernelEx", "pid": 9, "tid": 11, "ts": 108, "dur": 3,
 "args": {"correlation": 78}},
{"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 77, "pid": 9, "tid": 9, "ts": 105},
{"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 1, "tid": 7, "ts": 106.5,
 "dur": 2.004, "args": {"device": 1, "context": 1, "stream": 7, "correlation": 77, "bytes": 24,
                        "memory bandwidth (GB/s)": "N/A"}},
{"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy PtoP (Device -> Device)", "pid": 1, "tid": 7, "ts": 120,
 "dur": 1, "args": {"fromDevice": 0, "inDevice": 1, "toDevice": 2, "stream": 7, "bytes": 8}},
{"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Unknown)", "pid": 1, "tid": 7, "ts": 119,
 "dur": 1, "args": {"device": 1, "stream": 7, "bytes": 9}},
{"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "pid": 1, "tid": 8, "ts": 115, "dur": 1,
 "args": {"device": 1, "stream": 8}},
{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 1, "tid": 7, "ts": 110, "dur": 4,
 "args": {"device": 1, "stream": 7, "grid": [1, 2, 3], "blocks per SM": inf}},
{"ph": "X", "cat": "cuda_sync", "name": "Context Sync", "pid": 1, "tid": 1, "ts": 116, "dur": 1,
 "args": {"stream": -1, "device": -1}},
{"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler", "ts": 1, "dur": 200},
{"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 300}
], "traceName": "x.json"}
)trace";

/// `count` times two kernels, a step every 100 us; `mark`: an event more.
std::string repeated(int count, const std::string& mark = "") {
  std::string text = R"({"traceEvents": [)" + mark;
  for (int i = 0; i < 2 * count; ++i) {
    text += fmt::format(R"({}{{"ph": "X", "cat": "kernel", "name": "{}", "ts": {}, "dur": 10,
                        "args": {{"device": 0, "stream": 7}}}})",
                        i > 0 ? "," : "", i % 2 == 0 ? "gemm" : "relu", 50 * i + (i % 2 == 0 ? 20 : 0));
  }
  return text + "]}";
}

TEST(TorchTrace, FindsStepsThatNobodyMarked) {
  const std::vector<TimeSpan> steps = parse_trace(repeated(20)).steps;
  ASSERT_GE(steps.size(), 18U);
  for (const TimeSpan& step : steps) EXPECT_EQ(step.end - step.begin, 100'000);
  EXPECT_THAT(parse_trace(repeated(3)).steps, IsEmpty());
  const std::string marked = repeated(
      20, R"({"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#7", "pid": 9, "tid": 9, "ts": 100,
              "dur": 50.5},)");
  EXPECT_THAT(parse_trace(marked).steps, ElementsAre(TimeSpan{100'000, 150'500}));
}

TEST(TorchTrace, TakesRangesOfTheProgramForSteps) {
  std::string ranges =
      R"({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": 0, "dur": 1},)";
  for (int i = 0; i < 6; ++i) {
    ranges += fmt::format(
        R"({{"ph": "X", "cat": "user_annotation", "name": "train", "pid": 9, "tid": 9, "ts": {}, "dur": 150}},)",
        200 * i);
  }
  const std::vector<TimeSpan> steps = parse_trace(repeated(20, ranges)).steps;
  ASSERT_EQ(steps.size(), 6U);
  EXPECT_EQ(steps[1], (TimeSpan{200'000, 400'000}));
}

TEST(TorchTrace, KeepsTheRecordsThatRulesNeed) {
  const Timeline timeline = parse_trace(kTrace);
  EXPECT_EQ(timeline.events, 21U);
  EXPECT_EQ(timeline.devices.at(1), "A GPU");
  EXPECT_THAT(timeline.steps, ElementsAre(TimeSpan{100'000, 150'500}));
  EXPECT_TRUE(timeline.has_ops && timeline.has_frames && timeline.has_types);

  ASSERT_EQ(timeline.copies.size(), 3U);
  const TimelineCopy& input = timeline.copies[0];
  EXPECT_EQ(input.time, (TimeSpan{106'500, 108'504}));
  EXPECT_EQ(input.bytes, 24U);
  EXPECT_EQ(input.correlation, 77U);
  EXPECT_EQ(input.stream, 7U);
  EXPECT_EQ(input.device, 1U);
  EXPECT_EQ(input.direction, CopyDirection::h2d);
  EXPECT_EQ(input.source, MemoryKind::pageable);
  EXPECT_EQ(timeline.copies[1].direction, CopyDirection::d2h);
  EXPECT_EQ(timeline.copies[2].direction, CopyDirection::d2d);
  EXPECT_EQ(timeline.copies[2].device, 1U);

  ASSERT_EQ(timeline.work.size(), 2U);
  EXPECT_EQ(timeline.work[0].time, (TimeSpan{110'000, 114'000}));
  EXPECT_EQ(timeline.work[1].stream, 8U);
  EXPECT_EQ(timeline.work[0].label % 2, 1) << "a kernel";
  EXPECT_EQ(timeline.work[1].label, 2) << "a memory set";
}

TEST(TorchTrace, KeepsWhatTheHostDid) {
  const Timeline timeline = parse_trace(kTrace);
  ASSERT_EQ(timeline.calls.size(), 3U);
  EXPECT_EQ(timeline.calls[0].kind, CallKind::copy);
  EXPECT_EQ(timeline.calls[0].correlation, 77U);
  EXPECT_EQ(timeline.calls[0].time, (TimeSpan{105'000, 106'500}));
  EXPECT_EQ(timeline.calls[1].kind, CallKind::stream_synchronize);
  EXPECT_EQ(timeline.calls[2].kind, CallKind::launch);
  EXPECT_EQ(timeline.calls[0].thread, timeline.calls[1].thread);
  EXPECT_NE(timeline.calls[0].thread, timeline.calls[2].thread);

  ASSERT_EQ(timeline.host.size(), 4U);
  EXPECT_EQ(timeline.host[0].kind, HostSpanKind::loader_wait);
  EXPECT_EQ(timeline.host[1].kind, HostSpanKind::frame);
  EXPECT_EQ(timeline.names[timeline.host[1].name], "train.py(12): main");
  EXPECT_EQ(timeline.names[timeline.host[2].name], "aten::copy_");
  EXPECT_EQ(timeline.host[2].time, (TimeSpan{104'250, 113'250}));

  ASSERT_EQ(timeline.widenings.size(), 1U);
  EXPECT_EQ(timeline.widenings[0].elements, 6U);
  EXPECT_EQ(timeline.widenings[0].from_bytes, 1);
  EXPECT_EQ(timeline.widenings[0].to_bytes, 4);
}

/// The trace of calls through these stacks of Python functions, the outermost first.
Timeline calls_through(const std::vector<std::vector<std::string>>& stacks) {
  std::string text =
      R"({"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 0, "dur": 1, "args": {"device": 0}})";
  for (std::size_t i = 0; i < stacks.size(); ++i) {
    const std::size_t begin = 100 * i;
    std::size_t depth = 0;
    const auto add = [&](const char* category, const std::string& name) {
      text +=
          fmt::format(R"(,{{"ph": "X", "cat": "{}", "name": "{}", "pid": 9, "tid": 9, "ts": {}, "dur": {}}})",
                      category, name, begin + depth, 90 - 2 * depth);
      ++depth;
    };
    for (const std::string& frame : stacks[i]) add("python_function", frame);
    add("cuda_runtime", "cudaStreamSynchronize");
  }
  return parse_trace(text + "]}");
}

/// The places of these calls.
std::vector<std::string> places_of(const std::vector<std::vector<std::string>>& stacks) {
  const Timeline timeline = calls_through(stacks);
  std::vector<std::string> places;
  for (const KnownCall& known : find_call_sites(timeline))
    places.push_back(known.site.frame == kNoName ? "" : timeline.names[known.site.frame]);
  return places;
}

TEST(TorchTrace, NamesTheInnermostFrameOfTheProgram) {
  const std::string main = "train.py(40): main";
  EXPECT_THAT(
      places_of({{main, "data.py(7): send", "accelerate/utils/operations.py(148): send_to_device"},
                 {main, "/opt/lib/python3.11/site-packages/unknown/x.py(148): send"},
                 {main, "site-packages/unknown/x.py(148): send", "dist-packages/unknown/y.py(8): z"},
                 {main, "logging/__init__.py(368): getMessage"},
                 {main, "/usr/lib/python3.12/threading.py(10): run", "lib/python3.12/queue.py(1): get"},
                 {main, "torch/_tensor.py(9): __repr__", "numpy/core/multiarray.py(1): copy"},
                 {main, "torch/nn/modules/module.py(17): call", "models/net.py(8): forward"},
                 {main, "tqdm/std.py(1431): set_postfix", "<built-in method item of Tensor>"},
                 {"<string>(1): <module>", "contextlib.py(3): inner", "<frozen runpy>(8): run"},
                 {"<string>(1): <module>", "multiprocessing/spawn.py(9): spawn_main", "work.py(8): run"}}),
      ElementsAre("data.py(7): send", main, main, main, main, main, "models/net.py(8): forward", main,
                  "<string>(1): <module>", "work.py(8): run"));
  EXPECT_THAT(places_of({{"test/run.py(1): <module>"}, {"profile.py(1): main"}}),
              ElementsAre("test/run.py(1): <module>", "profile.py(1): main"))
      << "programs have such names, too";
}

TEST(TorchTrace, NamesTheInnermostFrameOfAnInstalledProgram) {
  const std::string packages = "/opt/lib/python3.11/site-packages/";
  EXPECT_THAT(places_of({{"runpy.py(8): run", packages + "trainer/__main__.py(7): <module>",
                          packages + "trainer/loop.py(88): step", "torch/_tensor.py(9): item"},
                         {packages + "trainer/__main__.py(7): <module>", "threading.py(1): run"},
                         {"<string>(1): <module>", "vllm/v1/worker.py(38): execute_model"},
                         {"threading.py(1): run", "torch/utils/data/_utils/pin_memory.py(1): loop"}}),
              ElementsAre("trainer/loop.py(88): step", "trainer/__main__.py(7): <module>",
                          "vllm/v1/worker.py(38): execute_model", ""));
}

TEST(TorchTrace, NamesThePackagesFrameIfOneFunctionOfTheProgramMakesAllCalls) {
  const std::string main = "main.py(5): <module>";
  const std::string loop = "transformers/trainer.py(88): train";
  const std::string step = "transformers/trainer.py(99): step";
  EXPECT_THAT(places_of({{main, loop, step}, {main, loop}, {main}, {loop}}),
              ElementsAre(main + ", in " + step, main + ", in " + loop, main, loop));
  EXPECT_THAT(places_of({{main, "data.py(1): send"}, {main, loop, step}}),
              ElementsAre("data.py(1): send", main));
}

TEST(TorchTrace, TellsTheProgramsFramesThatMakeACall) {
  const auto stacks_of = [](const std::vector<std::vector<std::string>>& stacks) {
    const Timeline timeline = calls_through(stacks);
    std::vector<std::vector<std::string>> known;
    for (const KnownCall& call : find_call_sites(timeline))
      known.push_back(stack_of(timeline, call.site.frame));
    return known;
  };
  const std::string main = "main.py(5): <module>";
  const std::string train = "train.py(7): train";
  const std::string send = "data.py(9): send";
  const std::string loop = "transformers/trainer.py(88): train";
  EXPECT_THAT(
      stacks_of({{main, train, send}, {main, loop, train, loop, "torch/_tensor.py(9): item"}, {send}, {}}),
      ElementsAre(ElementsAre(send, train, main), ElementsAre(train, main), ElementsAre(send), IsEmpty()));
  EXPECT_THAT(
      stacks_of({{loop, main, train, loop}, {loop, main, train}, {loop}}),
      ElementsAre(ElementsAre(train + ", in " + loop, main), ElementsAre(train, main), ElementsAre(loop)));
}

TEST(TorchTrace, ReadsTheSameInPartsOfAnySize) {
  for (const std::size_t most : {1, 2, 3, 7, 64}) {
    SCOPED_TRACE(most);
    const Timeline timeline = parse_trace(kTrace, most);
    EXPECT_EQ(timeline.events, 21U);
    EXPECT_EQ(timeline.copies.size(), 3U);
    EXPECT_EQ(timeline.names, parse_trace(kTrace).names);
    EXPECT_EQ(timeline.host.size(), 4U);
    EXPECT_EQ(timeline.copies[0].time, (TimeSpan{106'500, 108'504}));
    EXPECT_EQ(timeline.widenings.size(), 1U);
  }
}

TEST(TorchTrace, ReadsTextsLongerThanItsWindow) {
  const std::string name(300'000, 'x');
  std::string text = R"({"traceEvents": [)";
  for (int i = 0; i < 3000; ++i) {
    text += R"({"ph": "X", "cat": "kernel", "name": "k", "ts": )" + std::to_string(i) +
            R"(.001, "dur": 0.5, "args": {"device": 0, "stream": 7, "note": "a\"b", "list": [[1, 2], {}]}},)";
    if (i == 1000) text += R"({"ph": "i", "name": ")" + name + R"(", "args": {"y": ")" + name + R"("}},)";
  }
  text += R"({"ph": "M"}]})";
  const Timeline timeline = parse_trace(text);
  ASSERT_EQ(timeline.work.size(), 3000U);
  for (int i = 0; i < 3000; ++i) {
    ASSERT_EQ(timeline.work[static_cast<std::size_t>(i)].time, (TimeSpan{i * 1000 + 1, i * 1000 + 501}));
  }
}

TEST(TorchTrace, ReadsTimesToTheNanosecond) {
  const auto begin_of = [](const std::string& ts) {
    return parse_trace(R"({"traceEvents": [{"ph": "X", "cat": "kernel", "ts": )" + ts +
                       R"(, "args": {"device": 0}}]})")
        .work.at(0)
        .time.begin;
  };
  EXPECT_EQ(begin_of("4585750312628.182"), 4585750312628182);
  EXPECT_EQ(begin_of("1682725898083829"), 1682725898083829000);
  EXPECT_EQ(begin_of("1712195495506161.2"), 1712195495506161200);
  EXPECT_EQ(begin_of("0.0129"), 12);
  EXPECT_EQ(begin_of("-0.5"), -500);
  EXPECT_EQ(begin_of("1.5e3"), 1'500'000);
}

TEST(TorchTrace, SaysWhereItIsDamaged) {
  const std::string right =
      R"({"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1, "args": {"device": 0}}]})";
  EXPECT_EQ(trace_text_complaint(right), "");
  for (const std::size_t most : {std::size_t{1}, right.size()}) {
    EXPECT_EQ(
        trace_text_complaint(right.substr(0, right.size() - 2), most),
        "x.json, byte 77 of the text: expected a comma or the array's end, but the file ends there: its "
        "export did not finish.");
    EXPECT_EQ(trace_text_complaint("", most), "x.json is empty: its export did not finish.");
    EXPECT_EQ(trace_text_complaint(R"({"traceEvents": [{"ph": 7}]})", most),
              most == 1 ? "x.json, byte 24 of the text: expected a string, found '7'."
                        : "x.json, byte 24 of the text: expected a string, found '7}]}'.");
  }
}

TEST(TorchTrace, SaysWhatToDoWithoutAGpu) {
  EXPECT_EQ(
      trace_text_complaint(R"({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::to", "ts": 1}]})"),
      "x.json: it holds no work of a GPU; profile with activities=[ProfilerActivity.CPU, "
      "ProfilerActivity.CUDA] on a machine with a GPU; without one, penstock doctor --loader "
      "FILE.py:NAME looks at the loader.");
}

TEST(TorchTrace, MayBeginWithAByteOrderMark) {
  const std::string mark = "\xEF\xBB\xBF";
  for (const std::size_t most : {std::size_t{1}, std::numeric_limits<std::size_t>::max()}) {
    EXPECT_EQ(parse_trace(mark + kTrace, most).events, 21U);
    EXPECT_THAT(trace_text_complaint(mark, most),
                HasSubstr("byte 3 of the text: expected an object, but the file ends"));
    EXPECT_THAT(trace_text_complaint(mark + mark + kTrace, most),
                HasSubstr("byte 3 of the text: expected an object"));
    EXPECT_THAT(trace_text_complaint(mark.substr(0, 2) + kTrace, most),
                HasSubstr("byte 0 of the text: expected"));
  }
}

TEST(TorchTrace, NeverReadsHalfATrace) {
  const std::string_view text(kTrace);
  const std::size_t last = text.rfind('}');
  for (std::size_t size = 0; size <= last; ++size) {
    ASSERT_THAT(trace_text_complaint(text.substr(0, size)), HasSubstr("x.json")) << size;
  }
}

TEST(TorchTrace, NeverTakesAFieldFromTheEventBefore) {
  const std::string first = R"({"ph": "X", "cat": "kernel", "ts": 1, "args": {"device": 0, "stream": 3}})";
  const auto both = [&first](const std::string& second) {
    return R"({"traceEvents": [)" + first + "," + second + "]}";
  };
  EXPECT_THAT(trace_text_complaint(both(R"({"ph": "X", "cat": "kernel", "ts": 1, "args": {}})")),
              HasSubstr("with its device"));
  EXPECT_THAT(trace_text_complaint(both(R"({"ph": "X", "cat": "kernel", "args": {"device": 0}})")),
              HasSubstr("with a time"));
  EXPECT_EQ(parse_trace(both(R"({"cat": "kernel", "ts": 1, "args": {"device": 0}})")).work.size(), 1U);
  EXPECT_EQ(parse_trace(both(R"({"ph": "X", "ts": 1, "args": {"device": 0}})")).work.size(), 1U);
  EXPECT_EQ(
      parse_trace(both(R"({"ph": "X", "cat": "kernel", "ts": 2, "args": {"device": 0}})")).work.at(1).stream,
      0U);
}

TEST(TorchTrace, SharesOneNameWhenThereAreTooMany) {
  std::string text = R"({"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1, "args": {"device": 0}})";
  for (int i = 0; i < 70'000; ++i) {
    text +=
        R"(,{"ph": "X", "cat": "cpu_op", "ts": 1, "pid": 1, "tid": 1, "name": ")" + std::to_string(i) + "\"}";
  }
  const Timeline timeline = parse_trace(text + "]}");
  EXPECT_EQ(timeline.host.size(), 70'000U);
  EXPECT_EQ(timeline.names.size(), 65'536U);
  EXPECT_EQ(timeline.names.back(), "(another name)");
}

TEST(TorchTrace, RefusesMoreThreadsThanItCanTell) {
  std::string text = R"({"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1, "args": {"device": 0}})";
  for (int i = 0; i <= 65'536; ++i) {
    text += R"(,{"ph": "X", "cat": "cpu_op", "ts": 1, "name": "a", "tid": )" + std::to_string(i) + "}";
  }
  EXPECT_THAT(trace_text_complaint(text + "]}"), HasSubstr("at most 65,536 threads"));
}

class TraceFile : public ::testing::Test {
 protected:
  fs::path write(const std::string& name, std::string_view text) {
    return directory_.write(name, std::as_bytes(std::span(text)));
  }
  static std::string pack(std::string_view text) {
    std::string packed(compressBound(text.size()) + 100, '\0');
    z_stream stream{};
    EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    stream.avail_in = static_cast<uInt>(text.size());
    stream.next_out = reinterpret_cast<Bytef*>(packed.data());
    stream.avail_out = static_cast<uInt>(packed.size());
    EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
    packed.resize(stream.total_out);
    deflateEnd(&stream);
    return packed;
  }
  static std::string complaint_of(const fs::path& file) {
    try {
      static_cast<void>(read_torch_trace(file));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  test::TempDirectory directory_;
};

TEST_F(TraceFile, IsReadPlainAndPacked) {
  EXPECT_EQ(read_torch_trace(write("plain.json", kTrace)).events, 21U);
  EXPECT_EQ(read_torch_trace(write("packed.json.gz", pack(kTrace))).events, 21U);
}

TEST_F(TraceFile, IsRefusedIfItsPackedBytesAreCutOrDamaged) {
  const std::string packed = pack(kTrace);
  EXPECT_THAT(complaint_of(write("a.gz", packed.substr(0, packed.size() / 2))),
              HasSubstr("cut short, as its export did not finish."));
  EXPECT_THAT(complaint_of(write("b.gz", packed.substr(0, packed.size() - 4))), HasSubstr("cut short"));
  std::string damaged = packed;
  damaged[damaged.size() - 6] = static_cast<char>(damaged[damaged.size() - 6] ^ 1);
  EXPECT_THAT(complaint_of(write("c.gz", damaged)), HasSubstr("cannot be read"));
}

TEST_F(TraceFile, IsRefusedWithItsNameIfItCannotBeRead) {
  EXPECT_THAT(complaint_of(directory_.path() / "none.json"),
              HasSubstr("none.json cannot be read: No such file"));
  EXPECT_THAT(complaint_of(directory_.path()), HasSubstr("cannot be read"));
}

TEST(TraceCorpus, OpensOrIsRefusedAsItsNameSays) {
  std::size_t right = 0;
  std::size_t wrong = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(PENSTOCK_CORPUS) / "trace")) {
    const std::string name = entry.path().filename().string();
    SCOPED_TRACE(name);
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(in), {});
    const bool good = name.starts_with("ok-");
    ++(good ? right : wrong);
    EXPECT_EQ(trace_text_complaint(text).empty(), good) << trace_text_complaint(text);
    EXPECT_EQ(trace_text_complaint(text, 1).empty(), good);
  }
  EXPECT_GE(right, 5U);
  EXPECT_GE(wrong, 20U);
}

}  // namespace
}  // namespace penstock
