#pragma once

#include <penstock/core/sample_run.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace penstock {

/// Which part of every epoch is this process's, by the rules of PyTorch's DistributedSampler: the position p
/// of the epoch's order belongs to rank p mod world_size. Where the ranks do not come out even, the order
/// wraps around to its beginning, or with `drop_last` loses its tail.
struct Shard {
  std::uint64_t rank = 0;
  std::uint64_t world_size = 1;
  bool drop_last = false;
};

struct SamplerOptions {
  bool shuffle = false;
  std::uint64_t seed = 0;
  std::uint64_t batch_size = 1;
  /// Leaves out an epoch's last batch where it is not full.
  bool drop_last = false;
  Shard shard{};
};

/// Where in the run of epochs all ranks together are. Plain numbers, to be stored in any format; the same on
/// every rank that has taken the same number of batches. What has to agree on restoring comes first.
struct SamplerState {
  std::uint64_t sample_count = 0;
  std::uint64_t seed = 0;
  bool shuffle = false;
  std::uint32_t order_version = KeyedPermutation::kVersion;
  std::uint64_t epoch = 0;
  std::uint64_t consumed = 0;  ///< positions of the epoch's order that are done, over all ranks

  friend bool operator==(const SamplerState&, const SamplerState&) = default;
};

/// Says which samples make the batches of each epoch, in constant memory. An epoch's order follows from
/// (seed, epoch) alone. Not thread-safe; cheap to copy.
class Sampler {
 public:
  /// Starts at epoch 0. Throws InvalidArgument for no samples, a batch size of 0, a batch that no epoch can
  /// fill under drop_last, or a rank that is not below the world size.
  Sampler(std::uint64_t sample_count, SamplerOptions options);

  [[nodiscard]] const SamplerOptions& options() const noexcept { return options_; }
  [[nodiscard]] std::uint64_t sample_count() const noexcept { return sample_count_; }

  /// Samples and batches that this rank gets in a whole epoch.
  [[nodiscard]] std::uint64_t samples_per_epoch() const noexcept;
  [[nodiscard]] std::uint64_t batches_per_epoch() const noexcept;
  /// Samples and batches that this rank still gets in the current epoch.
  [[nodiscard]] std::uint64_t samples_left() const noexcept;
  [[nodiscard]] std::uint64_t batches_left() const noexcept;

  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }
  /// Goes to the beginning of `epoch`.
  void start_epoch(std::uint64_t epoch);

  /// Writes the next batch's indices and returns how many they are: batch_size, fewer for an epoch's last
  /// batch, 0 at its end. Throws InvalidArgument when `indices` is shorter than the batch.
  std::size_t next(std::span<std::uint64_t> indices);
  /// The same without writing indices: a run whose count is 0 at the epoch's end.
  [[nodiscard]] SampleRun next_run() noexcept;

  /// After the batches that next() has given out. A loader that runs ahead keeps the state with each batch.
  [[nodiscard]] SamplerState state() const noexcept;

  /// Goes on where `state` was taken, at this sampler's rank, world size and batch size, which may be others
  /// than before: the positions not yet consumed are dealt out by the same rules, so that every sample of the
  /// epoch comes once (but for the padding that `Shard` speaks of). Throws InvalidArgument, changing nothing,
  /// where sample count, seed, shuffle or the order's version differ.
  void restore(const SamplerState& state);

 private:
  [[nodiscard]] SampleRun peek() const noexcept;
  [[nodiscard]] std::uint64_t shard_samples(std::uint64_t from) const noexcept;
  [[nodiscard]] std::uint64_t in_batches(std::uint64_t samples) const noexcept;
  [[nodiscard]] std::uint64_t batches_of(std::uint64_t samples) const noexcept;

  std::uint64_t sample_count_;
  SamplerOptions options_;
  std::uint64_t epoch_ = 0;
  std::uint64_t base_ = 0;   // position of the order at which this world size took over
  std::uint64_t taken_ = 0;  // samples that this rank has taken since
  std::optional<KeyedPermutation> order_;
};

}  // namespace penstock
