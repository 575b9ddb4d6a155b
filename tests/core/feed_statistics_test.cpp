#include <penstock/core/feed_statistics.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// Ten batches of 100 MB in a second; the consumer's stream waited for `stall` of it.
FeedStatistics fed(double stall, double transfer, double kernel, double gather) {
  FeedStatistics s;
  s.epochs = 1;
  s.batches = 10;
  s.timed_batches = 10;
  s.samples = 1000;
  s.sample_bytes = 1000000;
  s.delivered_bytes = 1000000000;
  s.link_bytes = 1000000000;
  s.seconds = 1;
  s.stall_seconds = stall;
  s.compute_seconds = 1 - stall;
  s.transfer_seconds = transfer;
  s.kernel_seconds = kernel;
  s.gather_seconds = gather;
  return s;
}

FeedStatistics made_resident(double seconds) {
  FeedStatistics s = fed(0.9, 0, 0.1, 0);
  s.resident_bytes = 1000000;
  s.resident_seconds = seconds;
  s.exposed_kernel_seconds = 0.1;
  return s;
}

/// The same batches of a wrapped loader. The feed waited for it for `loader` seconds, `startup` of them for
/// its start.
FeedStatistics wrapped(FeedStatistics s, double loader, double startup = 0) {
  s.wraps_loader = true;
  s.loader_seconds = loader - startup;
  s.startup_seconds = startup;
  return s;
}

/// A wrapped DataLoader whose stages were timed.
FeedStatistics staged(double fetch, double collate, double write, double receive, double startup = 0) {
  FeedStatistics s = wrapped(fed(0.6, 0.3, 0, 0.1), 0.8, startup);
  s.fetch_seconds = fetch;
  s.collate_seconds = collate;
  s.write_seconds = write;
  s.receive_seconds = receive;
  return s;
}

FeedStatistics decoding() {
  FeedStatistics s = fed(0.6, 0.3, 0, 0.8);
  s.decodes = true;
  return s;
}

FeedStatistics decoding_on_the_device() {
  FeedStatistics s = fed(0.6, 0.9, 0, 0.3);
  s.decodes = s.device_decodes = true;
  return s;
}

/// One without workers that pins its batches itself.
FeedStatistics pinning(double fetch, double collate, double pin) {
  FeedStatistics s = staged(fetch, collate, 0, 0);
  s.pin_seconds = pin;
  return s;
}

/// Batches of a wrapped loader that are sent for most of the time, and `pin` of that time are pinned.
FeedStatistics pinned_while_sent(double pin, unsigned workers = 0) {
  FeedStatistics s = wrapped(fed(0.6, 0.3, 0, 0.8), 0.1);
  s.send_pin_seconds = pin;
  s.loader_workers = workers;
  return s;
}

FeedStatistics without_stages(const char* why) {
  FeedStatistics s = wrapped(fed(0.6, 0.3, 0, 0.1), 0.8);
  s.stages_unknown = why;
  return s;
}

TEST(FeedStatisticsTest, NamesTheStageThatSetsThePace) {
  EXPECT_EQ(FeedStatistics{}.limited_by(), FeedLimit::unknown);
  EXPECT_EQ(fed(0.01, 0.9, 0, 0.9).limited_by(), FeedLimit::consumer);
  EXPECT_EQ(fed(0.6, 0.95, 0, 0.9).limited_by(), FeedLimit::link);
  EXPECT_EQ(fed(0.6, 0.3, 0, 0.9).limited_by(), FeedLimit::gather);
  EXPECT_EQ(decoding().limited_by(), FeedLimit::decode);
  EXPECT_EQ(decoding_on_the_device().limited_by(), FeedLimit::decode);
  EXPECT_EQ(wrapped(fed(0.6, 0.3, 0, 0.1), 0.9).limited_by(), FeedLimit::loader);
  EXPECT_EQ(wrapped(fed(0.6, 0.3, 0, 0.1), 0.9, 0.8).limited_by(), FeedLimit::loader)
      << "its start is its own";
  EXPECT_EQ(wrapped(fed(0.6, 0.9, 0, 0.1), 0.3).limited_by(), FeedLimit::link);
  EXPECT_EQ(wrapped(fed(0.1, 0.3, 0, 0.1), 0.8).limited_by(), FeedLimit::consumer);
  EXPECT_EQ(fed(0.6, 0, 0.9, 0).limited_by(), FeedLimit::device);
  EXPECT_EQ(fed(0.6, 0.2, 0, 0.2).limited_by(), FeedLimit::batches);
  EXPECT_EQ(made_resident(0.7).limited_by(), FeedLimit::residency);
  EXPECT_EQ(made_resident(0.4).limited_by(), FeedLimit::batches);
  FeedStatistics early = made_resident(5);  // before the first request
  early.exposed_kernel_seconds = 0.85;
  EXPECT_EQ(early.limited_by(), FeedLimit::batches);
  FeedStatistics untimed = fed(0.6, 0.95, 0, 0);
  untimed.timed_batches = 3;
  EXPECT_EQ(untimed.limited_by(), FeedLimit::unknown);
  untimed.timed_batches = 4;
  EXPECT_EQ(untimed.limited_by(), FeedLimit::link);
}

