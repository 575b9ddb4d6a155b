#pragma once

#include <penstock/device/requests.hpp>

namespace penstock {

/// Checks a gather without touching memory: null pointers, types that do not widen, scale or shift for a
/// result that is not a float, strides too short or misaligned for the type, zero channels, sizes that
/// overflow. Throws InvalidArgument. Shared by the backends, so that both refuse the same requests.
void check_gather(const GatherRequest& request);

}  // namespace penstock
