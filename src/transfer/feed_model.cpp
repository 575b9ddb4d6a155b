#include <penstock/core/error.hpp>
#include <penstock/transfer/feed_model.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

/// Each stage's seconds for a batch are a sum over its fields. With n samples that stream, of s bytes as
/// stored:
///
///   gather     the seconds of n samples that the host gathers
///   transfer   host: the bytes n s at the link's ceiling, and the cost of a copy
///              kernel or copy engine: n times the seconds of a sample
///              copies in sequence: as for the host
///              a kernel that reads the link: the seconds of its resident samples, too
///   kernel     the batch's samples times the seconds of one in device memory. For kernels that read the
///              link, only if they widen
///   batch      the fixed costs of the batch, of each field, and of each copy
///
/// A wrapped loader with workers, of a batch (predict_loader):
///
///   workers     the seconds of fetch and collate, shared by the workers
///   processors  the seconds of fetch, collate and receive without those of waiting, shared by the
///               processors. So busy workers beyond the processors gain nothing
///   caller      the seconds of receive: one batch at a time
///
/// The loader's thread does the wrapped loader's, the gather's and the batch's work one after another.
/// Workers go on while it gathers, so it only waits for the rest of their time. It enqueues copies in parts,
/// two at a time (CopyPacer in the loader), and waits for the others. That sets no pace: if the link is idle
/// when a batch begins and the consumer waits, the parts are enqueued at once. Two copy streams take turns,
/// so that one batch's transfer hides another's kernel, and half of a kernel's latency. A slot goes through
/// transfer, kernel and step before it is used again, and there is one more slot than batches ahead.
namespace penstock {

namespace {

using Curve = LinkProfile::Curve;
using Gather = LinkProfile::Gather;

constexpr double kCopyStreams = 2;
// Copies are in small parts if a batch takes this many times as long as its bytes (CopyPacer).
constexpr double kSpare = 1.5;
constexpr double kPartsAtATime = 2;
// A measured widening writes float32 for uint8.
constexpr double kMeasuredWidening = 4;
// Kernels must be this many times as fast as copy engines to be worth their multiprocessors.
constexpr double kWorthMultiprocessors = 1.25;
// The host must be this many times as fast as either to be worth its processors.
constexpr double kWorthProcessors = 2.0;

constexpr const char* kNoSamples = "a batch has no samples";

void check(bool holds, const char* message) {
  if (!holds) throw InvalidArgument(fmt::format("This feed cannot be modelled: {}.", message));
}

/// Bytes per second of the largest copy of a curve; `otherwise` if it has none.
double last_rate(const LinkProfile& profile, Curve curve, double otherwise) {
  const auto found = profile.curves.find(curve);
  if (found == profile.curves.end() || found->second.empty()) return otherwise;
  const double rate = static_cast<double>(found->second.back().bytes) / found->second.back().seconds;
  return rate > 0 ? rate : otherwise;
}

/// Seconds of the smallest copy of a curve; 0 if it has none.
double latency(const LinkProfile& profile, Curve curve) {
  const auto found = profile.curves.find(curve);
  return found == profile.curves.end() || found->second.empty() ? 0 : found->second.front().seconds;
}

double link_rate(const LinkProfile& profile, const DeviceTuning& tuning) {
  return last_rate(profile, Curve::pinned_h2d, tuning.unstated_link_rate);
}

/// Seconds of a kernel for `samples` in device memory. If it was not measured, it takes its bytes as long as
/// copies do, which read and write each of theirs.
double kernel_seconds(const LinkProfile& profile, const DeviceTuning& tuning, const ModelledField& field,
                      double samples) {
  const auto read = static_cast<double>(field.sample_bytes);
  const auto written = static_cast<double>(field.delivered_bytes);
  const Gather gather = field.converts ? Gather::widening : Gather::resident;
  if (const auto measured = profile.gather_seconds(gather, field.sample_bytes, samples)) {
    const double measured_bytes = (field.converts ? 1 + kMeasuredWidening : 2) * read;
    return *measured * (read + written) / measured_bytes;
  }
  const double copied = samples * (read + written) / 2;
  const auto found = profile.curves.find(Curve::device_d2d);
  const bool known = found != profile.curves.end() && !found->second.empty();
  const double seconds = known ? profile.predict(static_cast<std::size_t>(std::ceil(copied)), 1,
                                                 {MemoryKind::device, MemoryKind::device})
                               : copied / tuning.device_copy_rate;
  return seconds / tuning.feeding.kernel_share;
}

/// Blocks of both streams' kernels that read over the link (blocks_over_link in the loader).
double link_blocks(const DeviceTuning& tuning, const ModelledField& field) {
  const double blocks = field.converts ? tuning.converting_blocks : tuning.copying_blocks;
  const double widened = std::floor(1 / (1 - field.resident)) * blocks;
  return kCopyStreams * std::min<double>(widened, tuning.most_blocks);
}

/// Adds up the stages of a batch, field by field.
class Stages {
 public:
  Stages(const LinkProfile& profile, const DeviceTuning& tuning, const ModelledFeed& feed)
      : profile_(profile),
        tuning_(tuning),
        feed_(feed),
        loader_(predict_loader(feed.loader)),
        link_rate_(link_rate(profile, tuning)) {}

