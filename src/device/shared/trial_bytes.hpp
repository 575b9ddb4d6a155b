#pragma once

#include <penstock/core/bytes.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace penstock {

/// Bytes that cross a link between two devices once, and are compared, before the link is used. They are many
/// pages of an IOMMU, and more than a driver sends in another way than large copies. They take some tens of
/// µs.
inline constexpr std::size_t kTrialBytes = 256 * kKiB;
/// What to do if they arrive wrong.
inline constexpr std::string_view kAfterWrongTrial =
    "If the machine is not virtual, turn its IOMMU off: it redirects copies between GPUs over PCIe";

/// Another number at each call, in all processes. Memory that holds trial_bytes of it, holds them since.
[[nodiscard]] std::uint64_t trial_seed();

/// Random bytes: the same for the same seed, and others for another one.
[[nodiscard]] std::vector<std::byte> trial_bytes(std::size_t count, std::uint64_t seed);

}  // namespace penstock
