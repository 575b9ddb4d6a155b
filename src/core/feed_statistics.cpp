#include <penstock/core/bytes.hpp>
#include <penstock/core/feed_statistics.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace penstock {

namespace {

// A consumer that waits for less than this share of its time gains nothing from a faster feed.
constexpr double kHardlyWaits = 0.02;
// A stage that is busy for less than this share of the time does not hold up the others. If none is busier,
// the fixed cost of a batch sets the pace.
constexpr double kBusy = 0.5;
// Below this share of the link's ceiling, the way of reading is the limit, not the link.
constexpr double kNearCeiling = 0.8;
// Stages of a loader that take less than this share of the wait for it do not explain it.
constexpr double kExplained = 0.5;
// Among fewer batches, the first one takes most of the time, since nothing can hide it.
constexpr std::uint64_t kFewest = 4;
// A loader's start that takes more than this share of the wait for it is what to save first. So is pinning
// that takes as much of sending. Waits for first batches that are more of all waits say nothing of the pace.
constexpr double kMostOf = 0.5;
// Workers that are waited for this many times longer than one process would take are not worth it. If they
// start in each epoch, the wait has more of that than is known: all but the first to start, and their end.
constexpr double kWorthwhile = 1.1;
constexpr double kWorthwhileIfStarted = 2;
// Seconds. To receive a batch from a worker takes about as long.
constexpr double kReceiving = 2e-4;
// Bytes of a batch. To pack fewer takes less than to receive it from a worker, which would write them.
constexpr std::uint64_t kWorthWriting = 1 << 20;

struct LimitWords {
  FeedLimit limit;
  std::string_view name;
  std::string_view label;
};
constexpr std::array<LimitWords, 13> kLimits{{{FeedLimit::unknown, "unknown", "too few batches"},
                                              {FeedLimit::consumer, "consumer", "your step"},
                                              {FeedLimit::link, "link", "transfer"},
                                              {FeedLimit::loader, "loader", "loader"},
                                              {FeedLimit::fetch, "fetch", "fetch"},
                                              {FeedLimit::collate, "collate", "collate"},
                                              {FeedLimit::transport, "transport", "transport"},
                                              {FeedLimit::pin, "pin", "pin"},
                                              {FeedLimit::gather, "gather", "host gather"},
                                              {FeedLimit::decode, "decode", "decode"},
                                              {FeedLimit::device, "device", "device gather"},
                                              {FeedLimit::residency, "residency", "residency, once"},
                                              {FeedLimit::batches, "batches", "cost of a batch"}}};

constexpr std::string_view kSendLess =
    "send fewer bytes: store narrower types and widen them on arrival (option `to`), or keep part of the "
    "dataset on the device (option `residency`).";

constexpr std::string_view kYieldLess =
    "send fewer bytes: have the loader yield narrower types, such as uint8, and widen them on the device.";

const LimitWords& words_of(FeedLimit limit) noexcept {
  const auto found = std::ranges::find(kLimits, limit, &LimitWords::limit);
  return found == kLimits.end() ? kLimits.front() : *found;
}

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
  if (!s.knows_consumer) {
    return "What sets the pace cannot be told: the stream that uses the batches is not known. Import PyTorch "
           "before you feed, and use the batches on its current stream.";
  }
  if (s.timed_batches >= kFewest) {
    return fmt::format(
        "Too few batches to tell what sets the pace: your step waited for {}, {} of that for the first batch "
        "of each epoch, which nothing hides. Feed longer epochs.",
        format_seconds(s.stall_seconds), format_seconds(s.first_stall_seconds));
  }
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
  const std::string_view less = s.wraps_loader ? kYieldLess : kSendLess;
  if (s.link_ceiling <= 0) {
    return fmt::format(
        "Transfers set the pace: they ran {} of the time, at {}{}. Measure what the link can carry with "
        "`penstock link`; then {}",
        ran, speed, waited, less);
  }
  if (s.transfer_gbps() * kGB >= kNearCeiling * s.link_ceiling) {
    return fmt::format(
        "The link sets the pace: transfers ran {} of the time, at {} of the {} that it can carry{}. To go "
        "faster, {}",
        ran, speed, ceiling, waited, less);
  }
  const std::string advice =
      s.wraps_loader ? "Use fewer, larger arrays"
                     : fmt::format("For samples of {} use larger batches or another path (option `gather`)",
                                   format_bytes(s.sample_bytes));
  return fmt::format(
      "Transfers set the pace: they ran {} of the time, at {} of the {} that the link can carry{}. {}; "
      "then {}",
      ran, speed, ceiling, waited, advice, less);
}

