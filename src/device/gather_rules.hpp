#pragma once

#include <penstock/device/requests.hpp>

namespace penstock {

/// Checks what can be checked of a gather without touching memory: null pointers, types that do not widen,
/// scale or shift where the result is no float, strides too short or misaligned for the type, zero channels,
/// sizes that overflow. Throws InvalidArgument. Shared by the backends, so that both refuse the same.
void check_gather(const GatherRequest& request);

}  // namespace penstock
