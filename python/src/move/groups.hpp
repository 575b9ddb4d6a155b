#pragma once

#include "frameworks.hpp"
#include "move/filled_slot.hpp"

#include <penstock/device/device_tuning.hpp>
#include <penstock/device/memory_kind.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace penstock::python {

/// Of arrays in one piece of memory.
inline constexpr std::size_t kAlignment = 256;

/// How the arrays of one nest travel.
struct Groups {
  std::vector<std::size_t> together;  ///< out of a locked slot
  std::span<const std::byte> slot;    ///< what holds these
  std::vector<std::size_t> packed;
  std::vector<std::size_t> alone;
};

/// Where the arrays of one nest lie in its memory.
struct NestLayout {
  std::vector<std::size_t> offsets;
  std::size_t bytes = 0;

  void append(std::size_t leaf, std::size_t count);
};

[[nodiscard]] bool is_pinned(const Leaf& leaf);
/// True if the array lies in a slot that the device reads. `slot` may be null.
[[nodiscard]] bool is_in(const FilledSlot* slot, const Leaf& leaf);

/// Large arrays are not packed: staging threads copy them, all as one transfer, or the copy engine does if
/// they are pinned. The consumer's thread does not. Smaller ones are packed into one transfer on the
/// consumer's thread, which is faster than handing them to another thread.
[[nodiscard]] bool travels_alone(std::size_t bytes, MemoryKind host_end, const DeviceTuning& tuning);

[[nodiscard]] Groups group(const std::vector<Leaf>& leaves, const FilledSlot* slot,
                           const DeviceTuning& tuning);
/// What comes out of a slot lies as it lay there. Packed arrays follow, side by side.
[[nodiscard]] NestLayout lay_out(const std::vector<Leaf>& leaves, const Groups& groups);
[[nodiscard]] NestLayout lay_out_in_order(const std::vector<Leaf>& leaves);

}  // namespace penstock::python