  void add(const ModelledField& field, FeedPrediction& sums) {
    const auto batch = static_cast<double>(feed_.batch);
    const double streamed = batch * (1 - field.resident);
    sums.batch_seconds += tuning_.feeding.field_seconds;
    if (streamed > 0 && field.path == GatherPath::zero_copy) return add_kernel(field, sums);
    if (streamed > 0) add_listed(field, streamed, sums);
    if (field.converts || field.resident > 0) {
      sums.kernel_seconds += kernel_seconds(profile_, tuning_, field, batch);
    }
  }

  /// The batch with its copies in parts as the loader cuts them.
  [[nodiscard]] FeedPrediction finished(const FeedPrediction& sums) const {
    const auto slots = static_cast<double>(feed_.prefetch_depth + 1);
    const auto small = static_cast<double>(tuning_.small_part_bytes);
    if (copied_bytes_ * slots <= kPartsAtATime * small) return in_parts(sums, copied_bytes_);
    const FeedPrediction large = in_parts(sums, static_cast<double>(tuning_.large_part_bytes));
    return large.seconds * link_rate_ > kSpare * copied_bytes_ ? in_parts(sums, small) : large;
  }

 private:
  [[nodiscard]] FeedPrediction in_parts(FeedPrediction batch, double part) const {
    // Parts of a batch are about of the same size (CopyPacer).
    const double parts = copied_bytes_ > part ? std::ceil(copied_bytes_ / part) : 0;
    const double more = parts * tuning_.feeding.part_seconds;
    batch.transfer_seconds += more;
    batch.batch_seconds += parts * tuning_.feeding.enqueue_seconds;
    const double own = batch.gather_seconds + batch.batch_seconds;
    batch.loader_seconds = std::max(loader_.caller_seconds, loader_.seconds - own);
    const double host = batch.loader_seconds + own;
    const double step = batch.step_seconds + tuning_.feeding.step_seconds;
    const double slot = batch.transfer_seconds + batch.kernel_seconds + step;
    const double others = std::max({batch.transfer_seconds, batch.kernel_seconds, step,
                                    slot / static_cast<double>(feed_.prefetch_depth + 1)});
    if (copied_bytes_ > 0 && host < others)
      batch.pacing_seconds = (copy_seconds_ + more) * std::max(0.0, 1 - kPartsAtATime / parts);
    batch.seconds = std::max(host, others);
    return batch;
  }

