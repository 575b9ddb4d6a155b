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
// Of fewer batches the first one, which nothing could hide, is most of the time.
constexpr std::uint64_t kFewest = 4;

constexpr std::string_view kSendLess =
    "send fewer bytes: store narrower types and widen them on arrival (option `to`), or keep part of the "
    "dataset on the device (option `residency`).";

double ratio(double a, double b) noexcept { return b > 0 ? a / b : 0; }

double per_batch(double seconds, std::uint64_t batches) noexcept {
  return ratio(seconds, static_cast<double>(batches));
}

std::uint64_t batch_bytes(const FeedStatistics& s) noexcept {
  return s.batches > 0 ? s.delivered_bytes / s.batches : 0;
}

std::string batch_count(std::uint64_t batches) {
  return fmt::format("{} {}", batches, batches == 1 ? "batch" : "batches");
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string unknown_sentence(const FeedStatistics& s) {
  if (s.batches == 0) return "Nothing was fed yet. Take a few batches, then ask again.";
  if (s.timed_batches < s.batches) {
    return fmt::format(
        "Too few batches were timed to tell what sets the pace: {} of {}. Wait for the device (synchronize "
        "your stream), then ask again.",
        s.timed_batches, s.batches);
  }
  return fmt::format(
      "{} {} too few to tell what sets the pace. Feed at least {}, by smaller batches or more epochs.",
      batch_count(s.batches), s.batches == 1 ? "is" : "are", kFewest);
}

std::string link_sentence(const FeedStatistics& s, const std::string& waited) {
  const std::string ran = percent(s.transfer_share());
  const std::string speed = format_gbps(s.transfer_gbps() * kGB);
  const std::string ceiling = format_gbps(s.link_ceiling);
  if (s.link_ceiling <= 0) {
    return fmt::format(
        "Transfers set the pace: they ran {} of the time, at {}{}. Measure what the link can carry with "
        "`penstock link`; then {}",
        ran, speed, waited, kSendLess);
  }
  if (s.transfer_gbps() * kGB >= kNearCeiling * s.link_ceiling) {
    return fmt::format(
        "The link sets the pace: transfers ran {} of the time, at {} of the {} that it can carry{}. To go "
        "faster, {}",
        ran, speed, ceiling, waited, kSendLess);
  }
  return fmt::format(
      "Transfers set the pace: they ran {} of the time, at {} of the {} that the link can carry{}. For "
      "samples of {} use larger batches or another path (option `gather`); then {}",
      ran, speed, ceiling, waited, format_bytes(s.sample_bytes), kSendLess);
}

}  // namespace

