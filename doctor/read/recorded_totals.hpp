#pragma once

#include "doctor/read/recording_format.hpp"
#include "doctor/timeline/whole_run.hpp"

#include <penstock/core/function_ref.hpp>

#include <cstdint>
#include <optional>
#include <span>

namespace penstock {

inline constexpr std::uint16_t kMostRecordedDevices = 1024;

/// Indices into the timeline's names.
struct RecordedNames {
  FunctionRef<std::optional<std::uint32_t>(std::uint64_t place)> of_place;  ///< nullopt: it has none
  FunctionRef<std::uint32_t(std::uint8_t loader)> of_loader;
};

/// Sorts a recording's totals out, kOtherTotals of them at least; `seconds` stay 0. nullopt: one of them is
/// none that a recorder writes.
[[nodiscard]] std::optional<WholeRun> sort_totals(std::span<const recording::Total> totals,
                                                  const RecordedNames& names);

}  // namespace penstock
