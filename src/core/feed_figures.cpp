#include <penstock/core/bytes.hpp>
#include <penstock/core/feed_figures.hpp>

#include <fmt/format.h>

#include <array>
#include <functional>
#include <iterator>
#include <ostream>
#include <type_traits>

namespace penstock {

namespace {

using S = FeedStatistics;
using T = BatchTimes;
using Unit = FigureUnit;
constexpr FigureOf kOwn = FigureOf::own_loader;
constexpr FigureOf kWrapped = FigureOf::wrapped_loader;

template <auto member, typename Of = S>
FigureValue value_of(const Of& of) {
  const auto value = std::invoke(member, of);
  if constexpr (std::is_floating_point_v<decltype(value)>) {
    return value;
  } else {
    return static_cast<std::uint64_t>(value);
  }
}

std::string share_text(double part) { return fmt::format("{:.1f} %", 100 * part); }

double per_batch(const S& s, double amount) {
  return s.batches > 0 ? amount / static_cast<double>(s.batches) : 0;
}

std::string time_text(double time) { return time > 0 ? format_seconds(time) : std::string(); }

template <double S::* member>
std::string time_of(const S& s) {
  return time_text(s.*member);
}

std::string stage_text(double time, double of_all, const std::string& more = {}) {
  return time > 0 ? fmt::format("{}, {} of the time{}", format_seconds(time), share_text(of_all), more)
                  : std::string();
}

std::string samples_text(const S& s) {
  return fmt::format("{} in {} {}, {:.0f} a second", s.samples, s.batches,
                     s.batches == 1 ? "batch" : "batches", s.samples_per_second());
}

std::string arrays_text(const S& s) {
  return fmt::format("{}, {:.1f} a batch", s.arrays, per_batch(s, static_cast<double>(s.arrays)));
}

std::string failed_text(const S& s) {
  if (s.failed_samples == 0) return {};
  return fmt::format("{}, which are black. {}", s.failed_samples,
                     s.failures.empty() ? std::string() : s.failures.front());
}

std::string delivered_text(const S& s) {
  return fmt::format("{}, {}", format_bytes(s.delivered_bytes), format_gbps(s.delivered_gbps() * kGB));
}

std::string link_text(const S& s) {
  std::string text = fmt::format("{}, {}", format_bytes(s.link_bytes), format_gbps(s.link_gbps() * kGB));
  if (s.link_ceiling <= 0) return text;
  return fmt::format("{}, {} of its ceiling of {}", text, share_text(s.link_efficiency()),
                     format_gbps(s.link_ceiling));
}

std::string resident_text(const S& s) {
  if (s.resident_bytes == 0) return {};
  return fmt::format("{}, moved in {}", format_bytes(s.resident_bytes), format_seconds(s.resident_seconds));
}

std::string whole_text(const S& s) {
  return fmt::format("{}, {} a batch of {}", format_seconds(s.seconds),
                     format_seconds(per_batch(s, s.seconds)),
                     format_bytes(s.batches > 0 ? s.delivered_bytes / s.batches : 0));
}

std::string timed_text(const S& s) {
  return s.timed_batches < s.batches ? std::to_string(s.timed_batches) : std::string();
}

std::string loader_text(const S& s) {
  const std::string start =
      s.startup_seconds > 0 ? fmt::format(", {} to start", format_seconds(s.startup_seconds)) : std::string();
  return stage_text(s.startup_seconds + s.loader_seconds, s.loader_share(), start);
}

std::string transfer_text(const S& s) {
  return stage_text(s.transfer_seconds, s.transfer_share(),
                    fmt::format(", {} while it ran", format_gbps(s.transfer_gbps() * kGB)));
}

std::string stall_text(const S& s) {
  const bool is_most = s.first_stall_seconds > s.stall_seconds / 2;
  return stage_text(s.stall_seconds, s.stall_share(),
                    is_most
                        ? fmt::format(", {} of it for first batches", format_seconds(s.first_stall_seconds))
                        : std::string());
}

std::string ready_text(const S& s) {
  return fmt::format("{:.1f} of {} on average when one was asked for", s.mean_ready, s.prefetch_depth);
}

std::string ring_text(const S& s) { return fmt::format("{} slots, {}", s.slots, format_bytes(s.ring_bytes)); }

constexpr std::string_view kFirstStage = "startup_seconds";
constexpr std::string_view kFirstOwnStage = "gather_seconds";

// In the order of printing. If a member means another thing for a wrapped loader, its figure has another
// name.
constexpr std::array kFigures = std::to_array<FeedFigure>({
    {"samples", Unit::count, "samples", "Samples that were given out.", value_of<&S::samples>, samples_text},
    {"batches", Unit::count, "samples", "Batches that were given out.", value_of<&S::batches>},
    {"samples_per_second", Unit::per_second, "samples", "Samples over the whole time.",
     value_of<&S::samples_per_second>},
    {"failed_samples", Unit::count, "failed samples",
     "Samples of the dataset that could not be read so far, and are black pictures: see "
     "[pictures](pictures.md).",
     value_of<&S::failed_samples>, failed_text, kOwn},
    {"arrays", Unit::count, "arrays", "Tensors and arrays in the batches.", value_of<&S::arrays>, arrays_text,
     kWrapped},
    {"delivered_bytes", Unit::bytes, "delivered", "Bytes in device memory, in the types that a model reads.",
     value_of<&S::delivered_bytes>, delivered_text},
    {"bytes", Unit::bytes, "", "A shorter name of `delivered_bytes`.", value_of<&S::delivered_bytes>},
    {"delivered_gbps", Unit::gbps, "delivered", "Delivered bytes over the whole time.",
     value_of<&S::delivered_gbps>},
    {"link_bytes", Unit::bytes, "over the link",
     "Bytes that crossed between host and device for them. They are fewer than those delivered if values "
     "widen on arrival, or stay on the device.",
     value_of<&S::link_bytes>, link_text},
    {"link_gbps", Unit::gbps, "over the link", "Bytes that crossed the link over the whole time.",
     value_of<&S::link_gbps>},
    {"link_ceiling", Unit::bytes_per_second, "over the link",
     "The best rate that `penstock link` measured. 0 if nobody measured it.", value_of<&S::link_ceiling>},
    {"link_efficiency", Unit::share, "over the link",
     "`link_gbps` as a share of the ceiling; 0 if that is unknown. It is low wherever something else sets "
     "the pace.",
     value_of<&S::link_efficiency>},
    {"resident_bytes", Unit::bytes, "kept on the device",
     "The part of the dataset that stays in device memory and no longer crosses the link.",
     value_of<&S::resident_bytes>, resident_text, kOwn},
    {"resident_seconds", Unit::seconds, "kept on the device",
     "Moving that part to the device, once, in the first epoch.", value_of<&S::resident_seconds>, nullptr,
     kOwn},
    {"seconds", Unit::seconds, "whole time",
     "From an epoch's first request for a batch to the end of its last batch, summed over the epochs.",
     value_of<&S::seconds>, whole_text},
    {"epochs", Unit::count, "", "Epochs that have begun.", value_of<&S::epochs>},
    {"timed_batches", Unit::count, "batches timed",
     "Batches whose times on the device are known. It is printed if some are not.",
     value_of<&S::timed_batches>, timed_text},
    {"compute_seconds", Unit::seconds, "  your step",
     "The work between a batch's arrival and the next request.", value_of<&S::compute_seconds>,
     [](const S& s) { return stage_text(s.compute_seconds, 1 - s.stall_share()); }},
    {"stall_seconds", Unit::seconds, "  waiting for data",
     "From a request until the batch was there. A faster feed can save this much at most.",
     value_of<&S::stall_seconds>, stall_text},
    {"stall_share", Unit::share, "  waiting for data", "The waits as a share of the time.",
     value_of<&S::stall_share>},
    {"first_stall_seconds", Unit::seconds, "  waiting for data",
     "The part of the wait that was for the first batch of each epoch. Nothing hides it.",
     value_of<&S::first_stall_seconds>},
    {"exposed_loader_seconds", Unit::seconds, "    for the loader",
     "The part of the wait in which the wrapped loader was asked for a batch.",
     value_of<&S::exposed_loader_seconds>, time_of<&S::exposed_loader_seconds>, kWrapped},
    {"exposed_transfer_seconds", Unit::seconds, "    for the transfer",
     "The part of the wait in which that batch's bytes were in flight: nothing hid it.",
     value_of<&S::exposed_transfer_seconds>, time_of<&S::exposed_transfer_seconds>},
    {"exposed_gather_seconds", Unit::seconds, "    for the host gather",
     "The part of the wait in which host threads gathered that batch's samples, and none of them were in "
     "flight.",
     value_of<&S::exposed_gather_seconds>, time_of<&S::exposed_gather_seconds>, kOwn},
    {"exposed_send_seconds", Unit::seconds, "    for sending",
     "The part of the wait in which a batch was packed and sent, and nothing of the one waited for was on "
     "its way.",
     value_of<&S::exposed_gather_seconds>, time_of<&S::exposed_gather_seconds>, kWrapped},
    {"exposed_kernel_seconds", Unit::seconds, "    for the device gather",
     "The part of the wait in which a kernel gathered that batch from device memory.",
     value_of<&S::exposed_kernel_seconds>, time_of<&S::exposed_kernel_seconds>, kOwn},
    {"stall_other_seconds", Unit::seconds, "    for a batch to start",
     "The rest of the wait: the batch was handed from thread to thread, its copies were being launched, no "
     "slot was free for it yet, or the resident part was still on its way.",
     value_of<&S::stall_other_seconds>, [](const S& s) { return time_text(s.stall_other_seconds()); }},
    {"startup_seconds", Unit::seconds, "  loader",
     "The wait for the wrapped loader's first batch of each epoch: a DataLoader starts its workers then.",
     value_of<&S::startup_seconds>, loader_text, kWrapped},
    {"loader_seconds", Unit::seconds, "  loader", "The wait for the wrapped loader's other batches.",
     value_of<&S::loader_seconds>, nullptr, kWrapped},
    {"loader_share", Unit::share, "  loader", "Both of these waits as a share of the time.",
     value_of<&S::loader_share>, nullptr, kWrapped},
    {"fetch_seconds", Unit::seconds, "    fetch",
     "A DataLoader's dataset gave the samples of batches. The time of workers is divided by their number.",
     value_of<&S::fetch_seconds>, time_of<&S::fetch_seconds>, kWrapped},
    {"collate_seconds", Unit::seconds, "    collate",
     "A DataLoader's `collate_fn` made batches of samples. The time of workers is divided by their number.",
     value_of<&S::collate_seconds>, time_of<&S::collate_seconds>, kWrapped},
    {"transport_seconds", Unit::seconds, "    transport",
     "Workers wrote batches to send them, divided by the number of workers. Then those were received, one at "
     "a time.",
     value_of<&S::transport_seconds>, [](const S& s) { return time_text(s.transport_seconds()); }, kWrapped},
    {"pin_seconds", Unit::seconds, "    pin",
     "A DataLoader without workers copied batches to pinned memory, as its `pin_memory=True` says.",
     value_of<&S::pin_seconds>, time_of<&S::pin_seconds>, kWrapped},
    {"send_seconds", Unit::seconds, "  send",
     "Batches were taken apart and packed, and their transfers started.", value_of<&S::gather_seconds>,
     [](const S& s) { return stage_text(s.gather_seconds, s.gather_share()); }, kWrapped},
    {"send_share", Unit::share, "  send", "The same as a share of the time.", value_of<&S::gather_share>,
     nullptr, kWrapped},
    {"send_pin_seconds", Unit::seconds, "    pin while sending",
     "The part of sending in which PyTorch copied tensors to pinned memory, or batches ran their own "
     "`pin_memory()`.",
     value_of<&S::send_pin_seconds>, time_of<&S::send_pin_seconds>, kWrapped},
    {"gather_seconds", Unit::seconds, "  host gather", "Host threads gathered the samples of a batch.",
     value_of<&S::gather_seconds>, [](const S& s) { return stage_text(s.gather_seconds, s.gather_share()); },
     kOwn},
    {"gather_share", Unit::share, "  host gather", "The same as a share of the time.",
     value_of<&S::gather_share>, nullptr, kOwn},
    {"transfer_seconds", Unit::seconds, "  transfer",
     "Copies ran, or kernels that read host memory over the link. It is at least what the bytes take at the "
     "ceiling.",
     value_of<&S::transfer_seconds>, transfer_text},
    {"transfer_share", Unit::share, "  transfer", "The same as a share of the time.",
     value_of<&S::transfer_share>},
    {"transfer_gbps", Unit::gbps, "  transfer", "The rate over the link while transfers ran.",
     value_of<&S::transfer_gbps>},
    {"kernel_seconds", Unit::seconds, "  device gather", "Kernels gathered samples that stay on the device.",
     value_of<&S::kernel_seconds>, [](const S& s) { return stage_text(s.kernel_seconds, s.kernel_share()); },
     kOwn},
    {"kernel_share", Unit::share, "  device gather", "The same as a share of the time.",
     value_of<&S::kernel_share>, nullptr, kOwn},
    {"mean_ready", Unit::count, "batches ahead",
     "Batches that were ready or on their way when one was asked for, on average. If nearly all are, the "
     "feed is ahead. Few say little: a host that only queues work on the device asks early.",
     value_of<&S::mean_ready>, ready_text},
    {"prefetch_depth", Unit::count, "batches ahead", "Batches that may be ahead.",
     value_of<&S::prefetch_depth>},
    {"slot_wait_seconds", Unit::seconds, "  paused, all slots full",
     "The feed had nothing to do, because every slot held a batch that the step had not used up. That is "
     "good: "
     "the feed was ahead.",
     value_of<&S::slot_wait_seconds>, time_of<&S::slot_wait_seconds>, kOwn},
    {"slots", Unit::count, "ring",
     "Places in device memory where batches arrive. They become more if batches are kept.",
     value_of<&S::slots>, ring_text, kOwn},
    {"ring_bytes", Unit::bytes, "ring", "Device memory in them.", value_of<&S::ring_bytes>, nullptr, kOwn},
    {"land_seconds", Unit::seconds, "hand out, on the host",
     "The thread that iterates handed batches out. On the host device the wait for their copies is in it.",
     value_of<&S::land_seconds>, time_of<&S::land_seconds>, kWrapped},
    {"consumer_seconds", Unit::seconds, "your step, on the host",
     "Between a batch that was handed out and the next request, on the thread that iterates. If the host "
     "only queues work on a GPU, this is shorter than your step.",
     value_of<&S::consumer_seconds>, time_of<&S::consumer_seconds>, kWrapped},
    {"sample_bytes", Unit::bytes, "", "One sample as it is stored.", value_of<&S::sample_bytes>, nullptr,
     kOwn},
    {"limited_by", Unit::name, "", "The part of the feed that sets the pace: see below.",
     [](const S& s) -> FigureValue { return feed_limit_name(s.limited_by()); }},
});

constexpr std::array kBatchFigures = std::to_array<BatchFigure>({
    {"epoch", value_of<&T::epoch, T>},
    {"batch", value_of<&T::batch, T>},
    {"samples", value_of<&T::samples, T>},
    {"link_bytes", value_of<&T::link_bytes, T>},
    {"loader_begin", value_of<&T::loader_begin, T>},
    {"loader_end", value_of<&T::loader_end, T>},
    {"gather_begin", value_of<&T::gather_begin, T>},
    {"gather_end", value_of<&T::gather_end, T>},
    {"transfer_begin", value_of<&T::transfer_begin, T>},
    {"transfer_end", value_of<&T::transfer_end, T>},
    {"asked", value_of<&T::asked, T>},
    {"arrived", value_of<&T::arrived, T>},
});

}  // namespace

std::string_view figure_unit_name(FigureUnit unit) noexcept {
  switch (unit) {
    case Unit::count:
      return "number";
    case Unit::bytes:
      return "bytes";
    case Unit::seconds:
      return "seconds";
    case Unit::share:
      return "0 to 1";
    case Unit::gbps:
      return "10^9 bytes/s";
    case Unit::bytes_per_second:
      return "bytes/s";
    case Unit::per_second:
      return "1/s";
    case Unit::name:
      return "name";
  }
  return "number";
}

std::span<const FeedFigure> feed_figures() noexcept { return kFigures; }
std::span<const BatchFigure> batch_figures() noexcept { return kBatchFigures; }

std::vector<FeedLine> feed_lines(const FeedStatistics& statistics) {
  std::vector<FeedLine> lines;
  for (const FeedFigure& figure : kFigures) {
    if (figure.line.empty() || !figure.applies_to(statistics)) continue;
    if (figure.text != nullptr) lines.push_back({figure.line, figure.text(statistics), {}});
    lines.back().figures.push_back(&figure);
  }
  return lines;
}

std::ostream& operator<<(std::ostream& out, const FeedStatistics& statistics) {
  std::string text;
  for (const FeedLine& line : feed_lines(statistics)) {
    const std::string_view first = line.figures.front()->name;
    if (first == kFirstStage || first == kFirstOwnStage) text += "stages, side by side\n";
    if (!line.text.empty()) fmt::format_to(std::back_inserter(text), "{:<27}{}\n", line.label, line.text);
  }
  return out << text << '\n' << statistics.sentence() << '\n';
}

}  // namespace penstock
