#pragma once

#include "doctor/rules/device_view.hpp"

namespace penstock {

/// Marks those of the view's copies that waited for a kernel, or a kernel for them, and only because one of
/// the two is on the default stream. A copy waited if a kernel of the other kind of stream ended last before
/// it, and after its call. A kernel waited if it is next on the device once the copy has ended, and a launch
/// behind the copy's call was over by then. None if it is not known of what kind their streams are.
void mark_held_copies(DeviceView& view);

}  // namespace penstock
