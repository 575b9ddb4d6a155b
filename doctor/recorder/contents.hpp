#pragma once

#include "host_memory.hpp"

#include <cstdint>

namespace penstock::recorder {

/// An odd hash of the bytes that a call copies from the host to a device, as they are now. Never reads more
/// than recording::kSampleBytes, and never faults. 0: it copies to the host, or no more than
/// recording::kSmallCopyBytes; its source cannot be read; or the sample shows hardly more than one value, so
/// that different data may have the same.
[[nodiscard]] std::uint64_t hash_input(const HostMemory& memory) noexcept;

}  // namespace penstock::recorder
