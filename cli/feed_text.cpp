#include "feed_account.hpp"

#include <penstock/core/bytes.hpp>

#include <fmt/format.h>

#include <sstream>

namespace penstock::cli {

namespace {

std::string share(double part, double whole) {
  return whole > 0 ? fmt::format("{:.0f} %", 100 * part / whole) : "-";
}

std::string epoch_table(const FeedAccount& account, const Look& look) {
  Table table(
      {"epoch", "samples", "seconds", "samples/s", "link GB/s", "delivered GB/s", "stalled", "limit"});
  for (const FeedEpoch& epoch : account.epochs) {
    const FeedStatistics& s = epoch.statistics;
    table.add({fmt::format("{}{}", epoch.epoch + 1, epoch.complete ? "" : " (cut short)"),
               std::to_string(s.samples), fmt::format("{:.3f}", s.seconds),
               fmt::format("{:.0f}", s.samples_per_second()), format_rate(s.link_gbps() * kGB),
               format_rate(s.delivered_gbps() * kGB), share(s.stall_share(), 1),
               std::string(feed_limit_name(s.limited_by()))});
  }
  return table.text(look);
}

std::string verify_text(const FeedAccount& account) {
  if (!account.options.verify) return {};
  const VerifyAccount& compared = account.compared;
  if (!account.verified) {
    return fmt::format("Not verified: {} of {} batches were compared and right.\n\n", compared.batches,
                       account.total.batches);
  }
  return fmt::format(
      "Verified: all {} bytes of {} batches are those of the dataset. Comparing them took {} of the "
      "consumer's "
      "time.\n\n",
      compared.bytes, compared.batches, format_seconds(compared.seconds));
}

}  // namespace

std::string feed_text(const FeedAccount& account, const Look& look) {
  std::ostringstream total;
  total << account.total;
  return epoch_table(account, look) + "\n" + verify_text(account) + total.str();
}

}  // namespace penstock::cli
