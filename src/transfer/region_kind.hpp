#pragma once

#include <penstock/device/device.hpp>
#include <penstock/memory/registration.hpp>

#include <cstddef>

namespace penstock {

/// The kind of memory of all of [data, data + bytes). Pageable memory may begin and end in pages that are
/// locked for neighbours.
[[nodiscard]] inline MemoryKind kind_of_region(const Device& device, const void* data, std::size_t bytes) {
  const MemoryKind kind = device.kind_of(data);
  if (kind == MemoryKind::device || kind == MemoryKind::pageable) return kind;
  const MemoryKind end = device.kind_of(static_cast<const std::byte*>(data) + bytes - 1);
  const bool locked = end != MemoryKind::pageable && !Registration::overlaps_in_part(device, data, bytes);
  return locked ? kind : MemoryKind::pageable;
}

}  // namespace penstock
