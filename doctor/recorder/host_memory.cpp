#include "host_memory.hpp"

namespace penstock::recorder {

namespace {

// cudaMemcpyKind
constexpr std::int32_t kToDevice = 1;
constexpr std::int32_t kToHost = 2;

/// Memory of unknown whereabouts (cudaMemcpyDefault) may be managed: reading that would move it.
CopyCall told(std::int32_t direction) noexcept {
  if (direction == kToDevice) return CopyCall::to_device;
  return direction == kToHost ? CopyCall::to_host : CopyCall::unknown;
}

}  // namespace

CopyCall copy_call(int domain, std::string_view name) noexcept {
  // With what follows the name: the version, or the default stream that is meant.
  const auto is_any_of = [name](std::string_view one, std::string_view other) {
    return name.starts_with(one) || name.starts_with(other);
  };
  if (domain == kDriverDomain) {
    if (is_any_of("cuMemcpyHtoD_v2", "cuMemcpyHtoDAsync_v2")) return CopyCall::to_device;
    return is_any_of("cuMemcpyDtoH_v2", "cuMemcpyDtoHAsync_v2") ? CopyCall::to_host : CopyCall::unknown;
  }
  return is_any_of("cudaMemcpy_", "cudaMemcpyAsync_") ? CopyCall::as_told : CopyCall::unknown;
}

HostMemory host_memory(CopyCall call, const CuptiCopyParameters& parameters) noexcept {
  // The driver's calls have no direction among their parameters.
  switch (call == CopyCall::as_told ? told(parameters.direction) : call) {
    case CopyCall::to_device:
      return {parameters.source, parameters.bytes, true};
    case CopyCall::to_host:
      return {parameters.destination, parameters.bytes, false};
    default:
      return {};
  }
}

}  // namespace penstock::recorder
