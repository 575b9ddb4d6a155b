#include "doctor/rules/findings.hpp"
#include "doctor/tests/timelines.hpp"
#include "doctor/tests/traces.hpp"
#include "doctor/timeline/device_account.hpp"
#include "support/matchers.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace penstock {
namespace {

using test::trace_event;
using test::trace_of;

std::string kernel_event(const std::string& name, int begin, int duration) {
  return trace_event("cuda_runtime", "cudaLaunchKernel", begin - 5, 2) +
         trace_event("kernel", name, begin, duration, R"("device": 0, "stream": 7)");
}

/// Equal layers of four kernels, one after the other, from 100 us on. `act` adds to each, at its beginning.
template <typename Act>
std::string layers(int count, Act&& act) {
  std::string text;
  for (int layer = 0; layer < count; ++layer) {
    const int begin = 100 + 240 * layer;
    text += act(begin);
    for (int k = 0; k < 4; ++k) text += kernel_event(fmt::format("k{}", k), begin + 60 * k, 60);
  }
  return text;
}
std::string plain_layers(int count) {
  return layers(count, [](int) { return std::string(); });
}

std::string input(int begin) {
  return trace_event("cuda_runtime", "cudaMemcpyAsync", begin - 9, 2, R"("correlation": 5)") +
         trace_event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", begin - 4, 2,
                     R"("device": 0, "stream": 7, "correlation": 5, "bytes": 4096)");
}

std::vector<std::string> outside_notes(const Timeline& timeline) {
  std::vector<std::string> notes;
  for (const NotExamined& missing : diagnose_timeline(timeline).not_examined) {
    if (missing.text.starts_with("What lies outside the steps")) notes.push_back(missing.text);
  }
  return notes;
}