/// Batches of which no stage takes long. The step waited for `first` of 0.6 s for first batches.
FeedStatistics waiting_for_first(double first) {
  FeedStatistics s = fed(0.6, 0.1, 0, 0);
  s.first_stall_seconds = first;
  return s;
}

TEST(FeedStatisticsTest, WaitsForFirstBatchesDoNotTellTheCostOfABatch) {
  EXPECT_EQ(waiting_for_first(0.29).limited_by(), FeedLimit::batches);
  EXPECT_EQ(waiting_for_first(0.31).limited_by(), FeedLimit::unknown);
  FeedStatistics busy = waiting_for_first(0.31);
  busy.transfer_seconds = 0.9;
  EXPECT_EQ(busy.limited_by(), FeedLimit::link) << "a stage that ran for most of the time";
}

TEST(FeedStatisticsTest, NamesTheStageWithoutWhichTheLoaderIsFastest) {
  EXPECT_EQ(staged(0.6, 0.1, 0, 0).limited_by(), FeedLimit::fetch);
  EXPECT_EQ(staged(0.1, 0.6, 0, 0).limited_by(), FeedLimit::collate);
  EXPECT_EQ(staged(0.1, 0.1, 0.6, 0).limited_by(), FeedLimit::transport) << "workers write for longest";
  EXPECT_EQ(staged(0.1, 0.1, 0, 0.7).limited_by(), FeedLimit::transport) << "they wait to be received";
  EXPECT_EQ(staged(0.3, 0.2, 0, 0.4).limited_by(), FeedLimit::fetch)
      << "batches are received while workers make others";
  EXPECT_EQ(staged(0.4, 0.1, 0.3, 0.7).limited_by(), FeedLimit::transport)
      << "without it a batch takes 0.5, and without fetch 0.7";
  EXPECT_EQ(staged(0.2, 0.3, 0, 0.4).limited_by(), FeedLimit::collate)
      << "receiving sets the pace without either, so it is the longer one";
}

TEST(FeedStatisticsTest, NamesPinningWhereItTakesLongest) {
  EXPECT_EQ(pinning(0.1, 0.2, 0.5).limited_by(), FeedLimit::pin);
  EXPECT_EQ(pinning(0.1, 0.4, 0.3).limited_by(), FeedLimit::collate);
  EXPECT_EQ(pinning(0.1, 0.1, 0.1).limited_by(), FeedLimit::loader) << "0.3 of 0.8";
  EXPECT_EQ(pinning(0, 0, 0.5).limited_by(), FeedLimit::pin);
  EXPECT_EQ(pinned_while_sent(0.5).limited_by(), FeedLimit::pin);
  EXPECT_EQ(pinned_while_sent(0.3).limited_by(), FeedLimit::gather) << "less than half of sending";
  FeedStatistics own = pinned_while_sent(0.5);
  own.wraps_loader = false;
  EXPECT_EQ(own.limited_by(), FeedLimit::gather);
  FeedStatistics fast = pinned_while_sent(0.5);
  fast.gather_seconds = 0.2;
  EXPECT_EQ(fast.limited_by(), FeedLimit::batches) << "nobody waits for it";
}

TEST(FeedStatisticsTest, ALoaderThatPinsIsNotSaidToPinWhileSending) {
  FeedStatistics s = pinning(0.1, 0.2, 0.5);
  s.send_pin_seconds = s.gather_seconds;
  EXPECT_THAT(s.sentence(), StartsWith("The wrapped loader sets the pace by its pin: "));
}