  /// The host lists the samples, and copies take them over the link.
  void add_listed(const ModelledField& field, double streamed, FeedPrediction& sums) {
    const auto stored = static_cast<double>(field.sample_bytes);
    if (field.path == GatherPath::host) {
      double seconds = shuffled_seconds(profile_, tuning_, GatherPath::host, field.sample_bytes, streamed);
      if (feed_.threads != 0 && profile_.gather_threads != 0) {
        seconds *= static_cast<double>(profile_.gather_threads) / feed_.threads;
      }
      sums.gather_seconds += seconds;
    }
    const bool each = field.path == GatherPath::copy_engine && !field.in_sequence;
    if (each) sums.batch_seconds += streamed * tuning_.feeding.copy_seconds;
    const double seconds =
        each ? shuffled_seconds(profile_, tuning_, GatherPath::copy_engine, field.sample_bytes, streamed)
             : streamed * stored / link_rate_ + profile_.copy_interval;
    sums.transfer_seconds += seconds;
    copy_seconds_ += seconds;
    // Kernels that join the samples with resident ones have their lists copied.
    if (field.resident > 0) sums.transfer_seconds += profile_.copy_interval;
    copied_bytes_ += streamed * stored;
  }

  /// One kernel reads the link and device memory, and writes the slot. A block takes one sample after the
  /// other, so it does not read the link while it copies a resident one.
  void add_kernel(const ModelledField& field, FeedPrediction& sums) const {
    const auto batch = static_cast<double>(feed_.batch);
    const double resident = batch * field.resident;
    const double seconds =
        shuffled_seconds(profile_, tuning_, GatherPath::zero_copy, field.sample_bytes, batch - resident);
    const double read = resident * static_cast<double>(field.sample_bytes);
    const double copied = std::max(kernel_seconds(profile_, tuning_, field, resident),
                                   read / (link_blocks(tuning_, field) * tuning_.feeding.block_rate));
    sums.transfer_seconds += seconds + copied + latency(profile_, Curve::zero_copy_h2d) / kCopyStreams;
    if (field.converts) sums.kernel_seconds += kernel_seconds(profile_, tuning_, field, batch);
  }

