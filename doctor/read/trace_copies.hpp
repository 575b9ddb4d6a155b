#pragma once

#include "doctor/timeline/timeline.hpp"

#include <cstdint>
#include <optional>
#include <string_view>

namespace penstock {

/// Takes apart the name of a copy: of CUDA and ROCm, "Memcpy HtoD (Pageable -> Device)"; of XPUs, "Memcpy M2D
/// (MEMORY -> DEVICE)"; of JAX, "MemcpyH2D" with `details` as "kind_src:pinned kind_dst:device size:4096
/// dest:0". Sets the direction, and of memory and bytes what they tell. False: it is another copy, such as
/// one within the host.
[[nodiscard]] bool describe_copy(TimelineCopy& copy, std::string_view name, std::string_view details);

/// A whole number that is written as text, decimal or with 0x before it. nullopt: it is none.
[[nodiscard]] std::optional<std::uint64_t> whole_of(std::string_view text);

}  // namespace penstock
