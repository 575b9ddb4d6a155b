#pragma once

#include <cstddef>

namespace penstock {

/// How copy_bytes writes its destination.
enum class StoreKind {
  /// Through the cache. Use it if a CPU reads the destination again soon, or if the destination is small.
  cached,
  /// Past the cache, if the processor has streaming stores. Saves reading the destination's lines first. Use
  /// it if no CPU reads the destination soon.
  streaming,
};

/// Copies `bytes` on the calling thread, as memcpy does; the regions do not overlap. When it returns, the
/// stores are visible to other threads and devices that synchronize with this thread.
void copy_bytes(void* destination, const void* source, std::size_t bytes, StoreKind stores) noexcept;

}  // namespace penstock
