#pragma once

#include "loader/drawn_batches.hpp"

#include <penstock/data/batch_sampler.hpp>
#include <penstock/data/sampler.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace penstock {

/// How devices share a batch: consecutive samples for each, in proportion to their weights. Where a part ends
/// is rounded to the nearest sample. A value.
class BatchSplit {
 public:
  struct Part {
    std::uint64_t begin = 0;  ///< of the batch's samples
    std::uint64_t count = 0;
  };

  /// `weights`: one for each device, not negative, at least one of them positive.
  explicit BatchSplit(const std::vector<double>& weights);

  /// The part of device `number` in a batch of `samples`. It may be empty, and is if the weight is 0.
  [[nodiscard]] Part part(std::uint64_t samples, std::size_t number) const noexcept;
  /// The most that a part of batches of up to `samples` holds.
  [[nodiscard]] std::uint64_t largest(std::uint64_t samples, std::size_t number) const noexcept;
  /// The largest batch of which no part has more than `samples`.
  [[nodiscard]] std::uint64_t batch_of(std::uint64_t samples) const noexcept;
  /// True if all devices have one weight.
  [[nodiscard]] bool is_even() const noexcept;

 private:
  [[nodiscard]] std::uint64_t share_of(std::size_t number) const noexcept {
    return bounds_[number + 1] - bounds_[number];
  }

  std::vector<std::uint64_t> bounds_;  ///< of the devices' shares, from 0; the last is the sum
};

/// How devices share the batches to come. The split of a batch is fixed once one of them has drawn its part.
/// One thread at a time.
class BatchShares {
 public:
  /// A device that gives way takes its part of each 16th batch alone, as a probe.
  static constexpr std::uint64_t kBatchesToAProbe = 16;

  /// `weights`: as a BatchSplit's. `receiver`: the device to which others give way; null: none does, or is
  /// left out.
  explicit BatchShares(std::vector<double> weights, std::optional<std::size_t> receiver = std::nullopt);

  /// The split of a batch. Batches count from the last restart. Fixes it, and those before it.
  [[nodiscard]] const BatchSplit& of(std::uint64_t batch);
  /// Splits of batches before `batch` are not asked for any more.
  void forget_before(std::uint64_t batch);
  void restart();

  /// From the next batch on whose split is not fixed. Not for the receiver.
  void set_gives_way(std::size_t number, bool gives_way);
  /// The device gets no part of any batch. Not for the receiver.
  void leave_out(std::size_t number);
  /// As BatchSplit::largest, whoever gives way or is left out.
  [[nodiscard]] std::uint64_t largest(std::uint64_t samples, std::size_t number) const;

 private:
  [[nodiscard]] std::vector<double> next_weights();

  std::vector<double> weights_;
  const std::optional<std::size_t> receiver_;
  std::vector<bool> gives_way_;
  std::vector<std::uint64_t> batches_to_probe_;  ///< of each device that gives way
  std::uint64_t first_ = 0;                      ///< the batch of the first split
  std::deque<std::shared_ptr<const BatchSplit>> splits_;
  std::shared_ptr<const BatchSplit> latest_;
  std::vector<double> latest_weights_;
};

/// Gives a Loader one device's part of each batch, epoch after epoch without an end. If the part is empty,
/// the loader's own epoch ends: its next() then says that there is no batch. It also ends for each end among
/// `draws`, so that nothing is read ahead of it.
class PartSampler final : public BatchSampler {
 public:
  /// `draws`: the batches, in place of those of `whole`; null: there are none.
  PartSampler(const Sampler& whole, std::shared_ptr<SharedDraws> draws, std::shared_ptr<BatchShares> shares,
              std::size_t number);

  /// The next part is that of the next batch of `whole`, or of the first of the draws, which is batch 0 of
  /// the shares. The loader must be restarted behind it.
  void go_to(const Sampler& whole);

  /// Does nothing: the loader's epochs are not those of the batches.
  void start_epoch(std::uint64_t /*epoch*/) override {}
  /// False if the part is empty.
  bool next(std::vector<std::uint64_t>& indices) override;
  [[nodiscard]] std::uint64_t reading_epoch(std::uint64_t /*epoch*/) const override { return reading_epoch_; }
  [[nodiscard]] bool is_ready() const override { return draws_ == nullptr || draws_->has(batch_); }

 private:
  Sampler whole_;
  const std::shared_ptr<SharedDraws> draws_;
  const std::shared_ptr<BatchShares> shares_;
  const std::size_t number_;
  std::uint64_t batch_ = 0;
  std::uint64_t reading_epoch_ = 0;
};

}  // namespace penstock