TEST(FeedStatisticsTest, NamesNoStageThatDoesNotExplainTheWait) {
  EXPECT_EQ(staged(0.2, 0.1, 0, 0).limited_by(), FeedLimit::loader) << "0.3 of 0.8";
  EXPECT_EQ(staged(0.2, 0.21, 0, 0).limited_by(), FeedLimit::collate) << "0.41 of 0.8";
  EXPECT_EQ(staged(0, 0, 0, 0).limited_by(), FeedLimit::loader);
  EXPECT_EQ(staged(0.2, 0.1, 0, 0, 0.5).limited_by(), FeedLimit::loader) << "its start is waited for, too";
  EXPECT_EQ(wrapped(fed(0.6, 0.3, 0, 0.1), 0).slow_stage(), FeedLimit::loader);
  FeedStatistics idle = staged(0.6, 0.1, 0, 0);
  idle.loader_seconds = 0.1;
  EXPECT_EQ(idle.limited_by(), FeedLimit::batches) << "workers were slow, and nobody waited for them";
}

/// `epochs` of a DataLoader with workers, and a step of 40 s in all.
FeedStatistics in_epochs(std::uint64_t epochs, std::uint64_t batches, unsigned workers, double startup,
                         double loader, double fetch) {
  FeedStatistics s = wrapped(fed(0, 0, 0, 0), startup + loader, startup);
  s.epochs = epochs;
  s.batches = s.timed_batches = epochs * batches;
  s.loader_workers = workers;
  s.stall_seconds = startup + loader;
  s.compute_seconds = 40;
  s.fetch_seconds = fetch;
  return s;
}

TEST(FeedStatisticsTest, AStartThatTakesLongerThanTheOtherWaitsIsTheLoaders) {
  FeedStatistics s = in_epochs(10, 40, 4, 50, 24, 57.6);
  EXPECT_EQ(s.limited_by(), FeedLimit::loader) << "most of what fetch takes is hidden behind the step";
  EXPECT_THAT(s.sentence(), HasSubstr("Most of that was its start in each epoch: with `persistent_workers"));
  s = in_epochs(10, 40, 4, 30, 44, 57.6);
  EXPECT_EQ(s.limited_by(), FeedLimit::fetch) << "the start is the smaller part";
}

TEST(FeedStatisticsTest, TheFirstBatchOfAnEpochIsMadeAfterTheStart) {
  const FeedStatistics s = in_epochs(4, 16, 8, 32 + 14, 32, 64);
  EXPECT_DOUBLE_EQ(s.start_seconds(), 14) << "a worker takes 8 s for a batch";
  EXPECT_EQ(s.limited_by(), FeedLimit::fetch);
  EXPECT_EQ(in_epochs(4, 1, 0, 60, 0, 56).limited_by(), FeedLimit::fetch) << "made in this process";
  EXPECT_EQ(in_epochs(4, 16, 8, 8, 32, 64).start_seconds(), 0);
}

TEST(FeedStatisticsTest, TheFirstPinningIsNoPartOfTheStart) {
  FeedStatistics s = in_epochs(4, 1, 0, 60, 0, 28);
  s.pin_seconds = 28;
  EXPECT_DOUBLE_EQ(s.start_seconds(), 4);
}

TEST(FeedStatisticsTest, WorkersThatArePersistentAreNotAdvisedTo) {
  const auto without = Not(HasSubstr("persistent_workers"));
  FeedStatistics start = in_epochs(1, 40, 4, 50, 24, 24);
  start.starts_workers = false;
  EXPECT_EQ(start.limited_by(), FeedLimit::loader);
  EXPECT_THAT(start.sentence(), HasSubstr("Most of that was for the first batch of each epoch. Feed more"));
  EXPECT_THAT(start.sentence(), without);
  FeedStatistics s = staged(0.6, 0.1, 0, 0);
  EXPECT_THAT(s.sentence(), HasSubstr(", with `persistent_workers`")) << s.sentence();
  s.starts_workers = false;
  EXPECT_THAT(s.sentence(), HasSubstr(", with `persistent_workers`")) << "it has no workers yet";
  s.loader_workers = 2;
  EXPECT_THAT(s.sentence(), without);
  s.starts_workers = true;
  EXPECT_THAT(s.sentence(), HasSubstr("More workers (`num_workers`, with `persistent_workers`) help if"));
}

