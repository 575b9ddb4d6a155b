#pragma once

#include "doctor/timeline/device_activity.hpp"
#include "doctor/timeline/timeline.hpp"

#include <cstdint>
#include <vector>

namespace penstock {

// A host that runs ahead of its device does little in most of the device's steps, and the device in the
// host's. A step goes up to the next one's beginning, and the last one to the window's end. `timeline` is
// sorted.

/// For each step: whether a kernel or a copy of the device begins in it.
[[nodiscard]] std::vector<bool> active_steps_of_device(const Timeline& timeline, std::uint16_t device,
                                                       TimeSpan window);

/// For each step: whether one of these threads makes a call in it.
[[nodiscard]] std::vector<bool> active_steps_of_threads(const Timeline& timeline,
                                                        const std::vector<bool>& threads, TimeSpan window);

}  // namespace penstock
