#include "doctor/read/torch_trace.hpp"
#include "doctor/read/trace_copies.hpp"
#include "doctor/rules/findings.hpp"
#include "doctor/tests/traces.hpp"
#include "doctor/timeline/work_labels.hpp"
#include "support/matchers.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace penstock {
namespace {

using test::trace_complaint;
using test::trace_event;
using test::trace_of;

constexpr const char* kWork = R"("device": 0, "stream": 7, "correlation": 2)";

TEST(TraceForms, HasNumbersAsText) {
  const Timeline timeline = trace_of(
      trace_event("cuda_runtime", "hipMemcpyWithStream", 1, 100,
                  R"("correlation": "1", "bytes": "616", "stream": "0x0", "kind": "1")") +
      trace_event("gpu_memcpy", "Memcpy HtoD (Host -> Device)", 5, 90,
                  R"("device": "3", "stream": "0x7f0000000009", "correlation": "1", "bytes": "0x268")"));
  ASSERT_THAT(timeline.copies, SizeIs(1));
  EXPECT_EQ(timeline.copies[0].bytes, 616U);
  EXPECT_EQ(timeline.copies[0].device, 3U);
  EXPECT_EQ(timeline.copies[0].stream, 9U);
  EXPECT_EQ(timeline.copies[0].correlation, 1U);
  EXPECT_EQ(timeline.calls.at(0).correlation, 1U);
  EXPECT_EQ(timeline.copies[0].source, std::nullopt);
}

TEST(TraceForms, HasDevicesOnlyUpToTheMostThatThereAre) {
  for (const std::string_view device : {R"("device": "70000")", R"("device": "")", R"("device": "0x")"}) {
    EXPECT_THAT(trace_complaint(trace_event("kernel", "k", 1, 2, device)), HasSubstr("with its device"))
        << device;
  }
}

TEST(TraceForms, TellsTheSizeOfACopyWithItsCall) {
  const auto copy = trace_event("gpu_memcpy", "Memcpy HtoD (Host -> Device)", 5, 9, kWork);
  const auto call = [](std::string_view name) {
    return trace_event("cuda_runtime", name, 1, 3, R"("correlation": 2, "bytes": "4000000")");
  };
  EXPECT_EQ(trace_of(copy + call("hipMemcpyWithStream")).copies.at(0).bytes, 4'000'000U);
  EXPECT_EQ(trace_of(copy + call("hipMemsetAsync")).copies.at(0).bytes, 0U);
}

std::string sizes_note(const Timeline& timeline) {
  for (const NotExamined& missing : diagnose_timeline(timeline).not_examined) {
    if (missing.text.starts_with("Sizes of copies")) return missing.text;
  }
  return "";
}

TEST(TraceForms, MayLackTheSizeOfACopy) {
  std::string copies;
  for (int i = 0; i < 40; ++i)
    copies += trace_event("gpu_memcpy", "Memcpy HtoD (Host -> Device)", 10 * i, 9, kWork);
  const Timeline timeline = trace_of(copies);
  EXPECT_THAT(sizes_note(timeline), HasSubstr("the bytes of 40 copies are not recorded"));
  const Diagnosis diagnosis = diagnose_timeline(timeline);
  EXPECT_THAT(diagnosis.findings, SizeIs(0)) << "they may be small or large";
  EXPECT_EQ(diagnosis.accounts.at(0).h2d.unsized, 40U);
  EXPECT_EQ(sizes_note(trace_of(trace_event("kernel", "k", 1, 2, kWork))), "");
}

TEST(TraceForms, AreThoseOfPyTorch18) {
  const Timeline timeline = trace_of(
      trace_event("Operator", "ProfilerStep#3", 0, 50) + trace_event("Operator", "aten::to", 1, 9) +
      trace_event("Operator", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 1) +
      trace_event("Runtime", "cudaMemcpyAsync", 2, 3, R"("correlation": 2)") +
      trace_event("Memcpy", "Memcpy HtoD (Pageable -> Device)", 3, 4,
                  fmt::format(R"({}, "bytes": 24)", kWork)) +
      trace_event("Memset", "Memset (Device)", 8, 1, kWork) + trace_event("Kernel", "gemm", 9, 5, kWork));
  EXPECT_THAT(timeline.steps, SizeIs(1));
  EXPECT_THAT(timeline.calls, SizeIs(1));
  ASSERT_THAT(timeline.copies, SizeIs(1));
  EXPECT_EQ(timeline.copies[0].source, MemoryKind::pageable);
  ASSERT_THAT(timeline.work, SizeIs(2));
  EXPECT_EQ(timeline.work[0].label, 2) << "the memory set";
  ASSERT_THAT(timeline.host, SizeIs(2));
  EXPECT_EQ(timeline.host[0].kind, HostSpanKind::loader_wait);
  EXPECT_EQ(timeline.host[1].kind, HostSpanKind::op);
}

TEST(TraceForms, AreThoseOfXpus) {
  const Timeline timeline = trace_of(
      trace_event("xpu_runtime", "urEnqueueUSMMemcpy", 1, 3, R"("correlation": 2)") +
      trace_event("xpu_runtime", "urEnqueueKernelLaunch", 5, 1, R"("correlation": 3)") +
      trace_event("xpu_runtime", "urQueueFinish", 7, 1) + trace_event("xpu_runtime", "urEventWait", 8, 1) +
      trace_event("gpu_memcpy", "Memcpy M2D (MEMORY(Unknown) -> DEVICE)", 3, 4,
                  R"("device": 0, "sycl queue": 5, "correlation": 2, "bytes": 24)") +
      trace_event("gpu_memcpy", "Memcpy D2H (DEVICE -> HOST)", 8, 4, R"("device": 0, "bytes": 8)") +
      trace_event("kernel", "gemm", 13, 5, R"("device": 0, "sycl queue": 5)"));
  ASSERT_THAT(timeline.copies, SizeIs(2));
  EXPECT_EQ(timeline.copies[0].direction, CopyDirection::h2d);
  EXPECT_EQ(timeline.copies[0].source, MemoryKind::pageable);
  EXPECT_EQ(timeline.copies[0].stream, 5U);
  EXPECT_EQ(timeline.copies[1].direction, CopyDirection::d2h);
  EXPECT_EQ(timeline.copies[1].source, MemoryKind::device);
  ASSERT_THAT(timeline.calls, SizeIs(4));
  EXPECT_EQ(timeline.calls[0].kind, CallKind::copy);
  EXPECT_EQ(timeline.calls[1].kind, CallKind::launch);
  EXPECT_EQ(timeline.calls[2].kind, CallKind::stream_synchronize);
  EXPECT_EQ(timeline.calls[3].kind, CallKind::event_synchronize);
}

/// An event of JAX's profiler has no category. Its track tells what it is.
std::string jax_event(int process, int thread, std::string_view name, int begin, std::string_view args = "") {
  return fmt::format(
      R"(,{{"ph": "X", "pid": {}, "tid": {}, "name": "{}", "ts": {}, "dur": 3, "args": {{{}}}}})", process,
      thread, name, begin, args);
}

TEST(TraceForms, AreThoseOfJax) {
  const Timeline timeline = trace_of(
      R"x(,{"ph": "M", "pid": 2, "name": "process_name", "args": {"name": "/device:GPU:1"}})x"
      R"x(,{"ph": "M", "pid": 2, "tid": 20, "name": "thread_name", "args": {"name": "Stream #13(MemcpyH2D)"}})x"
      R"x(,{"ph": "M", "pid": 2, "tid": 30, "name": "thread_name", "args": {"name": "XLA Ops"}})x" +
      jax_event(2, 20, "MemcpyH2D", 5,
                R"("memcpy_details": "kind_src:pinned kind_dst:device size:4096 dest:1 async:1",
                   "correlation_id": "77")") +
      jax_event(2, 20, "gemm", 9, R"("correlation_id": 78)") + jax_event(2, 30, "dot.1", 9) +
      jax_event(9, 1, "cuMemcpyHtoDAsync_v2", 2, R"("correlation_id": 77)") + jax_event(9, 1, "main", 0));
  ASSERT_THAT(timeline.copies, SizeIs(1));
  const TimelineCopy& copy = timeline.copies[0];
  EXPECT_EQ(copy.direction, CopyDirection::h2d);
  EXPECT_EQ(copy.bytes, 4096U);
  EXPECT_EQ(copy.source, MemoryKind::pinned);
  EXPECT_EQ(copy.device, 1U);
  EXPECT_EQ(copy.stream, 13U);
  ASSERT_THAT(timeline.calls, SizeIs(1));
  EXPECT_EQ(timeline.calls[0].correlation, copy.correlation);
  ASSERT_THAT(timeline.work, SizeIs(1)) << "what XLA derives of its kernels is none";
  EXPECT_EQ(timeline.work[0].time.begin, 9000);
}

TEST(TraceForms, NameCopiesInSeveralWays) {
  const auto direction = [](std::string_view name) {
    TimelineCopy copy;
    return describe_copy(copy, name, "") ? static_cast<int>(copy.direction) : -1;
  };
  for (const std::string_view name :
       {"Memcpy HtoD (Pageable -> Device)", "MemcpyH2D", "Memcpy M2D", "CopyHostToDevice"})
    EXPECT_EQ(direction(name), static_cast<int>(CopyDirection::h2d)) << name;
  for (const std::string_view name :
       {"Memcpy DtoH (Device -> Pinned)", "MemcpyD2H", "Memcpy D2M", "CopyDeviceToHost"})
    EXPECT_EQ(direction(name), static_cast<int>(CopyDirection::d2h)) << name;
  for (const std::string_view name :
       {"Memcpy DtoD", "Memcpy PtoP", "MemcpyP2P", "CopyDeviceToDevice", "Memcpy S2D"})
    EXPECT_EQ(direction(name), static_cast<int>(CopyDirection::d2d)) << name;
  for (const std::string_view name : {"Memcpy HtoH (Pinned -> Pinned)", "Memcpy ", "gemm", "", "Memset HtoD"})
    EXPECT_EQ(direction(name), -1) << name;
}

TEST(TraceForms, MayBeAnArrayOfEvents) {
  const std::string text = "[" + trace_event("kernel", "k", 1, 2, kWork).substr(1) + "]";
  EXPECT_THAT(test::parse_trace(text).work, SizeIs(1));
  EXPECT_THAT(test::parse_trace("\xEF\xBB\xBF " + text).work, SizeIs(1));
  EXPECT_THAT(test::trace_text_complaint("[]"), HasSubstr("it has no events"));
  EXPECT_THAT(test::trace_text_complaint(text.substr(0, text.size() - 1)),
              HasSubstr("export did not finish"));
}

TEST(TraceForms, SayWhyRangesOfCountersAreNoWork) {
  EXPECT_THAT(trace_complaint(trace_event("cuda_profiler_range", "gemm", 1, 2)),
              HasSubstr("whose times are made up, and no work of a GPU; profile without profiler_metrics"));
}

TEST(TraceForms, TellTheRank) {
  const std::string kernel = trace_event("kernel", "k", 1, 2, kWork).substr(1);
  EXPECT_EQ(test::parse_trace(R"({"distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8,
                                 "pg_config": [{"x": 1}]}, "traceEvents": [)" +
                              kernel + "]}")
                .rank,
            3U);
  EXPECT_EQ(test::parse_trace(R"({"traceEvents": [)" + kernel + "]}").rank, std::nullopt);
}

