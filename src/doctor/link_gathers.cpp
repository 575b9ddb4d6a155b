#include "doctor/link_steps.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/gather_rows.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <deque>
#include <random>
#include <string>

/// How gathers are measured: as a loader gathers, batch after batch on two streams in turn, with samples
/// drawn at random from the whole source. Each repetition draws others, or a processor's cache would hold
/// them from the second one on. A batch is so large that its fixed costs do not count. But
/// enqueuing the copies of one takes the host some hundred us, in which the link idles before the first: so
/// copies are timed by the device's clock, from the end of a batch before the others. Kernels that do not use
/// the link are timed on one stream, by the device's clock.
///
/// A host whose memory others use, too, changes from second to second. So all sizes of all gathers are
/// measured in some passes, and of each the pass in the middle counts.
namespace penstock {

namespace {

using Gather = LinkProfile::Gather;

constexpr std::array kGathers{Gather::host, Gather::zero_copy, Gather::copy_engine, Gather::resident,
                              Gather::widening};
constexpr std::array<std::size_t, 8> kSampleBytes{64,        256,       kKiB,       4 * kKiB,
                                                  16 * kKiB, 32 * kKiB, 128 * kKiB, 512 * kKiB};
constexpr std::size_t kBatches = 4;  // of a repetition, each with a slot of its own
constexpr std::size_t kStreams = 2;
constexpr double kBatchSeconds = 1.5e-3;  // on the link, much more than a batch costs the host
// Such as a batch of pictures has. Of smaller batches a processor's cache holds all that travels.
constexpr std::size_t kMostBatchBytes = 32 * kMiB;
constexpr std::size_t kDeviceBatchBytes = 32 * kMiB;  // delivered; more than a cache holds
constexpr std::size_t kMostSamples = 16384;
constexpr std::size_t kMostDeviceSamples = 262144;
constexpr std::size_t kMostCopies = 1024;  // in one call
constexpr double kShortestTime = 1e-12;
constexpr std::size_t kPasses = 3;

bool is_on_device(Gather gather) { return gather == Gather::resident || gather == Gather::widening; }

std::string series_name(Gather gather) { return fmt::format("gather_{}", gather_name(gather)); }

std::size_t delivered_bytes(Gather gather, std::size_t sample_bytes) {
  return gather == Gather::widening ? sizeof(float) * sample_bytes : sample_bytes;
}

std::size_t samples_in(Gather gather, std::size_t sample_bytes, std::size_t slot_bytes) {
  const std::size_t room = slot_bytes / delivered_bytes(gather, sample_bytes);
  return std::min(room, is_on_device(gather)            ? kMostDeviceSamples
                        : gather == Gather::copy_engine ? kMostCopies
                                                        : kMostSamples);
}

/// Batches of samples of one size, made in one way.
class GatherBench {
 public:
  GatherBench(LinkRun& run, Gather gather, std::size_t sample_bytes, std::size_t slot_bytes)
      : bench_(run.bench),
        gather_(gather),
        sample_bytes_(sample_bytes),
        slot_bytes_(slot_bytes),
        samples_(samples_in(gather, sample_bytes, slot_bytes)),
        stores_(run.result.profile.streaming_stores ? StoreKind::streaming : StoreKind::cached),
        workers_(bench_.device().host_workers()),
        random_(sample_bytes),
        indices_(kBatches * samples_),
        device_indices_(make_device_pool(bench_.device(), {.segment_bytes = 64 * kKiB})
                            .allocate(indices_.size() * sizeof(std::uint64_t))),
        begin_(bench_.device().create_event(EventTiming::on)),
        end_(bench_.device().create_event(EventTiming::on)) {
    for (std::size_t i = 0; i < kStreams; ++i) streams_.push_back(bench_.device().create_stream());
    for (std::size_t i = 0; i < kStreams; ++i) sent_.push_back(bench_.device().create_event());
  }

  /// Draws the batches' samples, and makes them once. Returns the seconds for each sample.
  double seconds() {
    draw();
    if (is_on_device(gather_)) return device_seconds();
    if (gather_ == Gather::copy_engine) return copying_seconds();
    double gathering = 0;
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t batch = 0; batch < kBatches; ++batch) {
      if (gather_ == Gather::host) {
        gathering += gather_on_host(batch);
      } else {
        streams_[batch % kStreams].gather(request(batch));
      }
    }
    for (const Stream& stream : streams_) stream.synchronize();
    const double all = gather_ == Gather::host ? gathering : seconds_since(begin);
    return all / static_cast<double>(indices_.size());
  }

