#pragma once

#include <cstdint>
#include <string_view>

namespace penstock {

/// How the device reaches a range of memory. Fixed when a buffer is made; it cannot be set.
enum class MemoryKind : std::uint8_t {
  /// Ordinary host memory. The device cannot reach it; a copy goes through staging.
  pageable,
  /// Page-locked host memory of our pools or another library's allocator. The copy engine accesses it
  /// directly.
  pinned,
  /// Host memory that was page-locked in place after it was allocated.
  registered,
  /// Memory of the device.
  device,
};

/// "pageable", "pinned", "registered", "device".
[[nodiscard]] std::string_view memory_kind_name(MemoryKind kind) noexcept;

/// True for all but `device`.
[[nodiscard]] constexpr bool is_host(MemoryKind kind) noexcept { return kind != MemoryKind::device; }

/// True if the copy engine reaches the memory by itself: all but `pageable`.
[[nodiscard]] constexpr bool is_device_accessible(MemoryKind kind) noexcept {
  return kind != MemoryKind::pageable;
}

enum class CopyDirection : std::uint8_t { h2d, d2h, d2d };

/// "H2D", "D2H", "D2D".
[[nodiscard]] std::string_view copy_direction_name(CopyDirection direction) noexcept;

}  // namespace penstock