/// 38 small batches an epoch, of which one process makes all in 10 ms.
FeedStatistics of_small_batches(double startup, double loader) {
  FeedStatistics s = in_epochs(3, 38, 4, startup, loader, 0.002);
  s.collate_seconds = 0.0005;
  s.compute_seconds = 0.01;
  return s;
}

TEST(FeedStatisticsTest, WorkersThatCostMoreThanOneProcessAreAdvisedAgainst) {
  const auto none = HasSubstr("One process makes these batches in 10.0 ms, and the workers were waited for ");
  EXPECT_THAT(of_small_batches(0.9, 0.1).sentence(), none) << "they are slower than that once they run";
  EXPECT_THAT(of_small_batches(0.9, 0.1).sentence(), HasSubstr("1.00 s. Use `num_workers=0`."));
  EXPECT_THAT(of_small_batches(0.1, 0.9).sentence(), HasSubstr("Use `num_workers=0`, or larger batches."));
  EXPECT_THAT(of_small_batches(0.9, 0.005).sentence(), HasSubstr("`persistent_workers=True`"))
      << "started once, they are faster";
  FeedStatistics s = of_small_batches(0.1, 0.9);
  s.write_seconds = 0.6;
  EXPECT_EQ(s.limited_by(), FeedLimit::transport);
  EXPECT_THAT(s.sentence(), none);
  s.loader_workers = 0;
  EXPECT_THAT(s.sentence(), Not(HasSubstr("num_workers")));
  s = of_small_batches(0.1, 0.9);
  s.compute_seconds = 4;
  s.exposed_loader_seconds = 0.9;
  EXPECT_EQ(s.limited_by(), FeedLimit::consumer);
  EXPECT_THAT(s.sentence(), none);
}

TEST(FeedStatisticsTest, WorkersThatMakeBatchesFasterThanOneProcessAreNot) {
  FeedStatistics s = in_epochs(1, 40, 4, 0.3, 2, 2);
  EXPECT_EQ(s.limited_by(), FeedLimit::consumer);
  s.compute_seconds = 0.1;
  EXPECT_EQ(s.limited_by(), FeedLimit::fetch);
  EXPECT_THAT(s.sentence(), Not(HasSubstr("num_workers=0")));
  s.loader_seconds = 8.6;
  s.startup_seconds = 0;
  s.write_seconds = 6;
  s.fetch_seconds = 2;
  s.starts_workers = false;
  EXPECT_THAT(s.sentence(), Not(HasSubstr("num_workers=0")))
      << "8 s alone, which 8.6 s are not 10 % more than";
  s.loader_seconds = 9;
  EXPECT_THAT(s.sentence(), HasSubstr("num_workers=0"));
  s.starts_workers = true;
  EXPECT_THAT(s.sentence(), Not(HasSubstr("num_workers=0"))) << "starts that nobody timed may be the rest";
}

TEST(FeedStatisticsTest, WorkersWriteWhatIsMoreThanItCostsToReceiveIt) {
  FeedStatistics s = wrapped(fed(0.6, 0.3, 0, 0.8), 0.1);
  EXPECT_THAT(s.sentence(), HasSubstr("larger arrays, or make them in its workers (`num_workers` above 0)."));
  s.loader_workers = 2;
  EXPECT_THAT(s.sentence(), HasSubstr("larger arrays."));
  for (const unsigned workers : {0U, 2U}) {
    s.loader_workers = workers;
    s.delivered_bytes = (10 << 20) - 1;
    EXPECT_THAT(s.sentence(), HasSubstr("larger arrays, or larger batches."));
  }
}

TEST(FeedStatisticsTest, BatchesThatAreMadeInNoTimeNeedNoWorkers) {
  FeedStatistics s = in_epochs(1, 1000, 0, 0, 0.2, 0.19);
  s.compute_seconds = 0;
  EXPECT_EQ(s.limited_by(), FeedLimit::fetch);
  EXPECT_THAT(s.sentence(), HasSubstr("Workers do not help"));
  s.fetch_seconds = 0.21;
  EXPECT_THAT(s.sentence(), HasSubstr("make batches beside your step: `penstock doctor --loader` measures"));
}

