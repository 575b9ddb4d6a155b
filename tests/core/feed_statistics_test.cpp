#include <penstock/core/feed_statistics.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace penstock {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// 100 batches of 1 MB in 1 s, of which the consumer waited for `stall`.
FeedStatistics fed(double stall) {
  FeedStatistics s;
  s.epochs = 1;
  s.batches = 100;
  s.timed_batches = 100;
  s.samples = 25600;
  s.delivered_bytes = 100'000'000;
  s.link_bytes = 100'000'000;
  s.seconds = 1;
  s.stall_seconds = stall;
  s.compute_seconds = 1 - stall;
  s.link_ceiling = 1e8;
  s.sample_bytes = 3906;
  return s;
}

TEST(FeedStatistics, FiguresFollowFromTheCounts) {
  const FeedStatistics s = fed(0.25);
  EXPECT_DOUBLE_EQ(s.samples_per_second(), 25600);
  EXPECT_DOUBLE_EQ(s.link_gbps(), 0.1);
  EXPECT_DOUBLE_EQ(s.delivered_gbps(), 0.1);
  EXPECT_DOUBLE_EQ(s.link_efficiency(), 1);
  EXPECT_DOUBLE_EQ(s.stall_share(), 0.25);
  const FeedStatistics none;
  EXPECT_EQ(none.samples_per_second(), 0);
  EXPECT_EQ(none.link_efficiency(), 0);
  EXPECT_EQ(none.stall_share(), 0);
  EXPECT_EQ(none.limited_by(), FeedLimit::nothing);
}

TEST(FeedStatistics, AConsumerThatHardlyWaitsLimits) {
  FeedStatistics s = fed(0.01);
  s.transfer_seconds = 0.999;
  EXPECT_EQ(s.limited_by(), FeedLimit::consumer);
  EXPECT_THAT(s.sentence(), HasSubstr("nothing to gain here"));
}

TEST(FeedStatistics, SoDoesOneThatIsBusierThanAnyStage) {
  FeedStatistics s = fed(0.1);
  s.transfer_seconds = 0.5;
  EXPECT_EQ(s.limited_by(), FeedLimit::consumer);
  EXPECT_THAT(s.sentence(), HasSubstr("at most 10.0 %"));
  EXPECT_THAT(s.sentence(), Not(HasSubstr("nothing to gain")));
}

TEST(FeedStatistics, TheBusiestStageLimitsAConsumerThatWaits) {
  FeedStatistics s = fed(0.9);
  s.transfer_seconds = 0.99;
  s.gather_seconds = 0.7;
  EXPECT_EQ(s.limited_by(), FeedLimit::link);
  EXPECT_THAT(s.sentence(), HasSubstr("the link limits: 101 % of its ceiling"));
  s.link_ceiling = 4e8;
  EXPECT_THAT(s.sentence(), HasSubstr("the transfer limits: 25 % of the link's ceiling"));
  s.link_ceiling = 0;
  EXPECT_THAT(s.sentence(), HasSubstr("penstock link"));

  s.transfer_seconds = 0.3;
  EXPECT_EQ(s.limited_by(), FeedLimit::gather);
  EXPECT_THAT(s.sentence(), HasSubstr("gather on the host"));

  s.gather_seconds = 0;
  s.kernel_seconds = 0.8;
  EXPECT_EQ(s.limited_by(), FeedLimit::device);
  EXPECT_THAT(s.sentence(), HasSubstr("device's memory"));

  s.kernel_seconds = 0.2;
  EXPECT_EQ(s.limited_by(), FeedLimit::batches);
  EXPECT_THAT(s.sentence(), HasSubstr("10.0 ms a batch"));
}

TEST(FeedStatistics, UntimedBatchesAreNotTakenForBusyOnes) {
  FeedStatistics s = fed(0.9);
  s.timed_batches = 50;  // the device's times cover half of the batches, the host's all of them
  s.transfer_seconds = 0.95;
  s.gather_seconds = 1.0;
  EXPECT_EQ(s.limited_by(), FeedLimit::link);
}

TEST(FeedStatistics, TheAccountEndsWithTheSentence) {
  FeedStatistics s = fed(0.9);
  s.transfer_seconds = 0.99;
  std::ostringstream out;
  out << s;
  EXPECT_THAT(out.str(), HasSubstr("25600 in 100 batches"));
  EXPECT_THAT(out.str(), Not(HasSubstr("device gather"))) << "what was not used is left out";
  EXPECT_TRUE(out.str().ends_with(s.sentence() + "\n"));
}

}  // namespace
}  // namespace penstock
