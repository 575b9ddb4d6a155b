#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace penstock {

/// True if a kernel of this name, demangled or not, sends data between GPUs: those of NCCL and alike, and
/// others that name a collective.
[[nodiscard]] constexpr bool is_communication(std::string_view kernel) noexcept {
  constexpr std::size_t kFar = 64;  // arguments follow, such as types that name a collective
  constexpr auto kWords = std::to_array<std::string_view>(
      {"nccl", "rccl", "oneccl", "all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter",
       "all_to_all", "alltoall", "cross_device_reduce", "nvshmem", "deep_ep"});
  kernel = kernel.substr(0, kFar);
  for (const std::string_view word : kWords) {
    if (kernel.find(word) != std::string_view::npos) return true;
  }
  return false;
}

// A label (TimelineWork) tells work apart: kMemorySet; or of a kernel an odd number, which is above its
// kGridBits the same for the same kernel, and in all the same for the same grid, too; or of a kernel that
// sends data between GPUs a multiple of 4.
inline constexpr std::uint16_t kMemorySet = 2;
inline constexpr int kGridBits = 5;

/// A kernel's label, odd as all kernels', becomes one that no other work has.
[[nodiscard]] constexpr std::uint16_t communication_label(std::uint16_t kernel) noexcept {
  return static_cast<std::uint16_t>((kernel & ~3U) | 0x8000U);
}
[[nodiscard]] constexpr bool is_communication(std::uint16_t label) noexcept {
  return label != 0 && label % 4 == 0;
}

}  // namespace penstock
