#pragma once

#include <cstdint>
#include <string_view>

namespace penstock::recorder {

/// Whether a call copies from the host to a device.
enum class InputCall : std::uint8_t {
  no,  ///< or its parameters are not CuptiCopyParameters
  yes,
  as_told,  ///< its parameter `direction` says so
};
/// Yes: cuMemcpyHtoD; as told: cudaMemcpy; and the asynchronous ones. `name` is CUPTI's.
[[nodiscard]] InputCall input_call(int domain, std::string_view name) noexcept;

/// An odd hash of the bytes of a copy's source, as they are now. Never reads more than
/// recording::kSampleBytes, and never faults. 0: there are no more than recording::kSmallCopyBytes; they
/// cannot be read; or the sample shows hardly more than one value, so that different data may have the same.
[[nodiscard]] std::uint64_t hash_input(const void* source, std::uint64_t bytes) noexcept;

}  // namespace penstock::recorder
