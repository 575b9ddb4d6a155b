#include "link/link_steps.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/copy_bytes.hpp>
#include <penstock/core/error.hpp>

#include <algorithm>
#include <exception>

namespace penstock {

namespace {

constexpr double kGoodEnough = 0.995;

double host_copy_rate(LinkBench& bench, HostWorkers& workers, std::size_t bytes, StoreKind stores) {
  const std::size_t parts = 4 * workers.threads();
  const std::size_t part = align_up(bytes / parts, 64);
  bench.poison_host(bench.pinned_target(), bytes);
  const Summary seconds = bench.repeat_timed(bytes, [&] {
    workers.for_each(parts, [&](std::size_t i) {
      const std::size_t begin = std::min(i * part, bytes);
      const std::size_t end = i + 1 == parts ? bytes : std::min(begin + part, bytes);
      copy_bytes(bench.pinned_target() + begin, bench.pageable_source() + begin, end - begin, stores);
    });
  });
  bench.check_host("a copy within host memory", bench.pinned_target(), bytes);
  return static_cast<double>(bytes) / seconds.median;
}

struct StagingSetting {
  unsigned threads;
  std::size_t chunk_bytes;
  bool streaming_stores;
};

StagingTrial try_staging(LinkRun& run, std::size_t bytes, StagingSetting setting) {
  LinkBench& bench = run.bench;
  TransferEngine engine(bench.device(), {.profile = run.result.profile,
                                         .threads = setting.threads,
                                         .chunk_bytes = setting.chunk_bytes,
                                         .streaming_stores = setting.streaming_stores});
  bench.poison_device(bytes);
  const Summary seconds = bench.repeat_timed(bytes, [&] {
    engine.copy(bench.device_target(), bench.pageable_source(), bytes, {.path = TransferPath::staged})
        .synchronize();
  });
  bench.check_device("staging", bytes);
  return {.threads = setting.threads,
          .chunk_bytes = setting.chunk_bytes,
          .streaming_stores = setting.streaming_stores,
          .bytes_per_second = static_cast<double>(bytes) / seconds.median};
}

/// The trial with the fewest threads that is nearly as fast as the fastest one; among equals the faster.
StagingTrial best_of(const std::vector<StagingTrial>& trials) {
  double best = 0;
  for (const auto& trial : trials) best = std::max(best, trial.bytes_per_second);
  return *std::min_element(trials.begin(), trials.end(), [&](const auto& a, const auto& b) {
    const bool a_good = a.bytes_per_second >= kGoodEnough * best;
    const bool b_good = b.bytes_per_second >= kGoodEnough * best;
    if (a_good != b_good) return a_good;
    if (a.threads != b.threads) return a.threads < b.threads;
    return a.bytes_per_second > b.bytes_per_second;
  });
}

}  // namespace

void measure_host_copy(LinkRun& run) {
  LinkBench& bench = run.bench;
  const std::size_t bytes = std::min(bench.capacity(), (bench.quick() ? 64 : 256) * kMiB);
  const unsigned most = std::clamp(host_topology().processors, 1u, TransferOptions::kMostThreads);
  for (unsigned threads = 1; threads <= most; ++threads) {
    HostWorkers workers({.threads = threads, .on_start = {}});
    run.result.host_copy.push_back(
        {.threads = threads,
         .cached = host_copy_rate(bench, workers, bytes, StoreKind::cached),
         .streaming = host_copy_rate(bench, workers, bytes, StoreKind::streaming)});
    run.advance(static_cast<double>(threads) / most);
  }
}

namespace {

/// The trials made so far, each setting once.
class StagingSearch {
 public:
  explicit StagingSearch(LinkRun& run)
      : run_(run), bytes_(std::min(run.bench.capacity(), (run.bench.quick() ? 256 : 512) * kMiB)) {}

  /// Bytes per second of a setting; 0 if there is no memory for it.
  double rate(unsigned threads, std::size_t chunk_bytes, bool streaming_stores) {
    auto& trials = run_.result.staging_trials;
    const auto known = std::find_if(trials.begin(), trials.end(), [&](const StagingTrial& trial) {
      return trial.threads == threads && trial.chunk_bytes == chunk_bytes &&
             trial.streaming_stores == streaming_stores;
    });
    if (known != trials.end()) return known->bytes_per_second;
    try {
      trials.push_back(try_staging(run_, bytes_, {threads, chunk_bytes, streaming_stores}));
      return trials.back().bytes_per_second;
    } catch (const OutOfMemory&) {
      refusal_ = std::current_exception();
    } catch (const Unsupported&) {
      refusal_ = std::current_exception();
    }
    return 0;
  }

  [[nodiscard]] StagingTrial best() const {
    if (run_.result.staging_trials.empty()) std::rethrow_exception(refusal_);
    return best_of(run_.result.staging_trials);
  }

 private:
  LinkRun& run_;
  std::size_t bytes_;
  std::exception_ptr refusal_;
};

}  // namespace

void search_staging(LinkRun& run) {
  const unsigned most = std::clamp(host_topology().processors, 1u, TransferOptions::kMostThreads);
  const auto& chunks = run.bench.device().info().tuning.staged_chunks;
  StagingSearch search(run);
  for (unsigned threads = most; threads >= 1;) {
    search.rate(threads, chunks.front(), false);
    run.advance(0.5 * (1 - static_cast<double>(threads - 1) / most));
    const unsigned step = threads > 8 || (run.bench.quick() && most > 4) ? 2 : 1;
    threads -= std::min(step, threads);
  }
  const unsigned threads = search.best().threads;
  double done = 0.5;
  for (const std::size_t chunk : chunks) {
    for (const bool streaming : {true, false}) {
      search.rate(threads, chunk, streaming);
      run.advance(done += 0.05);
    }
  }
  // With another chunk size, fewer threads may be enough.
  const StagingTrial found = search.best();
  for (unsigned fewer = found.threads - 1; fewer >= 1; --fewer) {
    const double rate = search.rate(fewer, found.chunk_bytes, found.streaming_stores);
    if (rate < kGoodEnough * found.bytes_per_second) break;
  }

  const StagingTrial best = search.best();
  LinkProfile& profile = run.result.profile;
  profile.staging_threads = best.threads;
  profile.chunk_bytes = best.chunk_bytes;
  profile.streaming_stores = best.streaming_stores;
  run.engine = std::make_unique<TransferEngine>(run.bench.device(), TransferOptions{.profile = profile});
}

}  // namespace penstock
