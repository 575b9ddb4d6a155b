#include "feed_account.hpp"

#include <penstock/core/bytes.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

namespace penstock::cli {

namespace {

std::string verify_text(const FeedAccount& account) {
  if (!account.options.verify) return {};
  const VerifyAccount& compared = account.compared;
  if (!account.verified) {
    return fmt::format("Not verified: {} of {} batches were compared and right.\n\n", compared.batches,
                       account.total.batches);
  }
  return fmt::format(
      "Verified: all {} bytes of {} batches are those of the dataset. Comparing them took {}.\n\n",
      compared.bytes, compared.batches, format_seconds(compared.seconds));
}

}  // namespace

Table epoch_table(const FeedAccount& account) {
  Table table({"epoch", "samples", "seconds", "samples/s", "link GB/s", "delivered GB/s", "waiting",
               "sets the pace"});
  for (const FeedEpoch& epoch : account.epochs) {
    const FeedStatistics& s = epoch.statistics;
    table.add({fmt::format("{}{}", epoch.epoch + 1, epoch.complete ? "" : " (cut short)"),
               std::to_string(s.samples), fmt::format("{:.3f}", s.seconds),
               fmt::format("{:.0f}", s.samples_per_second()), format_rate(s.link_gbps() * kGB),
               format_rate(s.delivered_gbps() * kGB), percent_text(s.stall_share()),
               std::string(feed_limit_label(s.limited_by()))});
  }
  return table;
}

std::string percent_text(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string rate_text(double rate) {
  if (rate >= 1e6) return fmt::format("{:.2f} M", rate / 1e6);
  if (rate >= 1e4) return fmt::format("{:.1f} k", rate / 1e3);
  return fmt::format("{:.0f}", rate);
}

std::string step_advice(const FeedAccount& account) {
  if (account.options.step_ms == 0 && !account.options.verify) {
    return "There was no step, so nearly all of the time is waiting: this is as fast as the feed can be. Add "
           "--step-ms to see whether it keeps up with a step.";
  }
  if (!account.options.verify || account.total.limited_by() != FeedLimit::consumer) return {};
  return fmt::format(
      "Your step includes comparing every byte ({}). Leave out --verify to see how fast the feed can be.",
      format_seconds(account.compared.seconds));
}

std::size_t typical_window(const std::vector<BatchTimes>& timeline, std::size_t size, double stall_share,
                           std::size_t skipped) {
  if (timeline.size() <= size) return 0;
  // Sums over all batches before each one: the sum of a window is a difference of two.
  std::vector<double> stalls{0};
  std::vector<double> steps{0};
  for (std::size_t i = 0; i < timeline.size(); ++i) {
    const BatchTimes& times = timeline[i];
    stalls.push_back(stalls.back() + std::max(0.0, times.arrived - times.asked));
    const double next = i + 1 < timeline.size() ? timeline[i + 1].asked : times.arrived;
    steps.push_back(steps.back() + std::max(0.0, next - times.arrived));
  }
  const std::size_t last = timeline.size() - size;
  std::size_t best = std::min(skipped, last);
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t first = best; first <= last; ++first) {
    const double stall = stalls[first + size] - stalls[first];
    const double whole = stall + steps[first + size] - steps[first];
    const double distance = std::abs((whole > 0 ? stall / whole : 0) - stall_share);
    if (distance >= least) continue;
    least = distance;
    best = first;
  }
  return best;
}

std::string feed_text(const FeedAccount& account) {
  std::ostringstream total;
  total << account.total;
  const std::string advice = step_advice(account);
  return epoch_table(account).text() + "\n" + verify_text(account) + total.str() +
         (advice.empty() ? "" : advice + "\n");
}

}  // namespace penstock::cli