TEST(Communication, IsKnownByTheKernelsName) {
  for (const std::string_view name :
       {"ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "_Z38ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(void*)",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel", "two_shot_all_reduce_kernel"})
    EXPECT_TRUE(is_communication(name)) << name;
  for (const std::string_view name : {"void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>",
                                      "gemm", "", "void at::native::vectorized_gather_kernel<16, long>"})
    EXPECT_FALSE(is_communication(name)) << name;
}

TEST(Communication, HasLabelsOfItsOwn) {
  for (const std::uint16_t label : {1, 3, 5, 0x1235, 0xFFFF}) {
    EXPECT_TRUE(is_communication(communication_label(label)));
    EXPECT_FALSE(is_communication(label));
  }
  EXPECT_FALSE(is_communication(std::uint16_t{2})) << "a memory set";
  EXPECT_FALSE(is_communication(std::uint16_t{0})) << "nothing is known";
  const Timeline timeline = trace_of(trace_event("kernel", "ncclDevKernel_AllReduce", 1, 2, kWork) +
                                     trace_event("kernel", "gemm", 5, 2, kWork));
  EXPECT_TRUE(is_communication(timeline.work.at(0).label));
  EXPECT_FALSE(is_communication(timeline.work.at(1).label));
}

}  // namespace
}  // namespace penstock
