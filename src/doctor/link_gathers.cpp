#include "doctor/link_steps.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/gather_rows.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <random>

/// How gathers are measured: as a loader gathers, batch after batch on two streams in turn, with samples
/// drawn at random from the whole source. A batch is so large that its fixed costs do not count.
namespace penstock {

namespace {

constexpr std::size_t kBatches = 4;  // of a repetition, each with a slot of its own
constexpr std::size_t kStreams = 2;
constexpr double kBatchSeconds = 300e-6;  // on the link, much more than a batch costs the host
constexpr std::size_t kMostBatchBytes = 16 * kMiB;
constexpr std::size_t kMostSamples = 16384;
constexpr std::size_t kMostCopies = 1024;  // in one call
constexpr std::size_t kPieceBytes = 256 * kKiB;
constexpr std::array<std::size_t, 8> kSampleBytes{64,        256,       kKiB,       4 * kKiB,
                                                  16 * kKiB, 32 * kKiB, 128 * kKiB, 512 * kKiB};
constexpr double kLeastSeconds = 1e-12;

/// Batches of samples of one size.
class GatherBench {
 public:
  GatherBench(LinkRun& run, std::size_t sample_bytes, std::size_t slot_bytes, std::size_t most_samples)
      : bench_(run.bench),
        sample_bytes_(sample_bytes),
        slot_bytes_(slot_bytes),
        samples_(std::min(slot_bytes / sample_bytes, most_samples)),
        stores_(run.result.profile.streaming_stores ? StoreKind::streaming : StoreKind::cached),
        workers_(bench_.device().host_workers()),
        indices_(kBatches * samples_),
        device_indices_(make_device_pool(bench_.device(), {.segment_bytes = 64 * kKiB})
                            .allocate(indices_.size() * sizeof(std::uint64_t))) {
    for (std::size_t i = 0; i < kStreams; ++i) streams_.push_back(bench_.device().create_stream());
    for (std::size_t i = 0; i < kBatches; ++i) sent_.push_back(bench_.device().create_event());
    std::mt19937_64 random(sample_bytes);
    for (std::uint64_t& index : indices_) index = random() % (bench_.capacity() / sample_bytes_);
    bench_.stream().copy(device_indices_.data(), indices_.data(), indices_.size() * sizeof(std::uint64_t),
                         CopyDirection::h2d);
    bench_.stream().synchronize();
  }

  /// Seconds that a repetition of `path` takes for each sample.
  double seconds(GatherPath path) {
    double gathering = 0;
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t batch = 0; batch < kBatches; ++batch) {
      if (path == GatherPath::host) {
        gathering += gather_on_host(batch);
      } else if (path == GatherPath::zero_copy) {
        gather_by_kernel(batch);
      } else {
        gather_by_copies(batch);
      }
    }
    for (const Stream& stream : streams_) stream.synchronize();
    const double all = path == GatherPath::host ? gathering : seconds_since(begin);
    return all / static_cast<double>(kBatches * samples_);
  }

  void check(std::string_view what) {
    bench_.read_back(kBatches * slot_bytes_);
    for (std::size_t batch = 0; batch < kBatches; ++batch) {
      const std::byte* sample = bench_.pinned_target() + batch * slot_bytes_;
      for (const std::uint64_t index : indices(batch)) {
        bench_.check_host(what, sample, sample_bytes_, index * sample_bytes_);
        sample += sample_bytes_;
      }
    }
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return kBatches * samples_ * sample_bytes_; }
  [[nodiscard]] unsigned threads() const {
    return static_cast<unsigned>(
        std::min<std::size_t>(workers_->threads(), bench_.device().info().tuning.gather_threads));
  }

