#include "feed_account.hpp"

#include <penstock/core/bytes.hpp>

#include <fmt/format.h>

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

std::string feed_text(const FeedAccount& account) {
  std::ostringstream total;
  total << account.total;
  const std::string advice = step_advice(account);
  return epoch_table(account).text() + "\n" + verify_text(account) + total.str() +
         (advice.empty() ? "" : advice + "\n");
}

}  // namespace penstock::cli
