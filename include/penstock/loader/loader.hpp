#pragma once

#include <penstock/core/feed_statistics.hpp>
#include <penstock/core/function_ref.hpp>
#include <penstock/core/worker_team.hpp>
#include <penstock/data/dataset.hpp>
#include <penstock/data/sampler.hpp>
#include <penstock/device/device.hpp>
#include <penstock/loader/device_batch.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

/// How a batch's samples are brought together.
enum class GatherPath : std::uint8_t {
  automatic,  ///< for each field: copy-engine where its samples take 32 KiB or more, or all come unshuffled,
              ///< and the device takes many copies in one call; otherwise zero-copy, unless the link profile
              ///< speaks against it; host where the samples do not lie in memory that can be locked
  host,       ///< host threads copy them into a pinned slot, which then crosses the link in one copy
  zero_copy,  ///< a kernel reads them over the link out of the dataset's own memory, locked once
  copy_engine,  ///< the copy engines do, a copy for each sample: no multiprocessor is taken from the consumer
};

/// "automatic", "host", "zero-copy", "copy-engine".
[[nodiscard]] std::string_view gather_path_name(GatherPath path) noexcept;
/// Inverse of gather_path_name. Throws InvalidArgument.
[[nodiscard]] GatherPath parse_gather_path(std::string_view name);

/// How much of the dataset stays in device memory. It is moved there once and served from there; the rest
/// streams. Order and bytes of the batches are the same at every residency.
struct Residency {
  enum class Kind : std::uint8_t {
    none,
    all,        ///< OutOfMemory where it does not fit the budget
    fraction,   ///< of the samples; OutOfMemory where they do not fit
    automatic,  ///< as much as fits, the fields of the smallest samples first
  };
  Kind kind = Kind::none;
  double fraction = 0;  ///< 0 to 1, for Kind::fraction

  /// "none", "all", "auto", or a fraction such as "0.25" or "25%". Throws InvalidArgument.
  [[nodiscard]] static Residency parse(std::string_view text);
};

/// How one field is delivered.
struct FieldOptions {
  std::string name;
  /// Widened on the way to this type: see can_widen. None: as stored (narrowed integers as before narrowing).
  std::optional<DType> to = std::nullopt;
  /// value * scale + shift, in float32: one each, or one for each extent of `channel_axis`; empty: none. For
  /// `to` of float16, bfloat16 or float32.
  std::vector<float> scale{};
  std::vector<float> shift{};
  std::size_t channel_axis = 0;  ///< of the sample's shape
};

/// What `scale` and `shift` come to for each channel, as GatherRequest takes them.
struct ChannelFactors {
  std::vector<float> scale;  ///< as many as channels, or none
  std::vector<float> shift;
  std::uint32_t channels = 1;
  std::size_t channel_elements = 1;  ///< consecutive elements of one channel
};

/// Throws InvalidArgument where the field has not as many channels as `options` has values.
[[nodiscard]] ChannelFactors channel_factors(const Field& field, const FieldOptions& options);

struct LoaderOptions {
  static constexpr unsigned kMostThreads = WorkerTeamOptions::kMostThreads;

  std::uint64_t batch_size = 1;
  bool shuffle = false;
  std::uint64_t seed = 0;
  /// Leaves out an epoch's last batch where it is not full.
  bool drop_last = false;
  Shard shard{};

  /// Batches ready or on their way ahead of the consumer: 1 to 64.
  std::size_t prefetch_depth = 2;
  Residency residency{};
  GatherPath gather = GatherPath::automatic;
  /// Fields that are not delivered as they are stored.
  std::vector<FieldOptions> fields{};
  /// Integer fields of at most 512 MiB cross the link in the narrowest type that holds all their values, and
  /// widen on arrival. Costs one pass over them when the loader is made.
  bool narrow = true;

