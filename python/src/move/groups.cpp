#include "move/groups.hpp"

#include <penstock/core/bytes.hpp>

#include <algorithm>

namespace penstock::python {

bool is_pinned(const Leaf& leaf) { return leaf.device.type == dlpack::kCudaHost; }

bool is_in(const FilledSlot* slot, const Leaf& leaf) {
  return slot != nullptr && slot->locked && leaf.bytes > 0 && slot->storage->contains(leaf.data);
}

bool travels_alone(std::size_t bytes, MemoryKind host_end, const DeviceTuning& tuning) {
  if (host_end == MemoryKind::device) return true;  // a device whose memory is also the host's
  return bytes >=
         (host_end == MemoryKind::pageable ? tuning.alone_pageable_bytes : tuning.alone_pinned_bytes);
}

NestLayout lay_out(const std::vector<Leaf>& leaves, const Groups& groups) {
  NestLayout layout{std::vector<std::size_t>(leaves.size()), align_up(groups.slot.size(), kAlignment)};
  for (std::size_t i : groups.together) {
    layout.offsets[i] = static_cast<std::size_t>(leaves[i].data - groups.slot.data());
  }
  for (const auto* members : {&groups.packed, &groups.alone}) {
    for (std::size_t i : *members) layout.append(i, leaves[i].bytes);
  }
  return layout;
}

NestLayout lay_out_in_order(const std::vector<Leaf>& leaves) {
  NestLayout layout{std::vector<std::size_t>(leaves.size())};
  for (std::size_t i = 0; i < leaves.size(); ++i) layout.append(i, leaves[i].bytes);
  return layout;
}

void NestLayout::append(std::size_t leaf, std::size_t count) {
  offsets[leaf] = bytes;
  bytes += align_up(count, kAlignment);
}

Groups group(const std::vector<Leaf>& leaves, const FilledSlot* slot, const DeviceTuning& tuning) {
  Groups groups;
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const Leaf& leaf = leaves[i];
    if (is_in(slot, leaf)) {
      groups.together.push_back(i);
      begin = begin == nullptr ? leaf.data : std::min(begin, leaf.data);
      end = std::max(end, leaf.data + leaf.bytes);
    } else {
      const MemoryKind kind = is_pinned(leaf) ? MemoryKind::pinned : MemoryKind::pageable;
      (travels_alone(leaf.bytes, kind, tuning) ? groups.alone : groups.packed).push_back(i);
    }
  }
  if (begin != nullptr) {
    // From a place that is aligned, so that what comes out of the slot is.
    begin -= static_cast<std::size_t>(begin - slot->storage->data()) % kAlignment;
    groups.slot = {begin, end};
  }
  return groups;
}

}  // namespace penstock::python
