#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace penstock {

/// Chooses the samples of each batch, in place of a Loader's own order: see LoaderOptions::batch_sampler.
/// Called within Loader::next, on the threads that call it, one at a time. If other threads wait there,
/// Loader::start_epoch calls it, too. It must not use the loader.
class BatchSampler {
 public:
  /// Thrown by next(), for a signal perhaps: Loader::next throws it at once, and the batch may be asked for
  /// again. Other exceptions are thrown in the place of their batch.
  struct Interrupted {};

  /// Indices of a batch that stay in the sampler's own memory, for as long as `owner` is kept.
  struct Lent {
    std::span<const std::uint64_t> indices;
    std::shared_ptr<const void> owner;
  };

  BatchSampler() = default;
  BatchSampler(const BatchSampler&) = delete;
  BatchSampler& operator=(const BatchSampler&) = delete;
  virtual ~BatchSampler() = default;

  /// Called before the first batch of each epoch is drawn, not before someone asks for it.
  virtual void start_epoch(std::uint64_t epoch) = 0;
  /// Appends the indices of the next batch's samples to `indices`, which is empty: at least one and at most
  /// LoaderOptions::batch_size, each below the number of samples. Indices may repeat. Returns false at the
  /// end of the epoch.
  virtual bool next(std::vector<std::uint64_t>& indices) = 0;
  /// The epoch in which the samples of the latest batch are read: see FieldReader::gather_in_epoch. `epoch`:
  /// that of start_epoch.
  [[nodiscard]] virtual std::uint64_t reading_epoch(std::uint64_t epoch) const { return epoch; }
  /// False if next() would have to wait. It is then called only once the batch is needed, and not ahead.
  [[nodiscard]] virtual bool is_ready() const { return true; }
  /// As next(), but for a sampler that has the batch's indices in memory: sets `lent`. The loader's thread
  /// copies them, in place of the one that asks. False if there is no such batch; next() is called then. The
  /// owner may be let go on any thread.
  virtual bool lend(Lent& lent) {
    static_cast<void>(lent);
    return false;
  }
  /// True if others may overwrite samples while they are read. Loader::next then blocks the host until a
  /// batch's samples have been read, and drops the batch unless it is_whole. For one device over its own
  /// link.
  [[nodiscard]] virtual bool may_tear() const noexcept { return false; }
  /// False if a sample of the batch may have been overwritten since it was drawn. `epoch`: what reading_epoch
  /// gave for the batch. Called by any thread, also while another one is in next().
  [[nodiscard]] virtual bool is_whole(std::uint64_t /*epoch*/) const { return true; }
};

/// True if each index is below `count`, which is at most 2^63.
[[nodiscard]] bool are_below(std::span<const std::uint64_t> indices, std::uint64_t count) noexcept;

}  // namespace penstock