TEST(FeedStatisticsTest, SaysWhyNoStageOfTheLoaderIsNamed) {
  EXPECT_THAT(
      without_stages("a loader of type list is not a DataLoader").sentence(),
      HasSubstr("Whether its fetch, collate, transport or pin is slow cannot be told: a loader of type "
                "list is not a DataLoader. Make its samples cheaper"));
  EXPECT_THAT(staged(0, 0, 0, 0).sentence(), HasSubstr("told: a worker's stages are timed from its second"));
  EXPECT_THAT(staged(0.2, 0.1, 0.01, 0.02).sentence(),
              HasSubstr("told: fetch took only 200 ms, collate 100 ms and transport 30.0 ms."));
  FeedStatistics s = staged(0.2, 0.1, 0.01, 0.02);
  s.loader_workers = 2;
  EXPECT_THAT(s.sentence(),
              HasSubstr("and transport 30.0 ms. Its workers start and end in each epoch, unless"));
  s.starts_workers = false;
  EXPECT_THAT(s.sentence(), Not(HasSubstr("in each epoch")));
}

TEST(FeedStatisticsTest, CountsOnlyTheBatchesThatWereTimed) {
  FeedStatistics s = fed(0.3, 0.45, 0, 0.3);
  s.timed_batches = 5;
  s.compute_seconds = 0.2;
  EXPECT_EQ(s.limited_by(), FeedLimit::link) << "0.09 s a batch of 0.1 s, and the gather took 0.03";
  EXPECT_DOUBLE_EQ(s.transfer_share(), 0.9);
  EXPECT_DOUBLE_EQ(s.gather_share(), 0.3);
  EXPECT_NEAR(s.transfer_gbps(), 1e-9 * 1e8 / 0.09, 1e-9);
}

FeedStatistics over_a_link(double ceiling, double stall = 0.6) {
  FeedStatistics s = fed(stall, 0.95, 0, 0.1);
  s.link_ceiling = ceiling;
  return s;
}

FeedStatistics waiting_for_the_loader() {
  FeedStatistics s = wrapped(fed(0.1, 0.3, 0, 0), 0.6);
  s.exposed_loader_seconds = 0.08;
  return s;
}

TEST(FeedStatisticsTest, TheStepIsToldWhatItsWaitsWereFor) {
  FeedStatistics s = fed(0.1, 0.5, 0, 0);
  s.first_stall_seconds = 0.06;
  EXPECT_THAT(s.sentence(),
              HasSubstr("Most of the wait was for the first batch of each epoch, which nothing"));
  s = waiting_for_the_loader();
  s.startup_seconds = 0.5;
  s.loader_seconds = 0.1;
  s.first_stall_seconds = 0.08;
  EXPECT_THAT(s.sentence(), HasSubstr("for the first batch of each epoch"));
  s.loader_workers = 2;
  EXPECT_THAT(s.sentence(), HasSubstr("`persistent_workers=True` starts them once"));
  s.starts_workers = false;
  EXPECT_THAT(s.sentence(), HasSubstr("for the first batch of each epoch"));
  s.startup_seconds = 0.1;
  s.loader_seconds = 0.5;
  s.first_stall_seconds = 0;
  EXPECT_THAT(s.sentence(), HasSubstr("More workers (`num_workers`) help if processors are idle."));
}

FeedStatistics of_unknown_consumer() {
  FeedStatistics s = wrapped(fed(0, 0, 0, 0), 0.5);
  s.timed_batches = 0;
  s.compute_seconds = 0;
  s.knows_consumer = false;
  return s;
}

FeedStatistics few(std::uint64_t batches, std::uint64_t timed) {
  FeedStatistics s = fed(0.6, 0.95, 0, 0);
  s.batches = batches;
  s.timed_batches = timed;
  return s;
}

struct Said {
  FeedStatistics statistics;
  const char* first;   ///< the beginning
  const char* advice;  ///< the advice
};