 private:
  [[nodiscard]] std::span<const std::uint64_t> indices(std::size_t batch) const {
    return std::span(indices_).subspan(batch * samples_, samples_);
  }
  [[nodiscard]] const Stream& stream(std::size_t batch) const { return streams_[batch % kStreams]; }
  [[nodiscard]] std::byte* slot(std::size_t batch) const {
    return bench_.device_target() + batch * slot_bytes_;
  }

  /// Returns the seconds of the host's threads, while the link carries earlier batches.
  double gather_on_host(std::size_t batch) {
    sent_[batch].synchronize();
    std::byte* const staging = bench_.pinned_target() + batch * slot_bytes_;
    const std::size_t piece = std::clamp<std::size_t>(kPieceBytes / sample_bytes_, 1, 1024);
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
    stream(batch).copy(slot(batch), staging, samples_ * sample_bytes_, CopyDirection::h2d);
    sent_[batch].record(stream(batch));
    return seconds;
  }

  void gather_by_kernel(std::size_t batch) {
    const Device& device = bench_.device();
    stream(batch).gather(
        {.source = device.device_address(bench_.pinned_source()),
         .source_rows = bench_.capacity() / sample_bytes_,
         .row_elements = sample_bytes_,
         .indices = reinterpret_cast<const std::uint64_t*>(device_indices_.data()) + batch * samples_,
         .count = samples_,
         .destination = slot(batch),
         .blocks = device.info().tuning.copying_blocks});
  }

  void gather_by_copies(std::size_t batch) {
    copies_.clear();
    std::byte* destination = slot(batch);
    for (const std::uint64_t index : indices(batch)) {
      copies_.push_back({bench_.pinned_source() + index * sample_bytes_, destination, sample_bytes_});
      destination += sample_bytes_;
    }
    stream(batch).copy_each(copies_, CopyDirection::h2d);
  }

  LinkBench& bench_;
  const std::size_t sample_bytes_;
  const std::size_t slot_bytes_;
  const std::size_t samples_;
  const StoreKind stores_;
  std::shared_ptr<HostWorkers> workers_;
  std::vector<std::uint64_t> indices_;
  Buffer device_indices_;
  std::vector<Stream> streams_;
  std::vector<Event> sent_;
  std::vector<CopyPiece> copies_;
};

}  // namespace

void measure_gathers(LinkRun& run) {
  LinkBench& bench = run.bench;
  LinkProfile& profile = run.result.profile;
  const double batch_bytes = profile.ceiling(CopyDirection::h2d) * kBatchSeconds;
  const std::size_t slot_bytes =
      std::min(std::bit_floor(static_cast<std::size_t>(std::clamp(batch_bytes, static_cast<double>(64 * kKiB),
                                                                  static_cast<double>(kMostBatchBytes)))),
               bench.capacity() / kBatches);
  const std::array paths{GatherPath::host, GatherPath::zero_copy, GatherPath::copy_engine};
  double done = 0;
  for (const GatherPath path : paths) {
    const std::string name = fmt::format("{} gather", gather_path_name(path));
    LinkSeries series{.name = name, .timing = LinkTiming::call, .points = {}};
    std::vector<LinkProfile::Point> points;
    for (const std::size_t sample : kSampleBytes) {
      if (4 * sample > slot_bytes) break;
      GatherBench batches(run, sample, slot_bytes,
                          path == GatherPath::copy_engine ? kMostCopies : kMostSamples);
      bench.poison_device(kBatches * slot_bytes);
      const Summary seconds = bench.repeat(batches.bytes(), [&] { return batches.seconds(path); });
      batches.check(name);
      series.points.push_back({.bytes = sample, .pieces = 1, .seconds = seconds});
      points.push_back({sample, std::max(seconds.median, kLeastSeconds)});
      if (path == GatherPath::host) profile.gather_threads = batches.threads();
      run.advance(done += 1.0 / static_cast<double>(paths.size() * kSampleBytes.size()));
    }
    profile.gathers[path] = std::move(points);
    run.result.series.push_back(std::move(series));
  }
}

}  // namespace penstock
