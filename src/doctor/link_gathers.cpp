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

constexpr std::array kGathers{Gather::zero_copy, Gather::copy_engine, Gather::resident, Gather::widening};
constexpr std::array<std::size_t, 8> kSampleBytes{64,        256,       kKiB,       4 * kKiB,
                                                  16 * kKiB, 32 * kKiB, 128 * kKiB, 512 * kKiB};
constexpr std::size_t kBatches = 4;  // of a repetition, each with a slot of its own
constexpr std::size_t kStreams = 2;
constexpr double kBatchSeconds = 1.5e-3;  // on the link, much more than a batch costs the host
constexpr std::size_t kMostBatchBytes = 32 * kMiB;
constexpr std::size_t kDeviceBatchBytes = 32 * kMiB;  // delivered; more than a cache holds
constexpr std::size_t kMostSamples = 16384;
// The host's gathers: the processor's cache holds small batches while they travel.
constexpr std::array<std::size_t, 6> kHostSamples{64, 256, 1024, 4096, 16384, 65536};
constexpr std::array<std::size_t, 7> kHostBatchBytes{16 * kKiB, 64 * kKiB, 256 * kKiB, kMiB,
                                                     4 * kMiB,  16 * kMiB, 64 * kMiB};
constexpr std::size_t kMostDeviceSamples = 262144;
constexpr std::size_t kMostCopies = 1024;  // in one call
constexpr double kShortestTime = 1e-12;
constexpr std::size_t kPasses = 3;

bool is_on_device(Gather gather) { return gather == Gather::resident || gather == Gather::widening; }

std::string series_name(Gather gather) { return fmt::format("gather_{}", gather_name(gather)); }

std::size_t delivered_bytes(Gather gather, std::size_t sample_bytes) {
  return gather == Gather::widening ? sizeof(float) * sample_bytes : sample_bytes;
}

unsigned gather_threads(const Device& device) {
  return static_cast<unsigned>(
      std::min<std::size_t>(device.host_workers()->threads(), device.info().tuning.gather_threads));
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
  GatherBench(LinkRun& run, Gather gather, std::size_t sample_bytes, std::size_t samples)
      : bench_(run.bench),
        gather_(gather),
        sample_bytes_(sample_bytes),
        slot_bytes_(samples * delivered_bytes(gather, sample_bytes)),
        samples_(samples),
        stores_(run.result.profile.streaming_stores ? StoreKind::streaming : StoreKind::cached),
        workers_(bench_.device().host_workers()),
        threads_(gather_threads(bench_.device())),
        random_(sample_bytes + samples),
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
  [[nodiscard]] std::size_t slot_bytes() const noexcept { return slot_bytes_; }

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
    const std::size_t piece = rows_of_piece(samples_, sample_bytes_, threads_);
    const auto begin = std::chrono::steady_clock::now();
    workers_->for_each((samples_ + piece - 1) / piece,
                       [&](std::size_t i) {
                         const std::size_t first = i * piece;
                         gather_rows(bench_.pageable_source(), sample_bytes_,
                                     indices(batch).subspan(first, std::min(piece, samples_ - first)),
                                     staging + first * sample_bytes_, stores_);
                       },
                       threads_);
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
  const unsigned threads_;
  std::mt19937_64 random_;
  std::vector<std::uint64_t> indices_;
  Buffer device_indices_;
  Event begin_;
  Event end_;
  std::vector<Stream> streams_;
  std::vector<Event> sent_;
  std::vector<CopyPiece> copies_;
};

/// Batches of one kind, measured pass after pass.
class MeasuredGather {
 public:
  MeasuredGather(LinkRun& run, Gather gather, std::size_t sample_bytes, std::size_t samples)
      : gather_(gather),
        sample_bytes_(sample_bytes),
        samples_(samples),
        batches_(run, gather, sample_bytes, samples) {}

  void measure(LinkBench& bench) {
    bench.poison_device(kBatches * batches_.slot_bytes());
    passes_.push_back(bench.repeat(batches_.bytes(), [this] { return batches_.seconds(); }));
    batches_.check(series_name(gather_));
  }

  [[nodiscard]] Gather gather() const noexcept { return gather_; }
  /// Of the host's gathers a batch, of the others a sample.
  [[nodiscard]] LinkMeasuredPoint point() const {
    std::vector<Summary> passes = passes_;
    const auto middle = passes.begin() + static_cast<std::ptrdiff_t>(passes.size() / 2);
    std::ranges::nth_element(passes, middle, {}, &Summary::median);
    if (gather_ != Gather::host) return {.bytes = sample_bytes_, .pieces = 1, .seconds = *middle};
    const auto samples = static_cast<double>(samples_);
    for (double Summary::* value :
         {&Summary::median, &Summary::minimum, &Summary::maximum, &Summary::p99, &Summary::mean}) {
      (*middle).*value *= samples;
    }
    return {.bytes = samples_ * sample_bytes_, .pieces = samples_, .seconds = *middle};
  }

 private:
  const Gather gather_;
  const std::size_t sample_bytes_;
  const std::size_t samples_;
  GatherBench batches_;
  std::vector<Summary> passes_;
};

/// All that is measured, in the order of its points.
std::deque<MeasuredGather> list_gathers(LinkRun& run) {
  const double link = run.result.profile.ceiling(CopyDirection::h2d);
  const std::size_t room = run.bench.capacity() / kBatches;
  const auto most = std::max(64 * kKiB, static_cast<std::size_t>(link * kBatchSeconds));
  std::deque<MeasuredGather> gathers;
  for (const std::size_t samples : kHostSamples) {
    for (const std::size_t bytes : kHostBatchBytes) {
      const std::size_t sample = bytes / samples;
      if (sample < kSampleBytes.front() || sample > 2 * kSampleBytes.back()) continue;
      if (bytes <= std::min(room, most)) gathers.emplace_back(run, Gather::host, sample, samples);
    }
  }
  for (const Gather gather : kGathers) {
    const std::size_t slot_bytes = std::min(
        room, is_on_device(gather) ? kDeviceBatchBytes : std::bit_floor(std::min(most, kMostBatchBytes)));
    for (const std::size_t sample : kSampleBytes) {
      if (4 * sample > slot_bytes) break;
      gathers.emplace_back(run, gather, sample, samples_in(gather, sample, slot_bytes));
    }
  }
  return gathers;
}

}  // namespace

void measure_gathers(LinkRun& run) {
  LinkProfile& profile = run.result.profile;
  std::deque<MeasuredGather> gathers = list_gathers(run);
  const std::size_t passes = run.bench.quick() ? 1 : kPasses;
  double done = 0;
  for (std::size_t pass = 0; pass < passes; ++pass) {
    for (MeasuredGather& gather : gathers) {
      gather.measure(run.bench);
      run.advance(++done / static_cast<double>(passes * gathers.size()));
    }
  }
  profile.gathers.clear();
  profile.host_gathers.clear();
  profile.gather_threads = gather_threads(run.bench.device());
  for (const MeasuredGather& gather : gathers) {
    const std::string name = series_name(gather.gather());
    if (run.result.series.back().name != name) {
      run.result.series.push_back({.name = name, .timing = LinkTiming::call, .points = {}});
    }
    const LinkMeasuredPoint point = gather.point();
    run.result.series.back().points.push_back(point);
    const double seconds = std::max(point.seconds.median, kShortestTime);
    if (gather.gather() == Gather::host) {
      profile.host_gathers.push_back({point.pieces, point.bytes, seconds});
    } else {
      profile.gathers[gather.gather()].push_back({point.bytes, seconds});
    }
  }
}

}  // namespace penstock