  /// Most device memory that the loader takes, for its ring, what is resident, and what lands there before it
  /// is converted (two batches as stored). 0: half of what the device has free.
  std::size_t device_budget_bytes = 0;
  /// Fields in memory of at most this size are copied into locked memory when the loader is made; larger ones
  /// are locked where they lie (with the array that they are a slice of). Small arrays share their pages with
  /// other data, of which other libraries' transfers fail once a part of it lies in a locked page.
  std::size_t copy_limit_bytes = std::size_t{32} << 20;
  /// Host threads that gather, the loader's own among them: at most kMostThreads. 0: as processors allow, at
  /// most 8.
  unsigned threads = 0;
  /// Blocks of a kernel that reads over the link; few leave room for the consumer's kernels. 0: 4, or
  /// 8 where it widens, and more (to 32) the more of a field is resident. Where given, `automatic` takes no
  /// copy engine.
  unsigned gather_blocks = 0;
  /// What the link does. None: LinkProfile::defaults.
  std::optional<LinkProfile> profile = std::nullopt;
  /// Batches whose times are kept for timeline().
  std::size_t timeline_batches = 256;
};

/// Feeds a dataset to a device, epoch after epoch: it begins at construction and runs prefetch_depth batches
/// ahead. Thread-safe: several threads may ask for batches, and each gets different ones.
class Loader {
 public:
  /// Allocates everything that the steady state needs: the device ring, pinned memory, streams, events and
  /// threads. Locks the dataset's memory where it is read over the link, about 30 ms per GiB. What is
  /// resident is moved in the background, and next() waits for it. Throws InvalidArgument for options that do
  /// not fit the dataset, and OutOfMemory that names both sizes where the budget is too small for one batch
  /// or for the residency asked for.
  Loader(Dataset dataset, Device device, LoaderOptions options = {});
  /// Ends calls of next() in other threads with Closed, stops the stages, and waits for copies that are
  /// under way: these wait for what was queued on batches that were let go. Batches still held stay valid.
  ~Loader();
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;

  /// The next batch; nullopt at the end of an epoch, after which the next call begins the next epoch. Work
  /// enqueued on `stream` from now on finds the batch there. Blocks the host only until the batch's copy is
  /// enqueued, not until it is done. Throws what went wrong in any stage, at the batch where it did, and then
  /// again until start_epoch or restore; Closed after close(); and OutOfMemory where the budget is used up by
  /// batches that the calling thread itself holds.
  [[nodiscard]] std::optional<DeviceBatch> next(const Stream& stream);
  /// As next(stream). If the batch is not there yet, calls `while_waiting` about every 50 ms on this thread
  /// until it is, so that a long wait can be given up: what `while_waiting` throws is thrown here, and the
  /// batch is left for the next call. `while_waiting` may use the loader, and may close it.
  [[nodiscard]] std::optional<DeviceBatch> next(const Stream& stream, FunctionRef<void()> while_waiting);

  /// Goes to the beginning of `epoch`; costs nothing where that comes next anyway. Batches that are held stay
  /// valid.
  void start_epoch(std::uint64_t epoch);
  /// After the batches that next() has given out, for restore() in this process or another, at this or
  /// another world size.
  [[nodiscard]] SamplerState state() const;
  /// Goes on where `state` was taken; see Sampler::restore.
  void restore(const SamplerState& state);

  /// Batches and samples that this rank gets in a whole epoch.
  [[nodiscard]] std::uint64_t batches_per_epoch() const noexcept;
  [[nodiscard]] std::uint64_t samples_per_epoch() const noexcept;
  /// Batches that this rank still gets in the current epoch after those given out.
  [[nodiscard]] std::uint64_t batches_left() const;

  /// Since construction. Work on the device that has not ended yet is not in it: synchronize the consumer's
  /// stream first for exact figures. Does not block.
  [[nodiscard]] FeedStatistics stats() const;
  /// Of one epoch; nullopt for one that did not begin, or is more than 64 epochs ago.
  [[nodiscard]] std::optional<FeedStatistics> epoch_stats(std::uint64_t epoch) const;
  /// The latest batches that are over, oldest first.
  [[nodiscard]] std::vector<BatchTimes> timeline() const;

  /// One line for each field: how it travels and why, such as "images: uint8 3x224x224, zero-copy, delivered
  /// as float32".
  [[nodiscard]] std::vector<std::string> describe() const;
  [[nodiscard]] const Dataset& dataset() const noexcept;
  [[nodiscard]] const Device& device() const noexcept;
  [[nodiscard]] const LoaderOptions& options() const noexcept;

  /// Stops as the destructor does; next() then throws Closed. Statistics remain.
  void close();

 private:
  std::shared_ptr<class LoaderState> state_;
};

}  // namespace penstock