std::string_view feed_limit_name(FeedLimit limit) noexcept {
  switch (limit) {
    case FeedLimit::unknown:
      return "unknown";
    case FeedLimit::consumer:
      return "consumer";
    case FeedLimit::link:
      return "link";
    case FeedLimit::gather:
      return "gather";
    case FeedLimit::device:
      return "device";
    case FeedLimit::residency:
      return "residency";
    case FeedLimit::batches:
      return "batches";
  }
  return "unknown";
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

double FeedStatistics::transfer_gbps() const noexcept {
  return ratio(per_batch(static_cast<double>(link_bytes), batches),
               per_batch(transfer_seconds, timed_batches)) /
         kGB;
}

double FeedStatistics::transfer_share() const noexcept {
  return std::min(1.0, ratio(transfer_seconds, stall_seconds + compute_seconds));
}

double FeedStatistics::kernel_share() const noexcept {
  return std::min(1.0, ratio(kernel_seconds, stall_seconds + compute_seconds));
}

double FeedStatistics::gather_share() const noexcept {
  const double span = per_batch(stall_seconds + compute_seconds, timed_batches);
  return std::min(1.0, ratio(per_batch(gather_seconds, batches), span));
}

double FeedStatistics::stall_other_seconds() const noexcept {
  return std::max(0.0,
                  stall_seconds - exposed_transfer_seconds - exposed_kernel_seconds - exposed_gather_seconds);
}

FeedLimit FeedStatistics::limited_by() const noexcept {
  if (timed_batches < kFewest) return FeedLimit::unknown;
  if (stall_share() < kHardlyWaits) return FeedLimit::consumer;
  const double half = kBusy * (stall_seconds + compute_seconds);
  if (std::min(resident_seconds, stall_other_seconds()) > half) return FeedLimit::residency;
  const double most = std::max({transfer_share(), kernel_share(), gather_share()});
  if (1 - stall_share() > std::max(most, kBusy)) return FeedLimit::consumer;
  if (most < kBusy) return FeedLimit::batches;
  if (most == transfer_share()) return FeedLimit::link;
  return most == gather_share() ? FeedLimit::gather : FeedLimit::device;
}

std::string FeedStatistics::sentence() const {
  const std::string stalled = percent(stall_share());
  // Where there is hardly a step, as in a feed that is only measured, it is not spoken of.
  const std::string waited = 1 - stall_share() < kHardlyWaits
                                 ? std::string()
                                 : fmt::format(", and your step waited for data {} of the time", stalled);
  switch (limited_by()) {
    case FeedLimit::unknown:
      return unknown_sentence(*this);
    case FeedLimit::consumer:
      if (stall_share() < kHardlyWaits) {
        return fmt::format(
            "Your step sets the pace: it waited for data {} of the time, so a faster feed gains nothing. "
            "To go faster, look at the step itself.",
            stalled);
      }
      return fmt::format(
          "Your step sets the pace: it worked for {} of the time and waited for data for {}, the most that "
          "a faster feed could save. Look at the step itself first, then try a larger prefetch depth.",
          percent(1 - stall_share()), stalled);
    case FeedLimit::link:
      return link_sentence(*this, waited);
    case FeedLimit::gather:
      return fmt::format(
          "Gathering samples on the host sets the pace: it ran {} of the time{}. Use more threads (option "
          "`threads`), or let the device read the samples itself (option `gather`: zero-copy). If the "
          "dataset "
          "is "
          "larger than memory, the disk is the likely cause.",
          percent(gather_share()), waited);
    case FeedLimit::device:
      return fmt::format(
          "Gathering samples on the device sets the pace: it ran {} of the time{}. The samples are in device "
          "memory already; to write fewer bytes, deliver a narrower type (option `to`).",
          percent(kernel_share()), waited);
    case FeedLimit::residency:
      return fmt::format(
          "Moving the resident part of the dataset to the device took most of the time so far: {} of {}. It "
          "happens once; feed more epochs to see the pace after it.",
          format_seconds(resident_seconds), format_seconds(seconds));
    case FeedLimit::batches:
      return fmt::format(
          "The fixed cost of each batch sets the pace: a batch of {} took {}, with no stage busy for half "
          "of that{}. Use larger batches, or a larger prefetch depth.",
          format_bytes(batch_bytes(*this)), format_seconds(per_batch(seconds, batches)), waited);
  }
  return {};
}

std::ostream& operator<<(std::ostream& out, const FeedStatistics& statistics) {
  const FeedStatistics& s = statistics;
  std::string text;
  const auto line = [&text](std::string_view name, const std::string& value) {
    fmt::format_to(std::back_inserter(text), "{:<27}{}\n", name, value);
  };
  const auto part = [&line](std::string_view name, double seconds, const std::string& more = {}) {
    if (seconds > 0) line(name, format_seconds(seconds) + more);
  };
  const auto of_time = [](double share) { return fmt::format(", {} of the time", percent(share)); };
  line("samples",
       fmt::format("{} in {}, {:.0f} a second", s.samples, batch_count(s.batches), s.samples_per_second()));
  line("delivered",
       fmt::format("{}, {}", format_bytes(s.delivered_bytes), format_gbps(s.delivered_gbps() * kGB)));
  line("over the link",
       fmt::format("{}, {}{}", format_bytes(s.link_bytes), format_gbps(s.link_gbps() * kGB),
                   s.link_ceiling > 0 ? fmt::format(", {} of its ceiling of {}", percent(s.link_efficiency()),
                                                    format_gbps(s.link_ceiling))
                                      : std::string()));
  if (s.resident_bytes > 0) {
    line("kept on the device",
         fmt::format("{}, moved in {}", format_bytes(s.resident_bytes), format_seconds(s.resident_seconds)));
  }
  line("whole time",
       fmt::format("{}, {} a batch of {}", format_seconds(s.seconds),
                   format_seconds(per_batch(s.seconds, s.batches)), format_bytes(batch_bytes(s))));
  if (s.timed_batches < s.batches) line("batches timed", std::to_string(s.timed_batches));
  part("  your step", s.compute_seconds, of_time(1 - s.stall_share()));
  part("  waiting for data", s.stall_seconds, of_time(s.stall_share()));
  part("    for the transfer", s.exposed_transfer_seconds);
  part("    for the host gather", s.exposed_gather_seconds);
  part("    for the device gather", s.exposed_kernel_seconds);
  part("    for a batch to start", s.stall_other_seconds());
  text += "stages, side by side\n";
  part("  host gather", s.gather_seconds, of_time(s.gather_share()));
  part("  transfer", s.transfer_seconds,
       of_time(s.transfer_share()) + fmt::format(", {} while it ran", format_gbps(s.transfer_gbps() * kGB)));
  part("  device gather", s.kernel_seconds, of_time(s.kernel_share()));
  line("batches ahead",
       fmt::format("{:.1f} of {} on average when one was asked for", s.mean_ready, s.prefetch_depth));
  part("  paused, all slots full", s.slot_wait_seconds);
  line("ring", fmt::format("{} slots, {}", s.slots, format_bytes(s.ring_bytes)));
  return out << text << '\n' << s.sentence() << '\n';
}

}  // namespace penstock
