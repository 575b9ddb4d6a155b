#include "core/shared/gather_rows.hpp"
#include "link/link_steps.hpp"

#include <penstock/core/bytes.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <random>
#include <string>

/// How gathers are measured: as a loader gathers, batch after batch, with samples drawn at random from the
/// whole source. Each repetition draws others, or a processor's cache would hold them from the second one on.
///
/// Host threads fill as many slots in turn as a loader has, each once its copy is done. More slots would not
/// stay in a cache. The first batches do not count: the threads sleep, and the slots are elsewhere.
///
/// Kernels that read the link have two streams in turn. A batch is so large that its fixed costs do not
/// count.
///
/// Copies have one stream. Two may have two engines, which share the samples' fixed costs. Loaders, whose
/// parts take turns, did not reach that: samples of 32 KiB took them 0.8 to 1.1 us, and two streams 0.69.
/// Enqueuing a batch takes the host some hundred us, in which the link idles before the first: so copies are
/// timed by the device's clock, from the end of a batch before the others.
///
/// A host whose memory others use, too, changes from second to second. So all sizes of all gathers are
/// measured in some passes, and of each the pass in the middle counts.
namespace penstock {

namespace {

using Gather = LinkProfile::Gather;

constexpr std::array kGathers{Gather::zero_copy, Gather::copy_engine};
constexpr std::array<std::size_t, 8> kSampleBytes{64,        256,       kKiB,       4 * kKiB,
                                                  16 * kKiB, 32 * kKiB, 128 * kKiB, 512 * kKiB};
constexpr std::size_t kBatches = 4;  // of a repetition, each with a slot of its own
constexpr std::size_t kHostBatches = 12;
constexpr std::size_t kHostSlots = 3;
constexpr std::size_t kStreams = 2;
constexpr double kBatchSeconds = 1.5e-3;  // on the link, much more than a batch costs the host
constexpr std::size_t kMostBatchBytes = 32 * kMiB;
constexpr std::size_t kMostSamples = 16384;
// The host's gathers: the processor's cache holds small batches while they travel. Between 4 and 16 MiB,
// threads gather 2.3 times as fast.
constexpr std::array<std::size_t, 6> kHostSamples{64, 256, 1024, 4096, 16384, 65536};
constexpr std::array<std::size_t, 8> kHostBatchBytes{16 * kKiB, 64 * kKiB, kMiB,      4 * kMiB,
                                                     8 * kMiB,  16 * kMiB, 32 * kMiB, 64 * kMiB};
constexpr std::size_t kMostCopies = 1024;  // in one call
constexpr double kShortestTime = 1e-12;
constexpr std::size_t kPasses = 3;

std::string series_name(Gather gather) { return fmt::format("gather_{}", gather_name(gather)); }

unsigned gather_threads(const Device& device) {
  return static_cast<unsigned>(
      std::min<std::size_t>(device.host_workers()->threads(), device.info().tuning.gather_threads));
}

std::size_t samples_in(Gather gather, std::size_t sample_bytes, std::size_t slot_bytes) {
  return std::min(slot_bytes / sample_bytes, gather == Gather::copy_engine ? kMostCopies : kMostSamples);
}

/// Batches of samples of one size, made in one way.
class GatherBench {
 public:
  GatherBench(LinkRun& run, Gather gather, std::size_t sample_bytes, std::size_t samples, std::size_t seed)
      : bench_(run.bench),
        gather_(gather),
        sample_bytes_(sample_bytes),
        slot_bytes_(samples * sample_bytes),
        samples_(samples),
        batches_(gather == Gather::host ? kHostBatches : kBatches),
        slots_(gather == Gather::host ? kHostSlots : kBatches),
        stores_(run.result.profile.streaming_stores ? StoreKind::streaming : StoreKind::cached),
        workers_(bench_.device().host_workers()),
        threads_(gather_threads(bench_.device())),
        random_(seed),
        indices_(batches_ * samples_),
        begin_(bench_.device().create_event(EventTiming::on)),
        end_(bench_.device().create_event(EventTiming::on)) {
    if (gather == Gather::zero_copy) {
      device_indices_ = make_device_pool(bench_.device(), {.segment_bytes = 64 * kKiB})
                            .allocate(indices_.size() * sizeof(std::uint64_t));
    }
    for (std::size_t i = 0; i < kStreams; ++i) streams_.push_back(bench_.device().create_stream());
    for (std::size_t i = 0; i < kHostSlots; ++i) sent_.push_back(bench_.device().create_event());
  }

  /// Draws the batches' samples, and makes them once. Returns the seconds for each sample.
  double seconds() {
    draw();
    switch (gather_) {
      case Gather::host:
        return hosts_seconds();
      case Gather::zero_copy:
        return link_seconds();
      case Gather::copy_engine:
        break;
    }
    return copying_seconds();
  }

  /// Compares the batches that the slots hold.
  void check(std::string_view what) {
    bench_.read_back(slots_ * slot_bytes_);
    for (std::size_t batch = batches_ - slots_; batch < batches_; ++batch) {
      const std::byte* sample = bench_.pinned_target() + offset(batch);
      for (const std::uint64_t index : indices(batch)) {
        bench_.check_host(what, sample, sample_bytes_, index * sample_bytes_);
        sample += sample_bytes_;
      }
    }
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return indices_.size() * sample_bytes_; }
  /// Of all slots.
  [[nodiscard]] std::size_t target_bytes() const noexcept { return slots_ * slot_bytes_; }