  void check(std::string_view what) {
    bench_.read_back(kBatches * slot_bytes_);
    for (std::size_t batch = 0; batch < kBatches; ++batch) {
      const std::byte* sample = bench_.pinned_target() + batch * slot_bytes_;
      for (const std::uint64_t index : indices(batch)) {
        if (gather_ == Gather::widening) {
          check_widened(what, sample, index * sample_bytes_);
        } else {
          bench_.check_host(what, sample, sample_bytes_, index * sample_bytes_);
        }
        sample += delivered_bytes(gather_, sample_bytes_);
      }
    }
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return indices_.size() * sample_bytes_; }
  [[nodiscard]] unsigned threads() const {
    return static_cast<unsigned>(
        std::min<std::size_t>(workers_->threads(), bench_.device().info().tuning.gather_threads));
  }

 private:
  void draw() {
    for (std::uint64_t& index : indices_) index = random_() % (bench_.capacity() / sample_bytes_);
    bench_.stream().copy(device_indices_.data(), indices_.data(), indices_.size() * sizeof(std::uint64_t),
                         CopyDirection::h2d);
    bench_.stream().synchronize();
  }

  [[nodiscard]] std::span<const std::uint64_t> indices(std::size_t batch) const {
    return std::span(indices_).subspan(batch * samples_, samples_);
  }
  [[nodiscard]] std::byte* slot(std::size_t batch) const {
    return bench_.device_target() + batch * slot_bytes_;
  }

  [[nodiscard]] GatherRequest request(std::size_t batch) const {
    const Device& device = bench_.device();
    const bool over_link = gather_ == Gather::zero_copy;
    return {.source = over_link ? device.device_address(bench_.pinned_source()) : bench_.device_source(),
            .source_rows = bench_.capacity() / sample_bytes_,
            .row_elements = sample_bytes_,
            .indices = reinterpret_cast<const std::uint64_t*>(device_indices_.data()) + batch * samples_,
            .count = samples_,
            .destination = slot(batch),
            .to = gather_ == Gather::widening ? DType::float32 : DType::uint8,
            .blocks = over_link ? device.info().tuning.copying_blocks : 0};
  }

  double device_seconds() {
    const Stream& stream = streams_.front();
    begin_.record(stream);
    for (std::size_t batch = 0; batch < kBatches; ++batch) stream.gather(request(batch));
    end_.record(stream);
    end_.synchronize();
    return end_.seconds_since(begin_) / static_cast<double>(indices_.size());
  }

  double copying_seconds() {
    gather_by_copies(0);  // it is made again at its turn
    begin_.record(streams_[0]);
    for (std::size_t i = 1; i < kStreams; ++i) streams_[i].wait(begin_);
    for (std::size_t batch = 0; batch < kBatches; ++batch) gather_by_copies(batch);
    for (std::size_t i = 1; i < kStreams; ++i) {
      sent_[i].record(streams_[i]);
      streams_[0].wait(sent_[i]);
    }
    end_.record(streams_[0]);
    end_.synchronize();
    return end_.seconds_since(begin_) / static_cast<double>(indices_.size());
  }

  /// Returns the seconds of the host's threads, while the link carries earlier batches.
  double gather_on_host(std::size_t batch) {
    std::byte* const staging = bench_.pinned_target() + batch * slot_bytes_;
    const std::size_t piece = rows_of_piece(samples_, sample_bytes_, threads());
    const auto begin = std::chrono::steady_clock::now();
    workers_->for_each((samples_ + piece - 1) / piece,
                       [&](std::size_t i) {
                         const std::size_t first = i * piece;
                         gather_rows(bench_.pageable_source(), sample_bytes_,
                                     indices(batch).subspan(first, std::min(piece, samples_ - first)),
                                     staging + first * sample_bytes_, stores_);
                       },
                       threads());
    const double seconds = seconds_since(begin);
    const Stream& stream = streams_[batch % kStreams];
    stream.copy(slot(batch), staging, samples_ * sample_bytes_, CopyDirection::h2d);
    return seconds;
  }

