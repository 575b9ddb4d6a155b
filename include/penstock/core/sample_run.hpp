#pragma once

#include <penstock/core/permutation.hpp>

#include <cstdint>
#include <optional>
#include <span>

namespace penstock {

/// The samples of one batch, as positions of the epoch's order: `count` positions, from `first` in steps of
/// `stride`, wrapping around after `size`:
///   sample i = order((first + i * stride) mod size)
/// A value that does not need its sampler.
struct SampleRun {
  std::optional<KeyedPermutation> order;  ///< of `size`; nullopt: sample = position
  std::uint64_t size = 1;                 ///< 1 to 2^62
  std::uint64_t first = 0;
  std::uint64_t stride = 1;
  std::uint64_t count = 0;  ///< first + count * stride stays below 2^63
  std::uint64_t epoch = 0;  ///< in which the samples are read: see FieldReader::gather_in_epoch

  /// Writes the index of each sample. Throws InvalidArgument if `indices` holds fewer than `count`.
  void fill(std::span<std::uint64_t> indices) const;

  /// The run of the `samples` samples from number `begin` on, which must be in this run.
  [[nodiscard]] SampleRun part(std::uint64_t begin, std::uint64_t samples) const;
};

}  // namespace penstock
