#pragma once

#include <cstdint>
#include <string_view>

namespace penstock {

/// How the samples of a batch that stream are gathered.
enum class GatherPath : std::uint8_t {
  /// Chosen for each field. `host`: the samples cannot be page-locked where they lie. `copy_engine`: the
  /// device batches copies, and they are about as fast as kernels that read the samples. Otherwise
  /// `zero_copy`, or `host` if that is twice as fast. The link profile tells the rates.
  automatic,
  host,         ///< host threads copy the samples into a pinned slot, which crosses the link in one copy
  zero_copy,    ///< a kernel reads the samples over the link from the dataset's own page-locked memory
  copy_engine,  ///< the copy engines fetch them, one copy for each sample, and take no multiprocessor
};

/// "automatic", "host", "zero-copy", "copy-engine".
[[nodiscard]] std::string_view gather_path_name(GatherPath path) noexcept;
/// Inverse of gather_path_name. Throws InvalidArgument.
[[nodiscard]] GatherPath parse_gather_path(std::string_view name);

}  // namespace penstock