  void gather_by_copies(std::size_t batch) {
    copies_.clear();
    std::byte* destination = slot(batch);
    for (const std::uint64_t index : indices(batch)) {
      copies_.push_back({bench_.pinned_source() + index * sample_bytes_, destination, sample_bytes_});
      destination += sample_bytes_;
    }
    streams_[batch % kStreams].copy_each(copies_, CopyDirection::h2d);
  }

  void check_widened(std::string_view what, const std::byte* sample, std::size_t offset) const {
    const auto* const values = reinterpret_cast<const float*>(sample);
    const std::byte* const source = bench_.pinned_source() + offset;
    const bool same = std::equal(values, values + sample_bytes_, source, [](float value, std::byte stored) {
      return value == static_cast<float>(std::to_integer<unsigned>(stored));
    });
    if (same) return;
    throw Error(fmt::format("{} of {} brought wrong values: {} is faulty. Do not trust measurements on it.",
                            what, format_bytes(sample_bytes_), bench_.device().info().spec));
  }

  LinkBench& bench_;
  const Gather gather_;
  const std::size_t sample_bytes_;
  const std::size_t slot_bytes_;
  const std::size_t samples_;
  const StoreKind stores_;
  std::shared_ptr<HostWorkers> workers_;
  std::mt19937_64 random_;
  std::vector<std::uint64_t> indices_;
  Buffer device_indices_;
  Event begin_;
  Event end_;
  std::vector<Stream> streams_;
  std::vector<Event> sent_;
  std::vector<CopyPiece> copies_;
};

/// Samples of one size, gathered in one way.
struct Measured {
  Gather gather;
  std::size_t sample_bytes;
  std::size_t slot_bytes;
  GatherBench batches;
  std::vector<Summary> passes;

  Measured(LinkRun& run, Gather way, std::size_t sample, std::size_t slot)
      : gather(way), sample_bytes(sample), slot_bytes(slot), batches(run, way, sample, slot) {}

  void measure(LinkBench& bench) {
    bench.poison_device(kBatches * slot_bytes);
    passes.push_back(bench.repeat(batches.bytes(), [this] { return batches.seconds(); }));
    batches.check(series_name(gather));
  }

  [[nodiscard]] LinkMeasuredPoint point() {
    const auto middle = passes.begin() + static_cast<std::ptrdiff_t>(passes.size() / 2);
    std::ranges::nth_element(passes, middle, {}, &Summary::median);
    return {.bytes = sample_bytes, .pieces = 1, .seconds = *middle};
  }
};

}  // namespace

void measure_gathers(LinkRun& run) {
  LinkBench& bench = run.bench;
  LinkProfile& profile = run.result.profile;
  const double bytes = std::clamp(profile.ceiling(CopyDirection::h2d) * kBatchSeconds,
                                  static_cast<double>(64 * kKiB), static_cast<double>(kMostBatchBytes));
  const std::size_t room = bench.capacity() / kBatches;
  std::deque<Measured> gathers;
  for (const Gather gather : kGathers) {
    const std::size_t slot_bytes = std::min(
        room, is_on_device(gather) ? kDeviceBatchBytes : std::bit_floor(static_cast<std::size_t>(bytes)));
    for (const std::size_t sample : kSampleBytes) {
      if (4 * sample <= slot_bytes) gathers.emplace_back(run, gather, sample, slot_bytes);
    }
  }
  const std::size_t passes = bench.quick() ? 1 : kPasses;
  double done = 0;
  for (std::size_t pass = 0; pass < passes; ++pass) {
    for (Measured& one : gathers) {
      one.measure(bench);
      run.advance(++done / static_cast<double>(passes * gathers.size()));
    }
  }
  for (const Gather gather : kGathers) {
    LinkSeries series{.name = series_name(gather), .timing = LinkTiming::call, .points = {}};
    std::vector<LinkProfile::Point> points;
    for (Measured& one : gathers) {
      if (one.gather != gather) continue;
      if (gather == Gather::host) profile.gather_threads = one.batches.threads();
      series.points.push_back(one.point());
      points.push_back({one.sample_bytes, std::max(series.points.back().seconds.median, kShortestTime)});
    }
    profile.gathers[gather] = std::move(points);
    run.result.series.push_back(std::move(series));
  }
}

}  // namespace penstock
