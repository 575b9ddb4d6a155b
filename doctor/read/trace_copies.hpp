#pragma once

#include <penstock/device/memory_kind.hpp>

#include <cstdint>
#include <optional>
#include <string_view>

namespace penstock {

/// What a trace tells of a copy.
struct TraceCopy {
  CopyDirection direction = CopyDirection::h2d;
  std::optional<MemoryKind> source;  ///< nullopt: not known
  std::optional<MemoryKind> destination;
  std::optional<std::uint64_t> bytes;
};

/// Takes apart the name of a copy: of CUDA and ROCm, "Memcpy HtoD (Pageable -> Device)"; of XPUs, "Memcpy M2D
/// (MEMORY -> DEVICE)"; of JAX, "MemcpyH2D" with `details` as "kind_src:pinned kind_dst:device size:4096
/// dest:0". nullopt: it is another copy, such as one within the host.
[[nodiscard]] std::optional<TraceCopy> trace_copy(std::string_view name, std::string_view details);

/// A whole number that is written as text, decimal or with 0x before it. nullopt: it is none.
[[nodiscard]] std::optional<std::uint64_t> whole_of(std::string_view text);

}  // namespace penstock
