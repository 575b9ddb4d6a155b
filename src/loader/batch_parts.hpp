#pragma once

#include <penstock/data/batch_sampler.hpp>
#include <penstock/data/sampler.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace penstock {

/// How devices share each batch: consecutive samples for each, in proportion to their weights. A value.
class BatchSplit {
 public:
  struct Part {
    std::uint64_t begin = 0;  ///< of the batch's samples
    std::uint64_t count = 0;
  };

  /// `weights`: one for each device, not negative, at least one of them positive.
  explicit BatchSplit(const std::vector<double>& weights);

  /// The part of device `number` in a batch of `samples`. It may be empty.
  [[nodiscard]] Part part(std::uint64_t samples, std::size_t number) const noexcept;
  /// The most that a part of batches of up to `samples` holds; at least 1.
  [[nodiscard]] std::uint64_t largest(std::uint64_t samples, std::size_t number) const noexcept;

 private:
  std::vector<std::uint64_t> bounds_;  ///< of the devices' shares, from 0; the last is the sum
};

/// Gives a Loader one device's part of each batch, epoch after epoch without an end. Batches in which the
/// part is empty are left out.
class PartSampler final : public BatchSampler {
 public:
  PartSampler(Sampler whole, BatchSplit split, std::size_t number);

  /// The next part is that of the next batch of `whole`. The loader must be restarted behind it.
  void go_to(const Sampler& whole) { whole_ = whole; }

  /// Does nothing: the loader's epochs are not those of the batches.
  void start_epoch(std::uint64_t /*epoch*/) override {}
  /// False if no batch has a part for this device any more.
  bool next(std::vector<std::uint64_t>& indices) override;

 private:
  Sampler whole_;
  const BatchSplit split_;
  const std::size_t number_;
};

}  // namespace penstock
