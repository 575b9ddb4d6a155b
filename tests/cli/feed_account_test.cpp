#include "feed_account.hpp"

#include "support/matchers.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace penstock::cli {
namespace {

/// Batches that each take a second. The consumer waits for the given share of it.
std::vector<BatchTimes> timeline_of(const std::vector<double>& waits) {
  std::vector<BatchTimes> timeline;
  for (std::size_t i = 0; i < waits.size(); ++i) {
    const auto begin = static_cast<double>(i);
    timeline.push_back({.batch = i, .asked = begin, .arrived = begin + waits[i]});
  }
  return timeline;
}

TEST(TypicalWindow, ShowsAboutTheSameWaitAsTheWhole) {
  // Start-up, a quiet stretch, a stretch that waits as much as the whole, and a stall.
  const auto timeline = timeline_of({1, 1, 0, 0, 0, 0, 0.5, 0.5, 0.5, 0.5, 1, 1, 1, 1});
  EXPECT_EQ(typical_window(timeline, 4, 0.5, 2), 6U);
  EXPECT_EQ(typical_window(timeline, 4, 0, 2), 2U);
  EXPECT_EQ(typical_window(timeline, 4, 1, 2), 10U);
  EXPECT_EQ(typical_window(timeline, 4, 0.5, 0), 0U) << "two of start-up and two quiet ones";
}

TEST(TypicalWindow, TakesWhatThereIs) {
  EXPECT_EQ(typical_window({}, 4, 0.5, 2), 0U);
  EXPECT_EQ(typical_window(timeline_of({1}), 4, 0.5, 2), 0U);
  EXPECT_EQ(typical_window(timeline_of({1, 0.5, 0.5, 0.5}), 4, 0.5, 2), 0U);
  EXPECT_EQ(typical_window(timeline_of({1, 0.5, 0.5, 0.5, 0.5}), 4, 0.5, 3), 1U)
      << "as much start-up as must be";
}

FeedAccount account_of(double stall, double transfer) {
  FeedAccount account;
  FeedStatistics& s = account.total;
  s.batches = s.timed_batches = 10;
  s.samples = 100;
  s.delivered_bytes = s.link_bytes = 1000000;
  s.seconds = 1;
  s.stall_seconds = stall;
  s.compute_seconds = 1 - stall;
  s.transfer_seconds = transfer;
  account.epochs.push_back({.complete = true, .statistics = s});
  return account;
}

TEST(FeedText, TheEpochsGiveTheSameShareAsTheSentence) {
  const std::string text = feed_text(account_of(0.3344, 0.95));
  EXPECT_THAT(text, ContainsRegex(" 33.4 % +transfer\n"));
  EXPECT_THAT(text, HasSubstr("your step waited for data 33.4 % of the time"));
}

TEST(FeedText, SaysWhatTheStepWas) {
  FeedAccount account = account_of(0.01, 0.5);
  EXPECT_THAT(feed_text(account),
              EndsWith("\nThere was no step, so nearly all of the time is waiting: this is as "
                       "fast as the feed can be. Add --step-ms to see whether it keeps up with "
                       "a step.\n"));
  account.options.step_ms = 1;
  EXPECT_THAT(feed_text(account), EndsWith("look at the step itself.\n"));
  account.options.verify = true;
  account.compared.seconds = 0.5;
  EXPECT_THAT(
      feed_text(account),
      EndsWith("look at the step itself.\nYour step includes comparing every byte (500 ms). Leave out "
               "--verify to see how fast the feed can be.\n"));
  account.total.stall_seconds = 9;
  EXPECT_THAT(feed_text(account), Not(HasSubstr("Leave out --verify")));
}

}  // namespace
}  // namespace penstock::cli