  const LinkProfile& profile_;
  const DeviceTuning& tuning_;
  const ModelledFeed& feed_;
  const LoaderPrediction loader_;
  const double link_rate_;
  double copied_bytes_ = 0;
  double copy_seconds_ = 0;
};

void check(const ModelledFeed& feed) {
  check(feed.batch > 0, kNoSamples);
  check(feed.prefetch_depth > 0, "no batch is ahead of the consumer");
  check(feed.step_seconds >= 0, "the step's time is negative");
  for (const ModelledField& field : feed.fields) {
    check(field.sample_bytes > 0 && field.delivered_bytes > 0, "a sample has no bytes");
    check(field.path != GatherPath::automatic, "a field has no gather path");
    check(field.resident >= 0 && field.resident <= 1, "a resident share is not from 0 to 1");
  }
}

/// The part of a batch's fetch and collate that passes until the next batch. The processors may allow less at
/// a time than the workers.
double share_of_batch(const ModelledLoader& loader) {
  const double made = loader.fetch_seconds + loader.collate_seconds;
  if (loader.workers == 0 || made <= 0) return 1;
  const LoaderPrediction prediction = predict_loader(loader);
  return std::max(prediction.worker_seconds, prediction.processor_seconds) / made;
}

/// What an account of such batches would say.
FeedLimit limit_of(const FeedPrediction& batch, const ModelledLoader& loader) {
  constexpr std::uint64_t kBatches = 1000;
  const auto all = [](double seconds) { return seconds * static_cast<double>(kBatches); };
  FeedStatistics account;
  account.batches = account.timed_batches = kBatches;
  account.stall_seconds = all(batch.stall_seconds);
  account.compute_seconds = all(batch.step_seconds);
  account.loader_seconds = all(batch.loader_seconds);
  // If nothing but a rate was measured, it stands for all stages.
  if (loader.workers > 0 || loader.collate_seconds > 0) {
    const double share = share_of_batch(loader);
    account.fetch_seconds = all(loader.fetch_seconds * share);
    account.collate_seconds = all(loader.collate_seconds * share);
    account.receive_seconds = loader.workers > 0 ? all(loader.receive_seconds) : 0;
  }
  account.gather_seconds = all(batch.gather_seconds);
  // The account times a batch's copies and kernels together, and names them after the link if it is used.
  const double on_device = all(std::max(batch.transfer_seconds, batch.kernel_seconds));
  (batch.transfer_seconds > 0 ? account.transfer_seconds : account.kernel_seconds) = on_device;
  return account.limited_by();
}

}  // namespace

LoaderPrediction predict_loader(const ModelledLoader& loader) {
  const double made = loader.fetch_seconds + loader.collate_seconds;
  check(loader.fetch_seconds >= 0 && loader.collate_seconds >= 0 && loader.receive_seconds >= 0,
        "a time of the loader is negative");
  // Sums are rounded.
  check(loader.waiting_seconds >= 0 && loader.waiting_seconds <= made * (1 + 1e-9),
        "the loader waits for longer than it fetches and collates");
  check(loader.processors > 0, "the loader has no processor");
  LoaderPrediction result;
  if (loader.workers == 0) {
    result.caller_seconds = made;
  } else {
    result.caller_seconds = loader.receive_seconds;
    result.worker_seconds = made / loader.workers;
    result.processor_seconds =
        (std::max(0.0, made - loader.waiting_seconds) + result.caller_seconds) / loader.processors;
  }
  result.seconds = std::max({result.worker_seconds, result.processor_seconds, result.caller_seconds});
  return result;
}

double shuffled_seconds(const LinkProfile& profile, const DeviceTuning& tuning, GatherPath path,
                        std::size_t bytes, double samples) {
  check(path != GatherPath::automatic, "a field has no gather path");
  const Gather gather = path == GatherPath::host        ? Gather::host
                        : path == GatherPath::zero_copy ? Gather::zero_copy
                                                        : Gather::copy_engine;
  if (const auto measured = profile.gather_seconds(gather, bytes, samples)) return *measured;
  const DeviceTuning::Feeding& feeding = tuning.feeding;
  const auto size = static_cast<double>(bytes);
  const double link = link_rate(profile, tuning);
  if (path == GatherPath::host) {
    return samples *
           std::max(size / last_rate(profile, Curve::staged_h2d, link), feeding.host_sample_seconds);
  }
  if (path == GatherPath::zero_copy) {
    return samples *
           std::max(size / last_rate(profile, Curve::zero_copy_h2d, link), feeding.link_sample_seconds);
  }
  if (bytes >= tuning.copied_sample_bytes) return samples * size / link;
  return samples * std::max(size / (feeding.small_copy_share * link), feeding.small_copy_seconds);
}

GatherRates gather_rates(const LinkProfile& profile, const DeviceTuning& tuning, std::size_t bytes,
                         std::size_t samples, bool in_sequence) {
  check(samples > 0, kNoSamples);
  const double link = link_rate(profile, tuning);
  const auto count = static_cast<double>(samples);
  const auto rate = [&](GatherPath path) {
    return count * static_cast<double>(bytes) / shuffled_seconds(profile, tuning, path, bytes, count);
  };
  return {.by_host = std::min(rate(GatherPath::host), link),
          .by_kernels = rate(GatherPath::zero_copy),
          .by_copies = in_sequence ? link
                                   : std::min(rate(GatherPath::copy_engine),
                                              static_cast<double>(bytes) / tuning.feeding.copy_seconds)};
}

bool copies_pay(const GatherRates& rates) noexcept {
  return rates.by_kernels <= kWorthMultiprocessors * rates.by_copies &&
         rates.by_host <= kWorthProcessors * rates.by_copies;
}

bool kernels_pay(const GatherRates& rates) noexcept {
  return rates.by_host <= kWorthProcessors * rates.by_kernels;
}

FeedPrediction predict_feed(const LinkProfile& profile, const DeviceTuning& tuning,
                            const ModelledFeed& feed) {
  check(feed);
  FeedPrediction result;
  result.step_seconds = feed.step_seconds;
  result.batch_seconds = tuning.feeding.batch_seconds;
  Stages stages(profile, tuning, feed);
  for (const ModelledField& field : feed.fields) stages.add(field, result);

  result = stages.finished(result);
  result.stall_seconds = result.seconds - result.step_seconds;
  result.exposed_transfer_seconds = std::min(result.stall_seconds, result.transfer_seconds);
  result.limited_by = limit_of(result, feed.loader);
  return result;
}

}  // namespace penstock
