#pragma once

#include "doctor/rules/device_view.hpp"
#include "doctor/timeline/timeline.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace penstock {

/// For each of a device's copies, which are in the timeline's order: when its stream was done with the work
/// before it. nullopt: no kernel is next on the stream once the copy ends. Takes memory for the copies and
/// the streams, and none for the work. If a kernel and a copy have the same time, the copy is first.
[[nodiscard]] std::vector<std::optional<TraceTime>> ready_before_kernels(
    const Timeline& timeline, std::uint16_t device, const std::vector<ViewedCopy>& copies);

}  // namespace penstock
