#pragma once

#include "doctor/device_activity.hpp"

#include <penstock/doctor/timeline.hpp>

#include <cstdint>
#include <vector>

namespace penstock {

// A host that runs ahead of its device does little in most of the device's steps, and the device in the
// host's. A step goes up to the next one's beginning, and the last one to the window's end. `timeline` is
// sorted.

/// For each step: whether a kernel or a copy of the device begins in it.
[[nodiscard]] std::vector<bool> active_steps_of_device(const Timeline& timeline, std::uint16_t device,
                                                       TimeSpan window);

/// For each step: whether a thread that launches kernels makes a call in it.
[[nodiscard]] std::vector<bool> active_steps_of_host(const Timeline& timeline, const HostActivity& host,
                                                     TimeSpan window);

}  // namespace penstock