/// What follows "fetch took".
std::string stage_times(const FeedStatistics& s) {
  const std::string fetch = format_seconds(s.fetch_seconds);
  const std::string collate = format_seconds(s.collate_seconds);
  // Only a loader with workers has a transport, and only one without workers pins its batches itself.
  const bool pins = s.pin_seconds > 0;
  const double third = pins ? s.pin_seconds : s.transport_seconds();
  return third > 0 ? fmt::format("{}, collate {} and {} {}", fetch, collate, pins ? "pin" : "transport",
                                 format_seconds(third))
                   : fmt::format("{} and collate {}", fetch, collate);
}

std::string why_no_stage(const FeedStatistics& s) {
  if (!s.stages_unknown.empty()) return s.stages_unknown;
  if (s.fetch_seconds + s.collate_seconds + s.transport_seconds() + s.pin_seconds <= 0) {
    return "a worker's stages are timed from its second batch of an epoch on";
  }
  return fmt::format("fetch took only {}", stage_times(s));
}

bool starts_slowly(const FeedStatistics& s) {
  return s.start_seconds() > kMostOf * (s.startup_seconds + s.loader_seconds);
}

std::string_view with_persistent(const FeedStatistics& s) {
  const bool are_persistent = s.loader_workers > 0 && !s.starts_workers;
  return are_persistent ? "" : ", with `persistent_workers`";
}

/// What one process would take to make the batches that workers made.
double made_alone(const FeedStatistics& s) {
  return std::max(1U, s.loader_workers) * (s.fetch_seconds + s.collate_seconds) + s.pin_seconds;
}

/// What is left of the wait for workers if they start once.
double waited_for_started(const FeedStatistics& s) {
  return s.startup_seconds + s.loader_seconds - (s.starts_workers ? s.start_seconds() : 0);
}

bool none_is_faster(const FeedStatistics& s) {
  const double alone = made_alone(s);
  const double times = s.starts_workers ? kWorthwhileIfStarted : kWorthwhile;
  return s.loader_workers > 0 && alone > 0 && times * alone < waited_for_started(s);
}

std::string none_advice(const FeedStatistics& s) {
  return fmt::format(
      "One process makes these batches in {}, and the workers were waited for {}. Use `num_workers=0`{}.",
      format_seconds(made_alone(s)), format_seconds(s.startup_seconds + s.loader_seconds),
      starts_slowly(s) ? "" : ", or larger batches");
}

std::string workers_advice(const FeedStatistics& s) {
  if (s.loader_workers > 0) {
    return fmt::format("More workers (`num_workers`{}) help if processors are idle.", with_persistent(s));
  }
  const double alone = made_alone(s);
  if (alone > 0 && per_batch(alone, s.batches) < kReceiving) {
    return "Workers do not help: to receive such a batch from one takes about as long as to make it.";
  }
  return "Workers of a DataLoader (`num_workers`, with `persistent_workers`) make batches beside your step: "
         "`penstock doctor --loader` measures how many pay.";
}

std::string loader_advice(const FeedStatistics& s) {
  if (none_is_faster(s)) return none_advice(s);
  if (!starts_slowly(s)) {
    return fmt::format(
        "Whether its fetch, collate, transport or pin is slow cannot be told: {}. {}Make its samples "
        "cheaper: "
        "penstock cannot. `penstock doctor --loader` measures the stages of a DataLoader, and how many "
        "workers pay. Arrays in memory need no workers with `penstock.Loader`.",
        why_no_stage(s),
        s.loader_workers > 0 && s.starts_workers
            ? "Its workers start and end in each epoch, unless it has `persistent_workers=True`. "
            : "");
  }
  if (!s.starts_workers) {
    return "Most of that was for the first batch of each epoch. Feed more batches to see the pace after it.";
  }
  return "Most of that was its start in each epoch: with `persistent_workers=True` a DataLoader's workers "
         "start once. Feed more batches to see the pace after it.";
}

std::string loader_sentence(const FeedStatistics& s, const std::string& waited) {
  return fmt::format("The wrapped loader sets the pace: it was waited for {} of the time{}. {}",
                     percent(s.loader_share()), waited, loader_advice(s));
}

bool waits_for_first(const FeedStatistics& s) noexcept {
  return s.first_stall_seconds > kMostOf * s.stall_seconds;
}

