#pragma once

#include <cstddef>

namespace penstock {

/// How copy_bytes writes its destination.
enum class StoreKind {
  /// Through the cache: right when the destination is read again soon by a CPU, or is small.
  cached,
  /// Past the cache with streaming stores where the processor has them: saves reading the destination's lines
  /// first, right when only the GPU or nobody reads it soon.
  streaming,
};

/// Copies `bytes` between regions that do not overlap, on the calling thread, as memcpy does. When it
/// returns, the stores are visible to other threads and devices that synchronize with this thread.
void copy_bytes(void* destination, const void* source, std::size_t bytes, StoreKind stores) noexcept;

}  // namespace penstock
