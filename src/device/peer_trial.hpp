#pragma once

#include <penstock/device/device.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace penstock {

/// Why the streams of one member of a group do not write to the memory of another; `why` is empty if they do.
struct PeerRefusal {
  std::string why;
  std::string_view advice;
};
/// By the member whose stream copies, and the other.
using PeerRefusals = std::vector<std::vector<PeerRefusal>>;

/// Copies a block from each member to each other that is not refused, all at once, and compares the bytes.
/// Refuses the pairs of which they arrive wrong, and those of a device that has no memory left for them:
/// nobody knows whether theirs would be right. Frees its memory. Blocks the host for some ms. Throws
/// DeviceError.
void refuse_wrong_bytes(const std::vector<Device>& members, PeerRefusals& refusals);

}  // namespace penstock