const std::vector<Said>& all_cases() {
  static const std::vector<Said> cases{
      {{}, "Nothing was fed yet. ", "Take a few batches"},
      {few(1, 1), "1 batch is too few to tell what sets the pace. ", "at least 4, by smaller batches"},
      {few(3, 3), "3 batches are too few to tell what sets the pace. ", "at least 4, by smaller batches"},
      {few(10, 3), "Too few batches were timed to tell what sets the pace: 3 of 10. ", "synchronize"},
      {fed(0.012, 0.9, 0, 0),
       "Your step sets the pace: it waited for data 1.2 % of the time, so a faster feed gains nothing. ",
       "look at the step"},
      {fed(0.1, 0.5, 0, 0),
       "Your step sets the pace: it worked for 90.0 % of the time and waited for data for 10.0 %, the most "
       "that a faster feed could save. ",
       "prefetch depth"},
      {waiting_for_the_loader(),
       "Your step sets the pace: it worked for 90.0 % of the time and waited for data for 10.0 %, the most "
       "that a faster feed could save. ",
       "Workers of a DataLoader"},
      {over_a_link(0),
       "Transfers set the pace: they ran 95.0 % of the time, at 1.05 GB/s, and your step waited for data "
       "60.0 % of the time. ",
       "`penstock link`"},
      {over_a_link(1.25e9),
       "The link sets the pace: transfers ran 95.0 % of the time, at 1.05 GB/s of the 1.25 GB/s that it can "
       "carry, and your step waited for data 60.0 % of the time. ",
       "residency"},
      {over_a_link(1.25e9, 1),
       "The link sets the pace: transfers ran 95.0 % of the time, at 1.05 GB/s of the 1.25 GB/s that it can "
       "carry. ",
       "residency"},
      {over_a_link(10e9),
       "Transfers set the pace: they ran 95.0 % of the time, at 1.05 GB/s of the 10.0 GB/s that the link can "
       "carry, and your step waited for data 60.0 % of the time. ",
       "option `gather`"},
      {fed(0.6, 0.3, 0, 0.8),
       "Gathering samples on the host sets the pace: it ran 80.0 % of the time, and your step waited for "
       "data 60.0 % of the time. ",
       "option `threads`"},
      {decoding(),
       "Decoding pictures on the host sets the pace: it ran 80.0 % of the time, and your step waited for "
       "data 60.0 % of the time. ",
       "more processors"},
      {decoding_on_the_device(),
       "Decoding pictures on the device sets the pace: with the transfers, it ran 90.0 % of the time, and "
       "your step "
       "waited for data 60.0 % of the time. ",
       "smaller pictures"},
      {wrapped(fed(0.6, 0.3, 0, 0.1), 0.8),
       "The wrapped loader sets the pace: it was waited for 80.0 % of the time, and your step waited for "
       "data "
       "60.0 % of the time. ",
       "`penstock doctor --loader` measures the stages"},
      {wrapped(fed(0.6, 0.3, 0, 0.1), 0.8, 0.7),
       "The wrapped loader sets the pace: it was waited for 80.0 % of the time, and your step waited for "
       "data "
       "60.0 % of the time. ",
       "`persistent_workers=True`"},
      {staged(0.6, 0.1, 0, 0),
       "The wrapped loader sets the pace by its fetch: it was waited for 80.0 % of the time, and your step "
       "waited for data 60.0 % of the time. ",
       "Fetch took 600 ms and collate 100 ms. Do less for each sample, or for the batch on the device, or "
       "read"},
      {staged(0.1, 0.6, 0, 0),
       "The wrapped loader sets the pace by its collate: it was waited for 80.0 % of the time, and your step "
       "waited for data 60.0 % of the time. ",
       "In the dataset it would take as long"},
      {staged(0.1, 0.1, 0.2, 0.7),
       "The wrapped loader sets the pace by its transport: it was waited for 80.0 % of the time, and your "
       "step waited for data 60.0 % of the time. ",
       "transport 900 ms. Yield arrays"},
      {pinning(0.1, 0.2, 0.5),
       "The wrapped loader sets the pace by its pin: it was waited for 80.0 % of the time, and your step "
       "waited for data 60.0 % of the time. ",
       "Fetch took 100 ms, collate 200 ms and pin 500 ms. Make the batches in workers"},
      {pinned_while_sent(0.5),
       "Pinning batches sets the pace: sending them ran 80.0 % of the time, 500 ms of it to pin them, and "
       "your step waited for data 60.0 % of the time. ",
       "Make the batches in workers"},
      {pinned_while_sent(0.5, 2),
       "Pinning batches sets the pace: sending them ran 80.0 % of the time, 500 ms of it to pin them, and "
       "your step waited for data 60.0 % of the time. ",
       "is pinned once: feed more batches"},
      {wrapped(fed(0.6, 0.3, 0, 0.8), 0.1),
       "Packing and sending batches on the host sets the pace: it ran 80.0 % of the time, and your step "
       "waited "
       "for data 60.0 % of the time. ",
       "`num_workers`"},
      {wrapped(over_a_link(1.25e9), 0.1),
       "The link sets the pace: transfers ran 95.0 % of the time, at 1.05 GB/s of the 1.25 GB/s that it can "
       "carry, and your step waited for data 60.0 % of the time. ",
       "have the loader yield narrower types"},
      {wrapped(over_a_link(10e9), 0.1),
       "Transfers set the pace: they ran 95.0 % of the time, at 1.05 GB/s of the 10.0 GB/s that the link can "
       "carry, and your step waited for data 60.0 % of the time. ",
       "fewer, larger arrays"},
      {of_unknown_consumer(),
       "What sets the pace cannot be told: the stream that uses the batches is not known. ",
       "Import PyTorch"},
      {fed(0.6, 0, 0.9, 0),
       "Gathering samples on the device sets the pace: it ran 90.0 % of the time, and your step waited for "
       "data 60.0 % of the time. ",
       "narrower type"},
      {made_resident(0.7),
       "Moving the resident part of the dataset to the device took most of the time so far: 700 ms of 1.00 "
       "s. ",
       "feed more epochs"},
      {fed(0.6, 0.1, 0, 0),
       "The fixed cost of each batch sets the pace: a batch of 95.4 MiB took 100 ms, with no stage busy "
       "for half of that, and your step waited for data 60.0 % of the time. ",
       "larger batches"},
      {waiting_for_first(0.4),
       "Too few batches to tell what sets the pace: your step waited for 600 ms, 400 ms of that for the "
       "first "
       "batch of each epoch, which nothing hides. ",
       "Feed longer epochs"},
  };
  return cases;
}

