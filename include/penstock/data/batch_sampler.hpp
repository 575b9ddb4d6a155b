#pragma once

#include <cstdint>
#include <vector>

namespace penstock {

/// Chooses the samples of each batch, in place of a Loader's own order: see LoaderOptions::batch_sampler.
/// Called by Loader::next and start_epoch, on the threads that call them, one at a time. It must not use the
/// loader.
class BatchSampler {
 public:
  BatchSampler() = default;
  BatchSampler(const BatchSampler&) = delete;
  BatchSampler& operator=(const BatchSampler&) = delete;
  virtual ~BatchSampler() = default;

  /// Called before the first batch of each epoch is drawn, when next() asks for it.
  virtual void start_epoch(std::uint64_t epoch) = 0;
  /// Appends the indices of the next batch's samples to `indices`, which is empty: at least one and at most
  /// LoaderOptions::batch_size, each below the number of samples. Indices may repeat. Returns false at the
  /// end of the epoch. An exception is thrown by Loader::next in this batch's place.
  virtual bool next(std::vector<std::uint64_t>& indices) = 0;
};

}  // namespace penstock
