#pragma once

#include "doctor/timeline/timeline.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

// Steps that are nearly the same: some log the loss, a validation follows others, and sizes vary.

/// A kernel or a copy on the device whose steps are looked for.
struct StepItem {
  std::uint32_t kind = 0;  ///< the same for the same kernel, and for copies of one direction; no gaps
  TimeSpan time;
};
inline constexpr std::uint32_t kCopiesToDevice = 0;
inline constexpr std::uint32_t kCopiesToHost = 1;
inline constexpr std::uint32_t kFirstKernel = 2;  ///< the kinds of kernels begin here

/// Where each step begins, and at last where the last one ends: indices of `items`, which are in the order of
/// their beginnings. Empty: there are no such steps, or not more than `known`. Takes time in proportion to
/// the number of items.
[[nodiscard]] std::vector<std::size_t> find_alike_steps(std::span<const StepItem> items, std::size_t known);

}  // namespace penstock
