#pragma once

#include "doctor/timeline/timeline.hpp"

#include <penstock/device/memory_kind.hpp>

#include <cstdint>
#include <optional>

namespace penstock {

/// Of the numbers by which CUPTI tells kinds of memory; nullopt: another one.
[[nodiscard]] constexpr std::optional<MemoryKind> cupti_memory_kind(unsigned kind) noexcept {
  switch (kind) {
    case 1:
      return MemoryKind::pageable;
    case 2:
      return MemoryKind::pinned;
    case 3:
      return MemoryKind::device;
    default:
      return std::nullopt;
  }
}

/// Of those of copies; nullopt: a copy within the host.
[[nodiscard]] constexpr std::optional<CopyDirection> cupti_direction(std::uint8_t kind) noexcept {
  switch (kind) {
    case 1:  // host to device
    case 3:  // host to array
      return CopyDirection::h2d;
    case 2:  // device to host
    case 4:  // array to host
      return CopyDirection::d2h;
    case 9:  // host to host
      return std::nullopt;
    default:
      return CopyDirection::d2d;
  }
}

/// Of those of streams; nullopt: another one.
[[nodiscard]] constexpr std::optional<StreamKind> cupti_stream_kind(std::uint32_t kind) noexcept {
  switch (kind) {
    case 1:  // made without a flag
      return StreamKind::blocking;
    case 2:
      return StreamKind::non_blocking;
    case 3:  // the null stream
      return StreamKind::default_stream;
    default:
      return std::nullopt;
  }
}

}  // namespace penstock
