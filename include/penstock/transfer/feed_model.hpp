#pragma once

#include <penstock/core/feed_statistics.hpp>
#include <penstock/device/device_tuning.hpp>
#include <penstock/transfer/gather_path.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <cstddef>
#include <vector>

namespace penstock {

/// The model of a feed: what a way of feeding would give, before anything is fed. All functions are pure:
/// they ask no device. What was measured comes from the LinkProfile, the rest from DeviceTuning::feeding.
///
/// The stages of a feed run side by side, so the slowest one sets the pace (docs/measuring.md).

/// How the samples of one field travel.
struct ModelledField {
  GatherPath path = GatherPath::zero_copy;  ///< of the samples that stream; not `automatic`
  std::size_t sample_bytes = 0;             ///< as stored
  std::size_t delivered_bytes = 0;          ///< of a sample
  bool converts = false;                    ///< widened or scaled on the device
  double resident = 0;                      ///< share of the samples, 0 to 1
  bool in_sequence = false;                 ///< successive samples: one copy takes a batch
};

/// Another loader that makes the batches, such as PyTorch's DataLoader, whose workers are processes. Seconds
/// are those of a batch. A loader whose rate was measured is one without workers, of which only
/// `fetch_seconds` is set. By default there is none.
struct ModelledLoader {
  double fetch_seconds = 0;    ///< a process makes its samples
  double collate_seconds = 0;  ///< a process makes a batch of them; a worker also sends it
  double waiting_seconds = 0;  ///< of both, the process needs no processor, such as for a disk
  double receive_seconds = 0;  ///< the calling process takes it from a worker, and pins it if it does so
  unsigned workers = 0;        ///< 0: the calling thread does everything in turn
  unsigned processors = 1;     ///< that the workers and the calling process share
};

/// Seconds from one batch to the next, in the steady state, if only that stage set the pace.
struct LoaderPrediction {
  double worker_seconds = 0;     ///< the workers side by side; 0 without workers
  double processor_seconds = 0;  ///< what all processes ask of the processors; 0 without workers
  double caller_seconds = 0;     ///< the calling process; without workers, it does everything
  double seconds = 0;            ///< the longest of these
};

/// How fast a loader makes batches, if its consumer does not hold it up. A worker that waits needs no
/// processor, so more workers than processors may pay. How many batches a worker prefetches does not matter
/// in the steady state. Throws InvalidArgument for negative seconds, a waiting longer than fetch and collate,
/// and no processor.
[[nodiscard]] LoaderPrediction predict_loader(const ModelledLoader& loader);

struct ModelledFeed {
  std::vector<ModelledField> fields;
  std::size_t batch = 0;  ///< samples
  /// Seconds of the consumer's stream between two batches. The host does not wait for that work.
  double step_seconds = 0;
  ModelledLoader loader = {};  ///< that is wrapped
  std::size_t prefetch_depth = 2;
  unsigned threads = 0;  ///< of the host, that gather; 0: as many as were measured
};

/// Seconds of each stage for a batch, in the steady state.
struct FeedPrediction {
  double loader_seconds = 0;    ///< the loader's thread is in the wrapped loader
  double gather_seconds = 0;    ///< host threads that gather
  double batch_seconds = 0;     ///< fixed costs of the loader's thread
  double pacing_seconds = 0;    ///< the same thread then waits until parts of the batch's copies are done
  double transfer_seconds = 0;  ///< over the link
  double kernel_seconds = 0;    ///< device memory: kernels that widen, or gather resident samples
  double step_seconds = 0;      ///< the consumer's work
  double seconds = 0;           ///< from one batch to the next
  double stall_seconds = 0;     ///< of them, the consumer waits
  double exposed_transfer_seconds = 0;  ///< of the stall, the batch's transfer runs
  FeedLimit limited_by = FeedLimit::unknown;
};

/// Throws InvalidArgument for a field without bytes or of the path `automatic`, a batch of no samples, a
/// prefetch depth of 0, a resident share outside 0 to 1, negative seconds, and what predict_loader refuses.
[[nodiscard]] FeedPrediction predict_feed(const LinkProfile& profile, const DeviceTuning& tuning,
                                          const ModelledFeed& feed);

/// Seconds that `samples` of `bytes` each take in a shuffled batch: of the host's threads for `host`, of the
/// link for the others. Throws InvalidArgument for `automatic`.
[[nodiscard]] double shuffled_seconds(const LinkProfile& profile, const DeviceTuning& tuning, GatherPath path,
                                      std::size_t bytes, double samples);

/// Bytes per second at which batches reach the device.
struct GatherRates {
  double by_host = 0;  ///< host threads, or the link if that is slower
  double by_kernels = 0;
  double by_copies = 0;  ///< of the link, or of the thread that enqueues them if that is slower
};
/// Of batches of `samples` of `bytes` each, shuffled or `in_sequence`. Throws InvalidArgument for 0
/// samples.
[[nodiscard]] GatherRates gather_rates(const LinkProfile& profile, const DeviceTuning& tuning,
                                       std::size_t bytes, std::size_t samples, bool in_sequence);
/// True if the copy engines are nearly as fast as kernels, or faster, and the host is not twice as fast.
/// Copies take no multiprocessor, and kernels no processor time, so a slower way may be the better one.
[[nodiscard]] bool copies_pay(const GatherRates& rates) noexcept;
/// True unless the host is twice as fast.
[[nodiscard]] bool kernels_pay(const GatherRates& rates) noexcept;

}  // namespace penstock
