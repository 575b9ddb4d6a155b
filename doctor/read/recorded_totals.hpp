#pragma once

#include "doctor/read/recording_format.hpp"
#include "doctor/timeline/whole_run.hpp"

#include <penstock/core/function_ref.hpp>

#include <cstdint>
#include <optional>
#include <span>

namespace penstock {

inline constexpr std::uint16_t kMostRecordedDevices = 1024;

/// Index into the timeline's names; nullopt: it has none.
using NameOfPlace = FunctionRef<std::optional<std::uint32_t>(std::uint64_t place)>;

/// Sorts a recording's totals out, kOtherTotals of them at least; `seconds` stay 0. nullopt: one of them is
/// none that a recorder writes.
[[nodiscard]] std::optional<WholeRun> sort_totals(std::span<const recording::Total> totals,
                                                  NameOfPlace name_of);

}  // namespace penstock