/// What shortens the waits of a step that sets the pace.
std::string wait_advice(const FeedStatistics& s) {
  if (s.exposed_loader_seconds > kMostOf * s.stall_seconds) {
    if (none_is_faster(s)) return none_advice(s);
    if (s.starts_workers && s.loader_workers > 0 && starts_slowly(s)) {
      return "Most of the wait was for workers that start in each epoch: `persistent_workers=True` starts "
             "them once.";
    }
    if (!waits_for_first(s)) return workers_advice(s);
  }
  if (waits_for_first(s)) {
    return "Most of the wait was for the first batch of each epoch, which nothing hides.";
  }
  return "Then try a larger prefetch depth.";
}

std::string_view pin_advice(const FeedStatistics& s) {
  if (s.loader_workers == 0) {
    return "Make the batches in workers of a DataLoader (`num_workers` above 0): the memory that they write "
           "to is pinned once.";
  }
  return "Memory that workers write to is pinned once: feed more batches to see the pace after it. If a "
         "batch has its own `pin_memory()`, that runs for each.";
}

std::string stage_advice(const FeedStatistics& s, FeedLimit stage) {
  if (stage == FeedLimit::pin) return std::string(pin_advice(s));
  const std::string none = none_is_faster(s) ? none_advice(s) : "";
  if (stage == FeedLimit::transport) {
    return fmt::format(
        "{}{}ield arrays and tensors, of narrower types such as uint8, and widen them on the device. The "
        "feed's `describe()` says whether they come through shared memory.",
        none, none.empty() ? "Y" : " Or y");
  }
  if (!none.empty()) return none;
  if (stage == FeedLimit::collate) {
    return fmt::format(
        "Make `collate_fn` cheaper: one operation for the batch in place of one for each sample, or fewer "
        "and "
        "larger tensors in each sample if it only stacks. Or do its work for the batch on the device. In the "
        "dataset it would take as long. {}",
        workers_advice(s));
  }
  return fmt::format(
      "Do less for each sample, or for the batch on the device, or read a whole batch at once "
      "(`__getitems__`). {} Arrays in memory need no workers with `penstock.Loader`.",
      workers_advice(s));
}

std::string stage_sentence(const FeedStatistics& s, FeedLimit stage, const std::string& waited) {
  return fmt::format(
      "The wrapped loader sets the pace by its {}: it was waited for {} of the time{}. Fetch took {}. {}",
      feed_limit_name(stage), percent(s.loader_share()), waited, stage_times(s), stage_advice(s, stage));
}

bool pins_while_sending(const FeedStatistics& s) noexcept {
  return s.wraps_loader && s.send_pin_seconds > kMostOf * s.gather_seconds;
}

std::string pin_sentence(const FeedStatistics& s, const std::string& waited) {
  if (s.loader_share() >= s.gather_share()) return stage_sentence(s, FeedLimit::pin, waited);
  return fmt::format(
      "Pinning batches sets the pace: sending them ran {} of the time, {} of it to pin them{}. {}",
      percent(s.gather_share()), format_seconds(s.send_pin_seconds), waited, pin_advice(s));
}

std::string gather_sentence(const FeedStatistics& s, const std::string& waited) {
  if (s.wraps_loader) {
    std::string_view more;
    if (batch_bytes(s) < kWorthWriting) {
      more = ", or larger batches";
    } else if (s.loader_workers == 0) {
      more = ", or make them in its workers (`num_workers` above 0)";
    }
    return fmt::format(
        "Packing and sending batches on the host sets the pace: it ran {} of the time{}. Have the loader "
        "yield fewer, larger arrays{}.",
        percent(s.gather_share()), waited, more);
  }
  return fmt::format(
      "Gathering samples on the host sets the pace: it ran {} of the time{}. Use more threads (option "
      "`threads`), or let the device read the samples itself (option `gather`: zero-copy). If the dataset is "
      "larger than memory, the disk is the likely cause.",
      percent(s.gather_share()), waited);
}

}  // namespace

std::string_view feed_limit_name(FeedLimit limit) noexcept { return words_of(limit).name; }
std::string_view feed_limit_label(FeedLimit limit) noexcept { return words_of(limit).label; }

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

double FeedStatistics::loader_share() const noexcept {
  const double span = per_batch(stall_seconds + compute_seconds, timed_batches);
  return std::min(1.0, ratio(per_batch(startup_seconds + loader_seconds, batches), span));
}

double FeedStatistics::start_seconds() const noexcept {
  const double workers = std::max(1U, loader_workers);
  const double made = workers * (fetch_seconds + collate_seconds + write_seconds) + pin_seconds;
  const double first = per_batch(made + receive_seconds, batches);
  return std::max(0.0, startup_seconds - static_cast<double>(epochs) * first);
}