TEST(FeedStatisticsTest, SaysWhatSetsThePaceAndWhatToDo) {
  for (const auto& [statistics, first, advice] : all_cases()) {
    const std::string sentence = statistics.sentence();
    EXPECT_THAT(sentence, StartsWith(first));
    EXPECT_THAT(sentence.substr(std::string(first).size()), HasSubstr(advice));
    EXPECT_TRUE(sentence.ends_with('.')) << sentence;
    EXPECT_EQ(sentence.find(". "), std::string(first).size() - 2) << "the first sentence is complete";
  }
}

TEST(FeedStatisticsTest, EachFigureOfTheSentenceIsInTheTableBesideIt) {
  const std::regex figure(R"(\d[\d.]* (%|GB/s|s|ms|MiB))");
  std::size_t figures = 0;
  for (const auto& said : all_cases()) {
    std::ostringstream out;
    out << said.statistics;
    const std::string sentence = said.statistics.sentence();
    const std::string table = out.str().substr(0, out.str().size() - sentence.size() - 1);
    const std::string first = sentence.substr(0, sentence.find(". "));
    for (std::sregex_iterator each(first.begin(), first.end(), figure), end; each != end; ++each, ++figures) {
      EXPECT_THAT(table, HasSubstr(each->str())) << sentence;
    }
  }
  EXPECT_GT(figures, 20U);
}

TEST(FeedStatisticsTest, DividesByNothing) {
  const FeedStatistics none;
  EXPECT_EQ(none.samples_per_second(), 0);
  EXPECT_EQ(none.link_gbps(), 0);
  EXPECT_EQ(none.link_efficiency(), 0);
  EXPECT_EQ(none.stall_share(), 0);
  EXPECT_EQ(none.transfer_share(), 0);
  EXPECT_EQ(none.kernel_share(), 0);
  EXPECT_EQ(none.gather_share(), 0);
  EXPECT_EQ(none.loader_share(), 0);
  EXPECT_EQ(none.transfer_gbps(), 0);
  const FeedStatistics some = fed(0.25, 0.5, 0, 0);
  EXPECT_EQ(some.samples_per_second(), 1000);
  EXPECT_EQ(some.link_gbps(), 1);
  EXPECT_EQ(some.delivered_gbps(), 1);
  EXPECT_EQ(some.link_efficiency(), 0) << "of a ceiling that is not known";
  EXPECT_EQ(some.stall_share(), 0.25);
  EXPECT_EQ(fed(0.25, 7, 7, 7).transfer_share(), 1) << "a first gather may begin before the first request";
}