 private:
  void draw() {
    for (std::uint64_t& index : indices_) index = random_() % (bench_.capacity() / sample_bytes_);
    if (gather_ != Gather::zero_copy) return;
    bench_.stream().copy(device_indices_.data(), indices_.data(), indices_.size() * sizeof(std::uint64_t),
                         CopyDirection::h2d);
    bench_.stream().synchronize();
  }

  [[nodiscard]] std::span<const std::uint64_t> indices(std::size_t batch) const {
    return std::span(indices_).subspan(batch * samples_, samples_);
  }
  [[nodiscard]] std::size_t offset(std::size_t batch) const { return batch % slots_ * slot_bytes_; }
  [[nodiscard]] std::byte* slot(std::size_t batch) const { return bench_.device_target() + offset(batch); }

  [[nodiscard]] GatherRequest request(std::size_t batch) const {
    const Device& device = bench_.device();
    return {.source = device.device_address(bench_.pinned_source()),
            .source_rows = bench_.capacity() / sample_bytes_,
            .row_elements = sample_bytes_,
            .indices = reinterpret_cast<const std::uint64_t*>(device_indices_.data()) + batch * samples_,
            .count = samples_,
            .destination = slot(batch),
            .blocks = device.info().tuning.copying_blocks};
  }

  void synchronize() const {
    for (const Stream& stream : streams_) stream.synchronize();
  }

  double link_seconds() {
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t batch = 0; batch < batches_; ++batch) streams_[batch % kStreams].gather(request(batch));
    synchronize();
    return seconds_since(begin) / static_cast<double>(indices_.size());
  }

  double copying_seconds() {
    gather_by_copies(0);  // it is made again at its turn
    begin_.record(streams_[0]);
    for (std::size_t batch = 0; batch < batches_; ++batch) gather_by_copies(batch);
    end_.record(streams_[0]);
    end_.synchronize();
    return end_.seconds_since(begin_) / static_cast<double>(indices_.size());
  }

  double hosts_seconds() {
    double seconds = 0;
    for (std::size_t batch = 0; batch < batches_; ++batch) {
      Event& sent = sent_[batch % slots_];
      if (batch >= slots_) sent.synchronize();
      const double once = gather_on_host(batch);
      if (batch >= slots_) seconds += once;
      sent.record(streams_[batch % kStreams]);
    }
    synchronize();
    return seconds / static_cast<double>((batches_ - slots_) * samples_);
  }

  /// Returns the seconds of the host's threads, while the link carries earlier batches.
  double gather_on_host(std::size_t batch) {
    std::byte* const staging = bench_.pinned_target() + offset(batch);
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
    streams_[0].copy_each(copies_, CopyDirection::h2d);
  }

  LinkBench& bench_;
  const Gather gather_;
  const std::size_t sample_bytes_;
  const std::size_t slot_bytes_;
  const std::size_t samples_;
  const std::size_t batches_;
  const std::size_t slots_;
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
  MeasuredGather(Gather gather, std::size_t sample_bytes, std::size_t samples)
      : gather_(gather), sample_bytes_(sample_bytes), samples_(samples) {}

  void measure(LinkRun& run) {
    GatherBench batches(run, gather_, sample_bytes_, samples_, sample_bytes_ + samples_ + passes_.size());
    run.bench.poison_device(batches.target_bytes());
    passes_.push_back(run.bench.repeat(batches.bytes(), [&] { return batches.seconds(); }));
    batches.check(series_name(gather_));
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
  Gather gather_;
  std::size_t sample_bytes_;
  std::size_t samples_;
  std::vector<Summary> passes_;
};

/// All that is measured, in the order of its points.
std::vector<MeasuredGather> list_gathers(const LinkRun& run) {
  const double link = run.result.profile.ceiling(CopyDirection::h2d);
  const std::size_t room = run.bench.capacity() / kBatches;
  const auto most = std::max(64 * kKiB, static_cast<std::size_t>(link * kBatchSeconds));
  std::vector<MeasuredGather> gathers;
  for (const std::size_t samples : kHostSamples) {
    for (const std::size_t bytes : kHostBatchBytes) {
      const std::size_t sample = bytes / samples;
      if (sample < kSampleBytes.front() || sample > 2 * kSampleBytes.back()) continue;
      if (bytes <= std::min(room, most)) gathers.emplace_back(Gather::host, sample, samples);
    }
  }
  for (const Gather gather : kGathers) {
    const std::size_t slot_bytes = std::min(room, std::bit_floor(std::min(most, kMostBatchBytes)));
    for (const std::size_t sample : kSampleBytes) {
      if (4 * sample > slot_bytes) break;
      gathers.emplace_back(gather, sample, samples_in(gather, sample, slot_bytes));
    }
  }
  return gathers;
}

}  // namespace

void measure_gathers(LinkRun& run) {
  LinkProfile& profile = run.result.profile;
  std::vector<MeasuredGather> gathers = list_gathers(run);
  const std::size_t passes = run.bench.quick() ? 1 : kPasses;
  double done = 0;
  for (std::size_t pass = 0; pass < passes; ++pass) {
    for (MeasuredGather& gather : gathers) {
      gather.measure(run);
      run.advance(++done / static_cast<double>(passes * gathers.size()));
    }
  }
  profile.gathers.clear();
  profile.host_gathers.clear();
  for (const MeasuredGather& gather : gathers) {
    const std::string name = series_name(gather.gather());
    if (run.result.series.back().name != name) {
      run.result.series.push_back({.name = name, .points = {}});
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
