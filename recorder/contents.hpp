#pragma once

#include "cupti.hpp"

#include <cstdint>
#include <string_view>

namespace penstock::recorder {

/// True if the function copies a range of host memory, and its parameters are CuptiCopyParameters: cudaMemcpy
/// and cudaMemcpyAsync; cuMemcpyHtoD and cuMemcpyHtoDAsync. `name` is CUPTI's.
[[nodiscard]] bool has_copy_parameters(int domain, std::string_view name) noexcept;

/// A hash of the bytes that such a call is about to copy from the host to a device, as they are now. Never
/// reads more than recording::kSampleBytes, and never faults. 0: it copies in another direction, or no more
/// than recording::kSmallCopyBytes; its source cannot be read; or the sample shows hardly more than one
/// value, so that different data may have the same.
[[nodiscard]] std::uint64_t hash_input(int domain, const CuptiCopyParameters& call) noexcept;

}  // namespace penstock::recorder
