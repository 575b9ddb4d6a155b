#pragma once

#include <penstock/core/sample_run.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

namespace penstock {

/// This process's part of every epoch, by the rules of PyTorch's DistributedSampler: position p of the
/// epoch's order belongs to rank p mod world_size. If the samples do not divide evenly, the order wraps
/// around to its beginning, or loses its tail with `drop_last`.
struct Shard {
  std::uint64_t rank = 0;
  std::uint64_t world_size = 1;
  bool drop_last = false;
};

struct SamplerOptions {
  bool shuffle = false;
  std::uint64_t seed = 0;
  std::uint64_t batch_size = 1;
  /// Leaves out an epoch's last batch if it is not full.
  bool drop_last = false;
  Shard shard{};
  /// If given, an epoch has so many samples, at most sample_count, and they come in sequence, also with
  /// `shuffle`: see FieldReader::samples_in_epoch.
  std::function<std::uint64_t(std::uint64_t epoch)> samples_in_epoch = nullptr;
};

/// How far all ranks together have come. These are plain numbers that may be stored in any format. They are
/// the same on every rank that has taken the same number of batches. The first four must agree on restoring.
struct SamplerState {
  std::uint64_t sample_count = 0;
  std::uint64_t seed = 0;
  bool shuffle = false;
  std::uint32_t order_version = KeyedPermutation::kVersion;
  std::uint64_t epoch = 0;
  std::uint64_t consumed = 0;  ///< positions of the epoch's order that are done, over all ranks

  friend bool operator==(const SamplerState&, const SamplerState&) = default;
};

/// Says which samples make up the batches of each epoch, in constant memory. An epoch's order follows from
/// (seed, epoch) alone. Not thread-safe; cheap to copy.
class Sampler {
 public:
  /// Starts at epoch 0. Throws InvalidArgument if there are no samples, the batch size is 0, no epoch fills a
  /// batch under drop_last, or the rank is not below the world size.
  Sampler(std::uint64_t sample_count, SamplerOptions options);

  [[nodiscard]] const SamplerOptions& options() const noexcept { return options_; }
  [[nodiscard]] std::uint64_t sample_count() const noexcept { return sample_count_; }

  /// Samples and batches that this rank gets in the whole of the current epoch.
  [[nodiscard]] std::uint64_t samples_per_epoch() const noexcept;
  [[nodiscard]] std::uint64_t batches_per_epoch() const noexcept;
  /// Samples and batches that this rank still gets in the current epoch.
  [[nodiscard]] std::uint64_t samples_left() const noexcept;
  [[nodiscard]] std::uint64_t batches_left() const noexcept;

  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }
  /// Goes to the beginning of `epoch`. Throws what samples_in_epoch throws, and changes nothing then.
  void start_epoch(std::uint64_t epoch);

  /// Writes the next batch's indices and returns their number: batch_size, fewer for an epoch's last batch, 0
  /// at its end. Throws InvalidArgument if `indices` is shorter than the batch.
  std::size_t next(std::span<std::uint64_t> indices);
  /// Takes the next batch without writing indices. The run's count is 0 at the epoch's end.
  [[nodiscard]] SampleRun next_run() noexcept;

  /// The state after the batches that next() gave out. A loader that runs ahead keeps one for each batch.
  [[nodiscard]] SamplerState state() const noexcept;

  /// Goes on where `state` was taken. This sampler's rank, world size and batch size may differ from those
  /// before. The positions not yet consumed are dealt out by the same rules, so every sample of the epoch
  /// comes once, apart from `Shard`'s padding. Throws InvalidArgument, and changes nothing, if sample count,
  /// seed, shuffle or the order's version differ.
  void restore(const SamplerState& state);

 private:
  [[nodiscard]] SampleRun peek() const noexcept;
  [[nodiscard]] std::uint64_t shard_samples(std::uint64_t from) const noexcept;
  [[nodiscard]] std::uint64_t in_batches(std::uint64_t samples) const noexcept;
  [[nodiscard]] std::uint64_t batches_of(std::uint64_t samples) const noexcept;

  [[nodiscard]] std::uint64_t size_of(std::uint64_t epoch) const;

  std::uint64_t sample_count_;
  SamplerOptions options_;
  std::uint64_t size_;  // of the epoch
  std::uint64_t epoch_ = 0;
  std::uint64_t base_ = 0;   // position of the order at which this world size took over
  std::uint64_t taken_ = 0;  // samples that this rank has taken since
  std::optional<KeyedPermutation> order_;
};

}  // namespace penstock