TEST(TraceSteps, AreNotTheLayersOfOnePass) {
  // A batch comes, the model runs once, and the host does something else for 400 ms.
  const Timeline pass = trace_of(trace_event("user_annotation", "execute_context", 0, 420'000) + input(20) +
                                 plain_layers(36) + kernel_event("sampler", 408'800, 60));
  EXPECT_THAT(pass.steps, IsEmpty());
  const DeviceAccount account = test::device_accounts(pass).at(0);
  EXPECT_LT(account.share(DevicePart::kernel), 0.03) << "the GPU idles nearly all the time";
  EXPECT_EQ(account.h2d.count, 1U);
}

TEST(TraceSteps, AreNotTheCopiesOfWeights) {
  // CUDA starts for 30 s, and 56 ms of copies follow.
  std::string text = trace_event("cuda_runtime", "cudaDeviceGetStreamPriorityRange", 0, 30'000'000) +
                     trace_event("cpu_op", "aten::to", 30'000'000, 57'600) + kernel_event("first", 1000, 5);
  for (int i = 0; i < 8; ++i) {
    const int begin = 30'000'000 + 7200 * i;
    const std::string correlation = fmt::format(R"("correlation": {})", i + 1);
    text += trace_event("cuda_runtime", "cudaMemcpyAsync", begin + 10, 7000, correlation) +
            trace_event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", begin + 60, 6900,
                        R"("device": 0, "stream": 7, "bytes": 30000000, )" + correlation);
  }
  const Timeline timeline = trace_of(text + kernel_event("later", 42'000'000, 10'000));
  EXPECT_THAT(timeline.steps, IsEmpty());
  const Diagnosis diagnosis = diagnose_timeline(timeline);
  EXPECT_GT(diagnosis.accounts.at(0).share(DevicePart::starting), 0.7);
  ASSERT_THAT(diagnosis.findings, SizeIs(1));
  EXPECT_EQ(diagnosis.findings[0].id, "pageable-copies");
  EXPECT_NEAR(diagnosis.findings[0].gain.high, 8 * 7e-3, 1e-6) << "what the calls take";
  EXPECT_EQ(diagnosis.findings[0].severity, Severity::note);
}

TEST(TraceSteps, MayBeMostOfATrace) {
  EXPECT_THAT(trace_of(plain_layers(36)).steps, SizeIs(Ge(30U)));
  const Timeline more = trace_of(plain_layers(36) + kernel_event("last", 16'000, 60));
  EXPECT_THAT(more.steps, SizeIs(Ge(30U))) << "less lies outside";
  EXPECT_THAT(outside_notes(more), IsEmpty());
}

TEST(TraceSteps, AreKnownByWhatComesWithThem) {
  const std::string late = kernel_event("last", 400'000, 60);
  const auto with = [&late](const auto& act) { return trace_of(layers(36, act) + late).steps; };
  EXPECT_THAT(with([](int) { return std::string(); }), IsEmpty());
  EXPECT_THAT(with(input), SizeIs(Ge(30U)));
  EXPECT_THAT(with([](int t) { return trace_event("cuda_runtime", "cudaStreamSynchronize", t + 200, 2); }),
              SizeIs(Ge(30U)));
  EXPECT_THAT(
      with([](int t) { return trace_event("user_annotation", "Optimizer.step#SGD.step", t + 100, 2); }),
      SizeIs(Ge(30U)));
}

TEST(TraceSteps, TellWhatLiesOutside) {
  const Timeline timeline =
      trace_of(layers(36, input) + kernel_event("last", 400'000, 60) +
               trace_event("cuda_runtime", "cudaDeviceSynchronize", 390'000, 9) + input(395'000));
  EXPECT_THAT(outside_notes(timeline),
              ElementsAre(HasSubstr("copies between host and GPU and 1 waits of the host")));
}

std::string draw(int begin) {
  return trace_event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", begin,
                     3);
}

/// Epochs of 63 batches, each with kernels of its own. The same come again in the next epoch.
std::string varying_batches(int epochs) {
  std::string text;
  int begin = 100;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (int batch = 0; batch < 63; ++batch, begin += 100) {
      text += draw(begin) + input(begin + 20);
      for (int k = 0; k < 2 + batch % 3; ++k)
        text += kernel_event(fmt::format("k{}_{}", batch, k), begin + 30 + 10 * k, 9);
    }
    text += draw(begin);  // finds that the epoch has ended
    begin += 20;
  }
  return text;
}

TEST(TraceSteps, AreBatchesAndNotEpochs) {
  const Timeline timeline = trace_of(varying_batches(6));
  ASSERT_THAT(timeline.steps, SizeIs(6 * 63));
  for (std::size_t i = 0; i < timeline.steps.size(); ++i) {
    const bool is_first = i > 0 && i % 63 == 0;  // it begins as the epoch before it ends
    EXPECT_EQ(timeline.steps[i].end - timeline.steps[i].begin, is_first ? 120'000 : 100'000) << i;
  }
}

TEST(TraceSteps, AreBatchesIfNothingRepeats) {
  std::string text;
  for (int batch = 0; batch < 8; ++batch)
    text += draw(100 * batch) + kernel_event(fmt::format("k{}", batch), 100 * batch + 50, 9);
  EXPECT_THAT(trace_of(text).steps, SizeIs(7)) << "nobody draws behind the last one";
  EXPECT_THAT(trace_of(draw(1) + draw(20) + kernel_event("k", 50, 9)).steps, IsEmpty());
}

TEST(TraceSteps, MayDrawFromSeveralLoaders) {
  std::string text;
  for (int batch = 0; batch < 8; ++batch) {
    const int begin = 100 * batch;
    text += draw(begin) + draw(begin + 5) + kernel_event(fmt::format("k{}", batch), begin + 50, 9);
  }
  const std::vector<TimeSpan> steps = trace_of(text).steps;
  ASSERT_THAT(steps, SizeIs(7));
  for (std::size_t i = 0; i < steps.size(); ++i)
    EXPECT_EQ(steps[i].begin, 100'000 * static_cast<TraceTime>(i));
}

TEST(TraceSteps, AreWhatRepeatsIfFewBatchesAreDrawnInEach) {
  std::string text;
  for (int step = 0; step < 20; ++step) {
    const int begin = 1000 * step;
    for (int part = 0; part < 4; ++part)
      text += draw(begin + 200 * part) + kernel_event(fmt::format("k{}", part), begin + 200 * part + 50, 9);
  }
  const std::vector<TimeSpan> steps = trace_of(text).steps;
  EXPECT_THAT(steps, SizeIs(Ge(17U)));
  EXPECT_THAT(steps, SizeIs(::testing::Le(20U)));
}

}  // namespace
}  // namespace penstock
