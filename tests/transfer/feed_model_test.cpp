#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/transfer/feed_model.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

// A profile and a feed in, seconds out: no device.
namespace penstock {
namespace {

using Curve = LinkProfile::Curve;
using Gather = LinkProfile::Gather;
using ::testing::HasSubstr;

constexpr double kMicro = 1e-6;

/// Batches that host threads gather, if a sample of 1000 bytes takes `seconds` and larger ones as much more.
std::vector<LinkProfile::GridPoint> host_gathers(double seconds) {
  return {{1, 1, seconds / 1000},
          {1, 1000, seconds},
          {1'000'000, 1, seconds / 1000},
          {1'000'000, 1'000'000'000, seconds * 1'000'000}};
}

/// A link of 10 GB/s and device memory of 100 GB/s. A copy costs 2 us, and the smallest kernel 6 us. Samples
/// of 1000 bytes take the host 200 ns (with 4 threads), a kernel 125 ns, and the copy engine 500 ns.
LinkProfile profile() {
  LinkProfile made;
  made.curves[Curve::pinned_h2d] = {{1000, 2 * kMicro}, {100'000'000, 1e-2}};
  made.curves[Curve::zero_copy_h2d] = {{1000, 6 * kMicro}, {100'000'000, 1e-2}};
  made.curves[Curve::device_d2d] = {{10'000, 0.1 * kMicro}, {100'000'000, 1e-3}};
  made.copy_interval = 2 * kMicro;
  made.host_gathers = host_gathers(200e-9);
  made.gathers[Gather::zero_copy] = {{1000, 125e-9}, {100'000, 10'000e-9}};
  made.gathers[Gather::copy_engine] = {{1000, 500e-9}, {100'000, 10'000e-9}};
  made.gather_threads = 4;
  return made;
}

/// A batch costs 30 us, 5 us for each field and 3 us for each part, a copy in it 100 ns, a step 10 us.
/// Kernels are as fast as copies, and one block reads 1 GB/s of the device.
DeviceTuning tuning() {
  DeviceTuning made;
  made.copying_blocks = 4;
  made.converting_blocks = 8;
  made.most_blocks = 16;
  made.feeding.batch_seconds = 30 * kMicro;
  made.feeding.field_seconds = 5 * kMicro;
  made.feeding.copy_seconds = 0.1 * kMicro;
  made.feeding.enqueue_seconds = 3 * kMicro;
  made.feeding.step_seconds = 10 * kMicro;
  made.feeding.kernel_share = 1;
  made.feeding.block_rate = 1e9;
  return made;
}

ModelledFeed feed(GatherPath path, double step_micro = 0,
                  const std::function<void(ModelledFeed&)>& change = nullptr) {
  ModelledFeed made;
  made.fields = {{.path = path, .sample_bytes = 1000, .delivered_bytes = 1000}};
  made.batch = 1000;
  made.step_seconds = step_micro * kMicro;
  if (change) change(made);
  return made;
}

/// Microseconds of a batch.
struct Expected {
  double loader = 0, gather = 0, batch = 0, transfer = 0, kernel = 0, period = 0, stall = 0, exposed = 0;
  FeedLimit limited_by = FeedLimit::unknown;
  double pacing = 0;
};

struct Row {
  const char* name;
  ModelledFeed feed;
  Expected expected;
};

void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

std::vector<Row> rows() {
  const auto host = GatherPath::host;
  const auto kernels = GatherPath::zero_copy;
  const auto engine = GatherPath::copy_engine;
  const auto resident = [](double share) {
    return [share](ModelledFeed& f) { f.fields[0].resident = share; };
  };
  const auto widened = [](ModelledFeed& f) {
    f.fields[0].converts = true;
    f.fields[0].delivered_bytes = 4000;
  };
  const auto with = [](std::initializer_list<std::function<void(ModelledFeed&)>> changes) {
    return [all = std::vector(changes)](ModelledFeed& f) {
      for (const auto& change : all) change(f);
    };
  };
  return {
      // The host gathers 1 MB in 200 us, and the link takes 100 us and 2 us.
      {"TheHostGathers",
       feed(host),
       {.gather = 200,
        .batch = 35,
        .transfer = 102,
        .period = 235,
        .stall = 235,
        .exposed = 102,
        .limited_by = FeedLimit::gather}},
      {"TwiceTheThreads",
       feed(host, 0, [](auto& f) { f.threads = 8; }),
       {.gather = 100,
        .batch = 35,
        .transfer = 102,
        .period = 135,
        .stall = 135,
        .exposed = 102,
        .limited_by = FeedLimit::link}},
      {"TheHostGathersAndAKernelWidens",
       feed(host, 0, widened),
       {.gather = 200,
        .batch = 35,
        .transfer = 102,
        .kernel = 25,
        .period = 235,
        .stall = 235,
        .exposed = 102,
        .limited_by = FeedLimit::gather}},
      {"TheHostGathersWhatIsNotResident",
       feed(host, 0, resident(0.75)),
       {.gather = 50,
        .batch = 35,
        .transfer = 29,
        .kernel = 10,
        .period = 85,
        .stall = 85,
        .exposed = 29,
        .limited_by = FeedLimit::gather}},

      // Half of the first kernel's latency is hidden.
      {"AKernelReadsTheLink",
       feed(kernels),
       {.batch = 35,
        .transfer = 128,
        .period = 128,
        .stall = 128,
        .exposed = 128,
        .limited_by = FeedLimit::link}},
      // 1 MB read and 4 MB written, in the time of 2.5 MB copied.
      {"AKernelThatWidensWritesMore",
       feed(kernels, 0, widened),
       {.batch = 35,
        .transfer = 128,
        .kernel = 25,
        .period = 128,
        .stall = 128,
        .exposed = 128,
        .limited_by = FeedLimit::link}},
      // 500 KB on the device by 8 blocks on each of two streams.
      {"FewBlocksReadTheResidentHalf",
       feed(kernels, 0, resident(0.5)),
       {.batch = 35,
        .transfer = 96.75,
        .period = 96.75,
        .stall = 96.75,
        .exposed = 96.75,
        .limited_by = FeedLimit::link}},
      // 16 of the 32 blocks that seven eighths would get.
      {"BlocksHaveALimit",
       feed(kernels, 0, with({resident(0.875), [](auto& f) { f.batch = 8000; }})),
       {.batch = 35,
        .transfer = 346.75,
        .period = 346.75,
        .stall = 346.75,
        .exposed = 346.75,
        .limited_by = FeedLimit::link}},
      {"AllIsResident",
       feed(kernels, 0, with({resident(1), widened, [](auto& f) { f.batch = 100'000; }})),
       {.batch = 35, .kernel = 2500, .period = 2500, .stall = 2500, .limited_by = FeedLimit::device}},

      {"AnEngineFetches",
       feed(engine),
       {.batch = 135,
        .transfer = 500,
        .period = 500,
        .stall = 500,
        .exposed = 500,
        .limited_by = FeedLimit::link}},
      {"AnEngineFetchesAndAKernelWidens",
       feed(engine, 0, widened),
       {.batch = 135,
        .transfer = 500,
        .kernel = 25,
        .period = 500,
        .stall = 500,
        .exposed = 500,
        .limited_by = FeedLimit::link}},
      {"SamplesInSequenceAreOneCopy",
       feed(engine, 0, [](auto& f) { f.fields[0].in_sequence = true; }),
       {.batch = 35,
        .transfer = 102,
        .period = 102,
        .stall = 102,
        .exposed = 102,
        .limited_by = FeedLimit::link}},

      // 10 MB in 3 parts of 4 MiB, of which two are under way. They add 4 us each to the link's 1002 and
      // 5000.
      {"LargeBatchesOfTheHostInParts",
       feed(host, 0, [](auto& f) { f.batch = 10'000; }),
       {.gather = 2000,
        .batch = 44,
        .transfer = 1014,
        .period = 2044,
        .stall = 2044,
        .exposed = 1014,
        .limited_by = FeedLimit::gather}},
      {"LargeBatchesOfAnEngineInParts",
       feed(engine, 0, [](auto& f) { f.batch = 10'000; }),
       {.batch = 1044,
        .transfer = 5012,
        .period = 5012,
        .stall = 5012,
        .exposed = 5012,
        .limited_by = FeedLimit::link,
        .pacing = 5012 / 3.0}},
      // 39 MB in 3 parts of up to 12.5 MiB, since the link sets the pace.
      {"LargePartsIfTheLinkSetsThePace",
       feed(engine, 0,
            with({[](auto& f) { f.batch = 39'000; }, [](auto& f) { f.fields[0].in_sequence = true; }})),
       {.batch = 44,
        .transfer = 3914,
        .period = 3914,
        .stall = 3914,
        .exposed = 3914,
        .limited_by = FeedLimit::link,
        .pacing = 3914 / 3.0}},

      // The step.
      {"TheStepHidesTheFeed",
       feed(kernels, 2000),
       {.batch = 35,
        .transfer = 128,
        .period = 2010,
        .stall = 10,
        .exposed = 10,
        .limited_by = FeedLimit::consumer}},
      {"TheStepHidesAPart",
       feed(kernels, 100),
       {.batch = 35,
        .transfer = 128,
        .period = 128,
        .stall = 28,
        .exposed = 28,
        .limited_by = FeedLimit::link}},
      // With two slots, a slot's way of 128 + 110 us takes at least two periods.
      {"OneBatchAhead",
       feed(kernels, 100, [](auto& f) { f.prefetch_depth = 1; }),
       {.batch = 35,
        .transfer = 128,
        .period = 128,
        .stall = 28,
        .exposed = 28,
        .limited_by = FeedLimit::link}},
      {"OneBatchAheadOfAnEngineThatWidens",
       feed(engine, 480, with({widened, [](auto& f) { f.prefetch_depth = 1; }})),
       {.batch = 135,
        .transfer = 500,
        .kernel = 25,
        .period = 507.5,
        .stall = 27.5,
        .exposed = 27.5,
        .limited_by = FeedLimit::link}},

      // The rest of the host.
      {"SmallBatches",
       feed(kernels, 0, [](auto& f) { f.batch = 10; }),
       {.batch = 35,
        .transfer = 4.25,
        .period = 35,
        .stall = 35,
        .exposed = 4.25,
        .limited_by = FeedLimit::batches}},
      {"AWrappedLoader",
       feed(engine, 100,
            [](auto& f) {
              f.loader.fetch_seconds = 4000 * kMicro;
              f.fields[0].in_sequence = true;
            }),
       {.loader = 4000,
        .batch = 35,
        .transfer = 102,
        .period = 4035,
        .stall = 3935,
        .exposed = 102,
        .limited_by = FeedLimit::loader}},
      // Four workers make a batch in 1000 us, of which 35 us pass while the thread does its own work.
      {"WorkersGoOnWhileTheThreadWorks",
       feed(engine, 100,
            [](auto& f) {
              f.loader = {.fetch_seconds = 4000 * kMicro, .workers = 4, .processors = 8};
              f.fields[0].in_sequence = true;
            }),
       {.loader = 965,
        .batch = 35,
        .transfer = 102,
        .period = 1000,
        .stall = 900,
        .exposed = 102,
        .limited_by = FeedLimit::fetch}},
      {"TakingABatchFromAWorkerIsTheThreadsWork",
       feed(engine, 100,
            [](auto& f) {
              f.loader = {.fetch_seconds = 1000 * kMicro,
                          .receive_seconds = 990 * kMicro,
                          .workers = 4,
                          .processors = 8};
              f.fields[0].in_sequence = true;
            }),
       {.loader = 990,
        .batch = 35,
        .transfer = 102,
        .period = 1025,
        .stall = 925,
        .exposed = 102,
        .limited_by = FeedLimit::transport}},
      // Five workers share two processors, which take (8000 + 1000) us / 2.
      {"WorkersThatShareFewProcessors",
       feed(engine, 100,
            [](auto& f) {
              f.loader = {.fetch_seconds = 8000 * kMicro,
                          .collate_seconds = 1000 * kMicro,
                          .workers = 5,
                          .processors = 2};
              f.fields[0].in_sequence = true;
            }),
       {.loader = 4465,
        .batch = 35,
        .transfer = 102,
        .period = 4500,
        .stall = 4400,
        .exposed = 102,
        .limited_by = FeedLimit::fetch}},
      {"ACollateThatTakesLonger",
       feed(engine, 100,
            [](auto& f) {
              f.loader.fetch_seconds = 1000 * kMicro;
              f.loader.collate_seconds = 3000 * kMicro;
              f.fields[0].in_sequence = true;
            }),
       {.loader = 4000,
        .batch = 35,
        .transfer = 102,
        .period = 4035,
        .stall = 3935,
        .exposed = 102,
        .limited_by = FeedLimit::collate}},
      {"FieldsAddUp",
       feed(kernels, 0,
            [](auto& f) {
              f.fields.push_back({.path = GatherPath::host, .sample_bytes = 1000, .delivered_bytes = 1000});
            }),
       {.gather = 200,
        .batch = 40,
        .transfer = 230,
        .period = 240,
        .stall = 240,
        .exposed = 230,
        .limited_by = FeedLimit::link}},
  };
}

class FeedModelTest : public ::testing::TestWithParam<Row> {};

INSTANTIATE_TEST_SUITE_P(Rows, FeedModelTest, ::testing::ValuesIn(rows()),
                         [](const auto& row) { return std::string(row.param.name); });

TEST_P(FeedModelTest, AddsUpTheStages) {
  const Expected& expected = GetParam().expected;
  const FeedPrediction result = predict_feed(profile(), tuning(), GetParam().feed);
  constexpr double kRounding = 1e-6;  // of a microsecond
  EXPECT_NEAR(result.loader_seconds / kMicro, expected.loader, kRounding);
  EXPECT_NEAR(result.gather_seconds / kMicro, expected.gather, kRounding);
  EXPECT_NEAR(result.batch_seconds / kMicro, expected.batch, kRounding);
  EXPECT_NEAR(result.pacing_seconds / kMicro, expected.pacing, kRounding);
  EXPECT_NEAR(result.transfer_seconds / kMicro, expected.transfer, kRounding);
  EXPECT_NEAR(result.kernel_seconds / kMicro, expected.kernel, kRounding);
  EXPECT_NEAR(result.seconds / kMicro, expected.period, kRounding);
  EXPECT_NEAR(result.stall_seconds / kMicro, expected.stall, kRounding);
  EXPECT_NEAR(result.exposed_transfer_seconds / kMicro, expected.exposed, kRounding);
  EXPECT_EQ(result.limited_by, expected.limited_by) << feed_limit_name(result.limited_by);
  EXPECT_EQ(result.step_seconds, GetParam().feed.step_seconds);
}

TEST(FeedModel, RefusesWhatIsNoFeed) {
  const auto refused = [](const std::function<void(ModelledFeed&)>& change) -> std::string {
    try {
      static_cast<void>(predict_feed(profile(), tuning(), feed(GatherPath::host, 0, change)));
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(refused([](auto& f) { f.batch = 0; }), HasSubstr("no samples"));
  EXPECT_THAT(refused([](auto& f) { f.prefetch_depth = 0; }), HasSubstr("ahead"));
  EXPECT_THAT(refused([](auto& f) { f.step_seconds = -1; }), HasSubstr("negative"));
  EXPECT_THAT(refused([](auto& f) { f.loader.fetch_seconds = std::numeric_limits<double>::quiet_NaN(); }),
              HasSubstr("negative"));
  EXPECT_THAT(refused([](auto& f) { f.fields[0].sample_bytes = 0; }), HasSubstr("no bytes"));
  EXPECT_THAT(refused([](auto& f) { f.fields[0].delivered_bytes = 0; }), HasSubstr("no bytes"));
  EXPECT_THAT(refused([](auto& f) { f.fields[0].path = GatherPath::automatic; }),
              HasSubstr("no gather path"));
  EXPECT_THAT(refused([](auto& f) { f.fields[0].resident = 1.01; }), HasSubstr("resident share"));
  EXPECT_THROW((void)shuffled_seconds(profile(), tuning(), GatherPath::automatic, 1, 1), InvalidArgument);
}

// Without measured gathers, the seconds of a sample follow from the curves and from the tuning.
TEST(FeedModel, WithoutMeasuredGathersCurvesAndTuningTell) {
  LinkProfile curves = profile();
  curves.gathers.clear();
  curves.host_gathers.clear();
  DeviceTuning tuned = tuning();
  tuned.copied_sample_bytes = 1000;
  tuned.feeding.host_sample_seconds = 20e-9;
  tuned.feeding.link_sample_seconds = 30e-9;
  tuned.feeding.small_copy_share = 0.1;
  tuned.feeding.small_copy_seconds = 500e-9;
  const auto nanoseconds = [&](GatherPath path, std::size_t bytes) {
    return shuffled_seconds(curves, tuned, path, bytes, 10) / 10 * 1e9;
  };
  EXPECT_NEAR(nanoseconds(GatherPath::host, 1000), 100, 1e-9);
  EXPECT_NEAR(nanoseconds(GatherPath::host, 10), 20, 1e-9);
  EXPECT_NEAR(nanoseconds(GatherPath::zero_copy, 1000), 100, 1e-9);
  EXPECT_NEAR(nanoseconds(GatherPath::zero_copy, 10), 30, 1e-9);
  EXPECT_NEAR(nanoseconds(GatherPath::copy_engine, 1000), 100, 1e-9);
  EXPECT_NEAR(nanoseconds(GatherPath::copy_engine, 999), 999, 1e-9);
  EXPECT_NEAR(nanoseconds(GatherPath::copy_engine, 10), 500, 1e-9);

  curves.curves[Curve::staged_h2d] = {{100'000'000, 2e-2}};
  EXPECT_NEAR(nanoseconds(GatherPath::host, 1000), 200, 1e-9);
  curves.curves[Curve::zero_copy_h2d] = {{100'000'000, 2.5e-2}};
  EXPECT_NEAR(nanoseconds(GatherPath::zero_copy, 1000), 250, 1e-9);
  curves.curves.clear();
  tuned.unstated_link_rate = 2e9;
  for (const GatherPath path : {GatherPath::host, GatherPath::zero_copy, GatherPath::copy_engine}) {
    EXPECT_NEAR(nanoseconds(path, 1000), 500, 1e-9);
  }
}

TEST(FeedModel, MeasuredKernelsTakePrecedence) {
  LinkProfile measured = profile();
  measured.gathers[Gather::resident] = {{1000, 40e-9}};
  measured.gathers[Gather::widening] = {{1000, 100e-9}};
  const auto kernel = [&](std::size_t delivered, bool converts) {
    const auto all = feed(GatherPath::zero_copy, 0, [&](auto& f) {
      f.fields[0].resident = 1;
      f.fields[0].delivered_bytes = delivered;
      f.fields[0].converts = converts;
    });
    return predict_feed(measured, tuning(), all).kernel_seconds / kMicro;
  };
  EXPECT_NEAR(kernel(1000, false), 40, 1e-6);
  EXPECT_NEAR(kernel(4000, true), 100, 1e-6);
  EXPECT_NEAR(kernel(2000, true), 60, 1e-6) << "fewer bytes than float32";
}

TEST(FeedModel, WithoutACurveOfTheDeviceTheTuningTells) {
  LinkProfile curves = profile();
  curves.curves.erase(Curve::device_d2d);
  DeviceTuning tuned = tuning();
  tuned.device_copy_rate = 50e9;
  tuned.feeding.kernel_share = 0.5;
  const auto all = feed(GatherPath::zero_copy, 0, [](auto& f) { f.fields[0].resident = 1; });
  EXPECT_NEAR(predict_feed(curves, tuned, all).kernel_seconds / kMicro, 40, 1e-6);
}

// Workers.

/// Fetch takes 80 ms, collate 10, taking a batch from a worker 6.
ModelledLoader loader(unsigned workers, unsigned processors,
                      const std::function<void(ModelledLoader&)>& change = nullptr) {
  ModelledLoader made{.fetch_seconds = 80e-3,
                      .collate_seconds = 10e-3,
                      .receive_seconds = 6e-3,
                      .workers = workers,
                      .processors = processors};
  if (change) change(made);
  return made;
}

double milliseconds(const ModelledLoader& loader) { return predict_loader(loader).seconds * 1e3; }

TEST(FeedModel, WithoutWorkersTheStagesFollowEachOther) {
  const LoaderPrediction result = predict_loader(loader(0, 8));
  EXPECT_NEAR(result.seconds * 1e3, 90, 1e-9);
  EXPECT_EQ(result.seconds, result.caller_seconds);
  EXPECT_EQ(result.worker_seconds, 0);
  EXPECT_EQ(result.processor_seconds, 0);
}

TEST(FeedModel, WorkersShareTheBatches) {
  const LoaderPrediction result = predict_loader(loader(3, 8));
  EXPECT_NEAR(result.worker_seconds * 1e3, 30, 1e-9);
  EXPECT_NEAR(result.processor_seconds * 1e3, 96 / 8.0, 1e-9);
  EXPECT_NEAR(result.caller_seconds * 1e3, 6, 1e-9);
  EXPECT_EQ(result.seconds, result.worker_seconds);
  EXPECT_NEAR(milliseconds(loader(30, 80)), 6, 1e-9) << "the calling process takes one after another";
}

TEST(FeedModel, BusyWorkersGainNothingBeyondTheProcessors) {
  EXPECT_NEAR(milliseconds(loader(1, 2)), 90, 1e-9);
  EXPECT_NEAR(milliseconds(loader(2, 2)), 48, 1e-9) << "the calling process needs a processor, too";
  EXPECT_NEAR(milliseconds(loader(8, 2)), 48, 1e-9);
  EXPECT_NEAR(milliseconds(loader(1, 1)), 96, 1e-9) << "slower than without a worker";
}

TEST(FeedModel, WaitingNeedsNoProcessor) {
  const auto waits = [](auto& l) { l.waiting_seconds = 75e-3; };
  EXPECT_NEAR(milliseconds(loader(4, 2, waits)), 22.5, 1e-9);
  EXPECT_NEAR(milliseconds(loader(16, 2, waits)), 21 / 2.0, 1e-9) << "what does not wait";
  EXPECT_NEAR(milliseconds(loader(0, 2, waits)), 90, 1e-9);
}

TEST(FeedModel, WorkersNeverSlowEachOtherDown) {
  for (const unsigned processors : {1u, 2u, 5u, 64u}) {
    for (const double waiting : {0.0, 40e-3, 90e-3}) {
      double fewer = std::numeric_limits<double>::infinity();
      for (unsigned workers = 1; workers <= 70; ++workers) {
        const LoaderPrediction result =
            predict_loader(loader(workers, processors, [&](auto& l) { l.waiting_seconds = waiting; }));
        for (const double stage : {result.worker_seconds, result.processor_seconds, result.caller_seconds}) {
          ASSERT_GE(result.seconds, stage);
        }
        ASSERT_LE(result.seconds, fewer);
        fewer = result.seconds;
      }
    }
  }
}

TEST(FeedModel, RefusesWhatIsNoLoader) {
  const auto refused = [](const std::function<void(ModelledLoader&)>& change) -> std::string {
    try {
      static_cast<void>(predict_loader(loader(1, 1, change)));
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(refused([](auto& l) { l.fetch_seconds = -1; }), HasSubstr("negative"));
  EXPECT_THAT(refused([](auto& l) { l.collate_seconds = -1e-9; }), HasSubstr("negative"));
  EXPECT_THAT(refused([](auto& l) { l.receive_seconds = std::numeric_limits<double>::quiet_NaN(); }),
              HasSubstr("negative"));
  EXPECT_THAT(refused([](auto& l) { l.waiting_seconds = -1; }), HasSubstr("waits"));
  EXPECT_THAT(refused([](auto& l) { l.waiting_seconds = 90.1e-3; }), HasSubstr("waits for longer"));
  EXPECT_THAT(refused([](auto& l) { l.processors = 0; }), HasSubstr("no processor"));
  EXPECT_EQ(refused([](auto& l) { l.waiting_seconds = 90e-3; }), "no error");
}

// What a loader chooses by.

TEST(FeedModel, RatesAreThoseOfTheSlowestPart) {
  LinkProfile measured = profile();
  const auto rates = [&](bool in_sequence) {
    return gather_rates(measured, tuning(), 1000, 500, in_sequence);
  };
  EXPECT_NEAR(rates(false).by_host, 5e9, 1);
  EXPECT_NEAR(rates(false).by_kernels, 8e9, 1);
  EXPECT_NEAR(rates(false).by_copies, 2e9, 1);
  EXPECT_NEAR(rates(true).by_copies, 10e9, 1) << "the link";
  measured.host_gathers = host_gathers(50e-9);
  EXPECT_NEAR(rates(false).by_host, 10e9, 1) << "the link is slower than the host";
}

TEST(FeedModel, TheHostsRateIsThatOfBatchesOfThisSize) {
  LinkProfile measured = profile();
  measured.host_gathers = {{64, 64'000, 64e-6}, {1024, 1'024'000, 256e-6}};
  const auto rate = [&](std::size_t samples) {
    return gather_rates(measured, tuning(), 1000, samples, false).by_host;
  };
  EXPECT_NEAR(rate(64), 1e9, 1);
  EXPECT_NEAR(rate(1024), 4e9, 1);
  EXPECT_NEAR(rate(4096), 4e9, 1) << "as often as needed";
  const auto small = feed(GatherPath::host, 0, [](auto& f) { f.batch = 64; });
  EXPECT_NEAR(predict_feed(measured, tuning(), small).gather_seconds, 64e-6, 1e-12);
}

TEST(FeedModel, NothingHasNoRate) {
  EXPECT_THROW(static_cast<void>(gather_rates(profile(), tuning(), 1000, 0, false)), InvalidArgument);
}

TEST(FeedModel, CopiesPayIfOthersAreHardlyFaster) {
  EXPECT_TRUE(copies_pay({.by_host = 20, .by_kernels = 12.5, .by_copies = 10}));
  EXPECT_FALSE(copies_pay({.by_host = 20, .by_kernels = 12.6, .by_copies = 10}));
  EXPECT_FALSE(copies_pay({.by_host = 20.1, .by_kernels = 1, .by_copies = 10}));
}

TEST(FeedModel, KernelsPayUnlessTheHostIsTwiceAsFast) {
  EXPECT_TRUE(kernels_pay({.by_host = 20, .by_kernels = 10, .by_copies = 0}));
  EXPECT_FALSE(kernels_pay({.by_host = 20.1, .by_kernels = 10, .by_copies = 0}));
}

}  // namespace
}  // namespace penstock
