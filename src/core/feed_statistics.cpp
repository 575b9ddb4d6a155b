#include <penstock/core/bytes.hpp>
#include <penstock/core/feed_statistics.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <ostream>

namespace penstock {

namespace {

// A consumer that waits for less than this share of its time has nothing to gain from a quicker feed.
constexpr double kHardlyWaits = 0.02;
// A stage that is busy for less than this share of the time does not hold up the others: what remains is what
// a batch costs whatever its size.
constexpr double kBusy = 0.5;
// Below this share of the link's ceiling it is not the link but the way of reading that limits.
constexpr double kNearCeiling = 0.8;

double ratio(double a, double b) noexcept { return b > 0 ? a / b : 0; }

double percent(double share) noexcept { return 100 * share; }

}  // namespace

std::string_view feed_limit_name(FeedLimit limit) noexcept {
  switch (limit) {
    case FeedLimit::nothing:
      return "nothing";
    case FeedLimit::consumer:
      return "consumer";
    case FeedLimit::link:
      return "link";
    case FeedLimit::gather:
      return "gather";
    case FeedLimit::device:
      return "device";
    case FeedLimit::batches:
      return "batches";
  }
  return "nothing";
}

double FeedStatistics::samples_per_second() const noexcept {
  return ratio(static_cast<double>(samples), seconds);
}

double FeedStatistics::link_gbps() const noexcept {
  return ratio(static_cast<double>(link_bytes), seconds) / kGB;
}

double FeedStatistics::delivered_gbps() const noexcept {
  return ratio(static_cast<double>(delivered_bytes), seconds) / kGB;
}

double FeedStatistics::link_efficiency() const noexcept { return ratio(link_gbps() * kGB, link_ceiling); }

double FeedStatistics::stall_share() const noexcept {
  return ratio(stall_seconds, stall_seconds + compute_seconds);
}

FeedLimit FeedStatistics::limited_by() const noexcept {
  if (batches == 0 || timed_batches == 0) return FeedLimit::nothing;
  if (stall_share() < kHardlyWaits) return FeedLimit::consumer;
  // The stages' busy times per batch, beside the consumer's time per batch.
  const double span = (stall_seconds + compute_seconds) / static_cast<double>(timed_batches);
  const double transfer = ratio(transfer_seconds / static_cast<double>(timed_batches), span);
  const double kernel = ratio(kernel_seconds / static_cast<double>(timed_batches), span);
  const double gather = ratio(gather_seconds / static_cast<double>(batches), span);
  const double most = std::max({transfer, kernel, gather});
  if (1 - stall_share() > std::max(most, kBusy)) return FeedLimit::consumer;
  if (most < kBusy) return FeedLimit::batches;
  if (most == transfer) return FeedLimit::link;
  return most == gather ? FeedLimit::gather : FeedLimit::device;
}

std::string FeedStatistics::sentence() const {
  const double waited = percent(stall_share());
  switch (limited_by()) {
    case FeedLimit::nothing:
      return "nothing was fed yet";
    case FeedLimit::consumer:
      if (stall_share() >= kHardlyWaits) {
        return fmt::format("the consumer limits: at most {:.1f} % of its time, which it waited, to gain here",
                           waited);
      }
      return fmt::format("the consumer limits: nothing to gain here (it waited {:.1f} % of its time)",
                         waited);
    case FeedLimit::link: {
      const double rate = ratio(static_cast<double>(link_bytes) / static_cast<double>(batches),
                                transfer_seconds / static_cast<double>(timed_batches));
      if (link_ceiling <= 0) {
        return fmt::format(
            "the link limits: {:.1f} GB/s (its ceiling is not known; `penstock link` measures it)",
            rate / kGB);
      }
      const double share = rate / link_ceiling;
      if (share >= kNearCeiling) {
        return fmt::format("the link limits: {:.0f} % of its ceiling of {:.1f} GB/s", percent(share),
                           link_ceiling / kGB);
      }
      return fmt::format(
          "the transfer limits: {:.0f} % of the link's ceiling of {:.1f} GB/s, for samples of {} "
          "in batches of {}",
          percent(share), link_ceiling / kGB, format_bytes(sample_bytes),
          format_bytes(delivered_bytes / batches));
    }
    case FeedLimit::gather:
      return fmt::format(
          "the gather on the host limits: {:.1f} GB/s; more threads, or memory that the device "
          "can read directly, would be quicker",
          ratio(static_cast<double>(link_bytes), gather_seconds) / kGB);
    case FeedLimit::device:
      return fmt::format("the device's memory limits: {:.1f} GB/s of batches",
                         ratio(static_cast<double>(delivered_bytes) / static_cast<double>(batches),
                               kernel_seconds / static_cast<double>(timed_batches)) /
                             kGB);
    case FeedLimit::batches:
      return fmt::format(
          "what each batch costs limits: {} a batch of {}; larger batches would be quicker",
          format_seconds((stall_seconds + compute_seconds) / static_cast<double>(timed_batches)),
          format_bytes(delivered_bytes / batches));
  }
  return {};
}

std::ostream& operator<<(std::ostream& out, const FeedStatistics& statistics) {
  const FeedStatistics& s = statistics;
  std::string text;
  const auto line = [&text](std::string_view name, const std::string& value) {
    fmt::format_to(std::back_inserter(text), "{:<20}{}\n", name, value);
  };
  line("samples",
       fmt::format("{} in {} batches, {:.0f} a second", s.samples, s.batches, s.samples_per_second()));
  line("delivered", fmt::format("{}, {:.2f} GB/s", format_bytes(s.delivered_bytes), s.delivered_gbps()));
  line("over the link",
       fmt::format("{}, {:.2f} GB/s{}", format_bytes(s.link_bytes), s.link_gbps(),
                   s.link_ceiling > 0 ? fmt::format(", {:.1f} % of {:.1f} GB/s", percent(s.link_efficiency()),
                                                    s.link_ceiling / kGB)
                                      : std::string()));
  if (s.resident_bytes > 0) {
    line("resident",
         fmt::format("{}, moved in {}", format_bytes(s.resident_bytes), format_seconds(s.resident_seconds)));
  }
  line("time", format_seconds(s.seconds));
  const auto stage = [&line](std::string_view name, double seconds) {
    if (seconds > 0) line(name, format_seconds(seconds));
  };
  stage("  gather", s.gather_seconds);
  stage("  transfer", s.transfer_seconds);
  stage("  device gather", s.kernel_seconds);
  line("  compute", format_seconds(s.compute_seconds));
  line("  stall", fmt::format("{}, {:.1f} % of the consumer's time", format_seconds(s.stall_seconds),
                              percent(s.stall_share())));
  line("  exposed transfer", format_seconds(s.exposed_transfer_seconds));
  line("ring", fmt::format("{} slots, {}; {:.1f} of {} batches ahead on average", s.slots,
                           format_bytes(s.ring_bytes), s.mean_ready, s.prefetch_depth));
  return out << text << s.sentence() << '\n';
}

}  // namespace penstock
