#pragma once

#include "doctor/device_view.hpp"

#include <vector>

namespace penstock {

/// For each of the view's copies: true if it waited for a kernel, or a kernel for it, and only because one of
/// the two is on the default stream. A copy waited if a kernel of the other kind of stream ended last before
/// it, and after its call. A kernel waited if it is next on the device once the copy has ended, and a launch
/// behind the copy's call was over by then. False if it is not known of what kind their streams are.
[[nodiscard]] std::vector<bool> held_by_default_stream(const DeviceView& view);

}  // namespace penstock
