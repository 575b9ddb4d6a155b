#include <penstock/core/feed_statistics.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace penstock {
namespace {

using ::testing::HasSubstr;

/// Ten batches of 100 MB in a second, of which the consumer's stream waited `stall`.
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

TEST(FeedStatisticsTest, NamesTheStageThatLimits) {
  EXPECT_EQ(FeedStatistics{}.limited_by(), FeedLimit::nothing);
  EXPECT_EQ(fed(0.01, 0.9, 0, 0.9).limited_by(), FeedLimit::consumer);
  EXPECT_EQ(fed(0.6, 0.95, 0, 0.9).limited_by(), FeedLimit::link);
  EXPECT_EQ(fed(0.6, 0.3, 0, 0.9).limited_by(), FeedLimit::gather);
  EXPECT_EQ(fed(0.6, 0, 0.9, 0).limited_by(), FeedLimit::device);
  EXPECT_EQ(fed(0.6, 0.2, 0, 0.2).limited_by(), FeedLimit::batches);
  FeedStatistics untimed = fed(0.6, 0.95, 0, 0);
  untimed.timed_batches = 0;
  EXPECT_EQ(untimed.limited_by(), FeedLimit::nothing);
}

TEST(FeedStatisticsTest, CountsOnlyTheBatchesThatWereTimed) {
  FeedStatistics s = fed(0.3, 0.45, 0, 0.3);
  s.timed_batches = 5;
  s.compute_seconds = 0.2;
  EXPECT_EQ(s.limited_by(), FeedLimit::link) << "0.09 s a batch of 0.1 s, and the gather took 0.03";
}

TEST(FeedStatisticsTest, SaysItInOneSentence) {
  EXPECT_EQ(FeedStatistics{}.sentence(), "nothing was fed yet");
  EXPECT_THAT(fed(0.01, 0.9, 0, 0).sentence(), HasSubstr("the consumer limits: nothing to gain here"));
  EXPECT_THAT(fed(0.01, 0.9, 0, 0).sentence(), HasSubstr("1.0 %"));
  FeedStatistics link = fed(0.6, 1.0, 0, 0);
  EXPECT_THAT(link.sentence(), HasSubstr("the link limits: 1.0 GB/s"));
  EXPECT_THAT(link.sentence(), HasSubstr("`penstock link`"));
  link.link_ceiling = 1.25e9;
  EXPECT_THAT(link.sentence(), HasSubstr("the link limits: 80 % of its ceiling of 1.2"));
  link.link_ceiling = 10e9;
  EXPECT_THAT(link.sentence(), HasSubstr("the transfer limits: 10 % of the link's ceiling of 10.0 GB/s"));
  EXPECT_THAT(fed(0.6, 0.3, 0, 0.8).sentence(), HasSubstr("the gather on the host limits: 1.2 GB/s"));
  EXPECT_THAT(fed(0.6, 0, 1.0, 0).sentence(), HasSubstr("the device's memory limits: 1.0 GB/s"));
  EXPECT_THAT(fed(0.6, 0.1, 0, 0).sentence(), HasSubstr("what each batch costs limits"));
}

TEST(FeedStatisticsTest, DividesByNothing) {
  const FeedStatistics none;
  EXPECT_EQ(none.samples_per_second(), 0);
  EXPECT_EQ(none.link_gbps(), 0);
  EXPECT_EQ(none.link_efficiency(), 0);
  EXPECT_EQ(none.stall_share(), 0);
  const FeedStatistics some = fed(0.25, 0.5, 0, 0);
  EXPECT_EQ(some.samples_per_second(), 1000);
  EXPECT_EQ(some.link_gbps(), 1);
  EXPECT_EQ(some.delivered_gbps(), 1);
  EXPECT_EQ(some.link_efficiency(), 0) << "of a ceiling that is not known";
  EXPECT_EQ(some.stall_share(), 0.25);
}

TEST(FeedStatisticsTest, TheTableEndsWithTheSentence) {
  std::ostringstream out;
  const FeedStatistics s = fed(0.6, 1.0, 0, 0.1);
  out << s;
  EXPECT_THAT(out.str(), HasSubstr("1000 in 10 batches, 1000 a second"));
  EXPECT_TRUE(out.str().ends_with(s.sentence() + "\n"));
}

TEST(FeedStatisticsTest, AConsumerThatIsBusierThanAnyStageLimits) {
  EXPECT_EQ(fed(0.1, 0.5, 0, 0).limited_by(), FeedLimit::consumer);
  EXPECT_THAT(fed(0.1, 0.5, 0, 0).sentence(), HasSubstr("at most 10.0 %"));
  EXPECT_EQ(fed(0.1, 0.95, 0, 0).limited_by(), FeedLimit::link);
}

}  // namespace
}  // namespace penstock