double FeedStatistics::stall_other_seconds() const noexcept {
  return std::max(0.0, stall_seconds - exposed_loader_seconds - exposed_transfer_seconds -
                           exposed_kernel_seconds - exposed_gather_seconds);
}

FeedLimit FeedStatistics::limited_by() const noexcept {
  if (timed_batches < kFewest) return FeedLimit::unknown;
  if (stall_share() < kHardlyWaits) return FeedLimit::consumer;
  const double half = kBusy * (stall_seconds + compute_seconds);
  if (std::min(resident_seconds, stall_other_seconds()) > half) return FeedLimit::residency;
  const double most = std::max({transfer_share(), kernel_share(), gather_share(), loader_share()});
  if (1 - stall_share() > std::max(most, kBusy)) return FeedLimit::consumer;
  if (most < kBusy) return waits_for_first(*this) ? FeedLimit::unknown : FeedLimit::batches;
  if (most == loader_share()) return slow_stage();
  if (most == transfer_share()) return device_decodes ? FeedLimit::decode : FeedLimit::link;
  if (most != gather_share()) return FeedLimit::device;
  if (pins_while_sending(*this)) return FeedLimit::pin;
  return decodes ? FeedLimit::decode : FeedLimit::gather;
}

FeedLimit FeedStatistics::slow_stage() const noexcept {
  const double made = fetch_seconds + collate_seconds + write_seconds + pin_seconds;
  const double whole = std::max(made, receive_seconds);
  if (whole <= 0 || whole < kExplained * (startup_seconds + loader_seconds)) return FeedLimit::loader;
  // Most of what workers do is hidden, and their start is not.
  if (starts_slowly(*this)) return FeedLimit::loader;
  struct Stage {
    FeedLimit name;
    double seconds;
    double without;
  };
  const std::array<Stage, 4> stages{
      {{FeedLimit::fetch, fetch_seconds, std::max(made - fetch_seconds, receive_seconds)},
       {FeedLimit::collate, collate_seconds, std::max(made - collate_seconds, receive_seconds)},
       {FeedLimit::transport, transport_seconds(), made - write_seconds},
       {FeedLimit::pin, pin_seconds, std::max(made - pin_seconds, receive_seconds)}}};
  const auto is_slower = [](const Stage& a, const Stage& b) {
    return a.without < b.without || (a.without == b.without && a.seconds > b.seconds);
  };
  return std::ranges::min_element(stages, is_slower)->name;
}

std::string FeedStatistics::sentence() const {
  const std::string stalled = percent(stall_share());
  // If there is hardly a step, as in a feed that is only measured, the sentence does not mention it.
  const std::string waited = 1 - stall_share() < kHardlyWaits
                                 ? std::string()
                                 : fmt::format(", and your step waited for data {} of the time", stalled);
  const FeedLimit limit = limited_by();
  switch (limit) {
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
          "a faster feed could save. Look at the step itself first. {}",
          percent(1 - stall_share()), stalled, wait_advice(*this));
    case FeedLimit::link:
      return link_sentence(*this, waited);
    case FeedLimit::loader:
      return loader_sentence(*this, waited);
    case FeedLimit::fetch:
    case FeedLimit::collate:
    case FeedLimit::transport:
      return stage_sentence(*this, limit, waited);
    case FeedLimit::pin:
      return pin_sentence(*this, waited);
    case FeedLimit::gather:
      return gather_sentence(*this, waited);
    case FeedLimit::decode:
      if (device_decodes && transfer_share() >= gather_share()) {
        return fmt::format(
            "Decoding pictures on the device sets the pace: with the transfers, it ran {} of the time{}. "
            "Store "
            "smaller pictures, or try whether the host decodes faster.",
            percent(transfer_share()), waited);
      }
      return fmt::format(
          "Decoding pictures on the host sets the pace: it ran {} of the time{}. Give the process more "
          "processors, or store smaller pictures.",
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

StallParts stall_parts(const BatchTimes& times) noexcept {
  const auto within_stall = [&](double begin, double end) {
    return std::max(0.0, std::min(end, times.arrived) - std::max(begin, times.asked));
  };
  // Until the wrapped loader has answered, no batch can be handed out, so it hides whatever else runs.
  const double gather_begin = std::max(times.gather_begin, times.loader_end);
  return {.on_loader = within_stall(times.loader_begin, times.loader_end),
          .on_device = within_stall(std::max(times.transfer_begin, times.loader_end), times.transfer_end),
          .on_host = within_stall(gather_begin, times.gather_end) -
                     within_stall(std::max(gather_begin, times.transfer_begin),
                                  std::min(times.gather_end, times.transfer_end))};
}

}  // namespace penstock