TEST(FeedStatisticsTest, TheTableNamesEachPartOfTheWait) {
  FeedStatistics s = fed(0.6, 1.0, 0, 0.1);
  s.exposed_transfer_seconds = 0.3;
  s.exposed_gather_seconds = 0.2;
  std::ostringstream out;
  out << s;
  EXPECT_THAT(out.str(), HasSubstr("1000 in 10 batches, 1000 a second"));
  EXPECT_THAT(out.str(), ContainsRegex("waiting for data +600 ms, 60.0 % of the time\n"
                                       " +for the transfer +300 ms\n"
                                       " +for the host gather +200 ms\n"
                                       " +for a batch to start +100 ms\n"));
  EXPECT_THAT(out.str(), Not(HasSubstr(" \n")));
  s.first_stall_seconds = 0.3;
  out << s;
  EXPECT_THAT(out.str(), Not(HasSubstr("first batches"))) << "they are half of the wait";
  s.first_stall_seconds = 0.4;
  out << s;
  EXPECT_THAT(out.str(), HasSubstr("600 ms, 60.0 % of the time, 400 ms of it for first batches\n"));
  EXPECT_THAT(out.str(), Not(HasSubstr("device gather"))) << "there was none";
  EXPECT_TRUE(out.str().ends_with(s.sentence() + "\n"));
}

TEST(FeedStatisticsTest, AConsumerThatIsBusierThanAnyStageLimits) {
  EXPECT_EQ(fed(0.1, 0.5, 0, 0).limited_by(), FeedLimit::consumer);
  EXPECT_EQ(fed(0.1, 0.95, 0, 0).limited_by(), FeedLimit::link);
}

TEST(FeedLimitTest, EachLimitHasItsOwnWords) {
  std::set<std::string_view> names;
  std::set<std::string_view> labels;
  for (const FeedLimit limit :
       {FeedLimit::unknown, FeedLimit::consumer, FeedLimit::link, FeedLimit::loader, FeedLimit::gather,
        FeedLimit::device, FeedLimit::residency, FeedLimit::batches, FeedLimit::fetch, FeedLimit::collate,
        FeedLimit::transport, FeedLimit::pin}) {
    names.insert(feed_limit_name(limit));
    labels.insert(feed_limit_label(limit));
  }
  EXPECT_EQ(names.size(), 12U);
  EXPECT_EQ(labels.size(), 12U);
}

TEST(StallPartsTest, AStallIsDividedAmongTheStagesOfItsBatch) {
  struct Case {
    BatchTimes times;
    double on_device;
    double on_host;
    double on_loader = 0;
  };
  const auto times = [](double asked, double arrived) {
    return BatchTimes{.gather_begin = 1,
                      .gather_end = 3,
                      .transfer_begin = 3.5,
                      .transfer_end = 5,
                      .asked = asked,
                      .arrived = arrived};
  };
  BatchTimes overlapping = times(0, 6);
  overlapping.transfer_begin = 2;
  BatchTimes no_gather = times(2, 6);
  no_gather.gather_begin = no_gather.gather_end = 0;
  // A wrapped loader answers at 2, and its batch is sent until 3. The batch that is asked for is already in
  // flight.
  BatchTimes ahead = times(0, 6);
  ahead.loader_begin = 0.5;
  ahead.loader_end = 2;
  ahead.gather_begin = 2;
  ahead.transfer_begin = -1;
  ahead.transfer_end = 4;
  BatchTimes there = ahead;  // at 1
  there.transfer_end = 1;
  BatchTimes half = ahead;
  half.transfer_end = 2.5;
  for (const Case& each : {Case{times(0, 6), 1.5, 2}, Case{times(2, 5), 1.5, 1}, Case{times(4, 5), 1, 0},
                           Case{times(5.5, 6), 0, 0}, Case{times(2, 2), 0, 0}, Case{times(0, 0.5), 0, 0},
                           Case{overlapping, 3, 1}, Case{no_gather, 1.5, 0}, Case{ahead, 2, 0, 1.5},
                           Case{there, 0, 1, 1.5}, Case{half, 0.5, 0.5, 1.5}}) {
    const StallParts parts = stall_parts(each.times);
    EXPECT_DOUBLE_EQ(parts.on_device, each.on_device) << each.times.asked << " " << each.times.arrived;
    EXPECT_DOUBLE_EQ(parts.on_host, each.on_host) << each.times.asked << " " << each.times.arrived;
    EXPECT_DOUBLE_EQ(parts.on_loader, each.on_loader) << each.times.asked << " " << each.times.arrived;
  }
}

}  // namespace
}  // namespace penstock
