#pragma once

#include "cupti.hpp"

#include <cstdint>
#include <string_view>

namespace penstock::recorder {

/// Which way a call copies.
enum class CopyCall : std::uint8_t {
  unknown,  ///< it is no copy, or its parameters are not CuptiCopyParameters
  to_device,
  to_host,
  as_told,  ///< its parameter `direction` says so
};
/// Of cuMemcpyHtoD, cuMemcpyDtoH, cudaMemcpy, and the asynchronous ones. `name` is CUPTI's.
[[nodiscard]] CopyCall copy_call(int domain, std::string_view name) noexcept;

/// The host memory of a copy between the host and a device.
struct HostMemory {
  const void* begin = nullptr;  ///< null: there is none, or it may be managed
  std::uint64_t bytes = 0;
  bool is_source = false;
};
[[nodiscard]] HostMemory host_memory(CopyCall call, const CuptiCopyParameters& parameters) noexcept;

}  // namespace penstock::recorder
