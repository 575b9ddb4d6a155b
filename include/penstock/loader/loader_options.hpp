#pragma once

#include <penstock/core/dtype.hpp>
#include <penstock/core/host_workers.hpp>
#include <penstock/data/batch_sampler.hpp>
#include <penstock/data/sampler.hpp>
#include <penstock/transfer/gather_path.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

/// How much of the dataset stays in device memory. The resident samples are moved there once; the others
/// cross the link in each epoch. Order and bytes of the batches are the same at every residency.
struct Residency {
  enum class Kind : std::uint8_t {
    none,
    all,        ///< OutOfMemory if the dataset does not fit the budget
    fraction,   ///< of the samples; OutOfMemory if they do not fit
    automatic,  ///< as much as fits, the fields of the smallest samples first
  };
  Kind kind = Kind::none;
  double fraction = 0;  ///< 0 to 1, for Kind::fraction

  /// "none", "all", "auto", or a fraction such as "0.25" or "25%". Throws InvalidArgument.
  [[nodiscard]] static Residency parse(std::string_view text);
};

/// What next() does while the ring is full: every slot is leased, and the budget does not allow another.
enum class WhenFull : std::uint8_t {
  wait,  ///< waits for a lease to end, for at most LoaderOptions::full_patience; then throws OutOfMemory
  fail,  ///< throws OutOfMemory at once
};

/// "wait", "fail". Throws InvalidArgument.
[[nodiscard]] WhenFull parse_when_full(std::string_view name);

/// How one field is delivered.
struct FieldOptions {
  std::string name;
  /// The type that values are widened to: see can_widen. None: as stored, narrowed integers widened back.
  std::optional<DType> to = std::nullopt;
  /// Delivers value * scale + shift, computed in float32. One value for all, or one for each index of
  /// `channel_axis`; empty: none. Only for fields delivered as float16, bfloat16 or float32.
  std::vector<float> scale{};
  std::vector<float> shift{};
  std::size_t channel_axis = 0;  ///< of the sample's shape
};

struct LoaderOptions {
  static constexpr unsigned kMostThreads = HostWorkersOptions::kMostThreads;

  std::uint64_t batch_size = 1;
  bool shuffle = false;
  std::uint64_t seed = 0;
  /// Leaves out an epoch's last batch if it is not full.
  bool drop_last = false;
  Shard shard{};
  /// Chooses the samples of each batch, in place of the four members above; `batch_size` is then that of the
  /// largest batch. Null: the loader's own order.
  std::shared_ptr<BatchSampler> batch_sampler = nullptr;

  /// Batches ready or on their way ahead of the consumer: 1 to 64.
  std::size_t prefetch_depth = 2;
  Residency residency{};
  GatherPath gather = GatherPath::automatic;
  /// Host memory for samples of mapped files that are read from a disk. Later epochs do not read those again.
  /// The samples are read past the page cache then. None: the page cache keeps them, unless the files are
  /// larger than the memory that is free.
  std::optional<std::size_t> memory_bytes = std::nullopt;
  /// Fields that are not delivered as they are stored.
  std::vector<FieldOptions> fields{};
  /// The program writes to the arrays while no epoch is under way. So each epoch reads them where they lie:
  /// nothing is copied, narrowed or resident, and host threads gather the small fields. Before it writes, it
  /// calls Loader::synchronize. The arrays stay where they are.
  bool data_may_change = false;
  /// Integer fields of at most 512 MiB cross the link in the narrowest type that holds all their values. The
  /// device widens them back. Costs one pass over them when the loader is made.
  bool narrow = true;

  /// The most device memory that the loader takes: for its ring, the resident samples, and the staging
  /// buffers of samples that a kernel converts (two batches as stored). 0: half of the free memory.
  std::size_t device_budget_bytes = 0;
  /// If leases leave too few slots for the batches ahead, the ring gets more. False: batches lie, in turn, at
  /// `prefetch_depth` + 1 sets of addresses for good, and a lease that is held takes the place of one ahead.
  /// If memory is short, it is OutOfMemory then, and not a smaller ring.
  bool ring_grows = true;
  WhenFull when_full = WhenFull::wait;
  std::chrono::milliseconds full_patience{10'000};
  /// A field in memory of at most this size is copied into pinned memory when the loader is made. A larger
  /// one is page-locked where it lies, with the array that it is a slice of. Small arrays share their pages
  /// with other data, and another library's transfer fails if a part of its memory lies in a locked page.
  std::size_t copy_limit_bytes = std::size_t{32} << 20;
  /// If several fields have small samples (64 bytes or less) in memory, they are copied into rows when the
  /// loader is made, a row for each sample, and cross the link together. The most locked host memory that the
  /// rows take; what does not fit stays where it is, the widest fields first. 0: default_row_budget. With a
  /// `copy_limit_bytes` of 0 there are no rows.
  std::size_t row_budget_bytes = 0;
  /// An eighth of the host's memory.
  [[nodiscard]] static constexpr std::size_t default_row_budget(std::size_t host_bytes) noexcept {
    return host_bytes / 8;
  }
  /// The team of threads that gather. Null: the device's, or the loader's own if `threads` is given.
  std::shared_ptr<HostWorkers> workers = nullptr;
  /// Host threads that gather a batch, with the loader's own: at most kMostThreads. 0: at most 8, within the
  /// team's threads.
  unsigned threads = 0;
  /// Blocks of a kernel that reads over the link. Few leave room for the consumer's kernels. 0: 4, or 8 if it
  /// converts, and up to 32 if much of a field is resident. If given, `automatic` does not choose
  /// `copy_engine`.
  unsigned gather_blocks = 0;
  /// The link's measured profile. None: LinkProfile::defaults.
  std::optional<LinkProfile> profile = std::nullopt;
  /// Batches whose times are kept for timeline().
  std::size_t timeline_batches = 256;
};

}  // namespace penstock
