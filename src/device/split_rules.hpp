#pragma once

#include <penstock/device/requests.hpp>

namespace penstock {

/// Throws InvalidArgument if `request` is wrong. Its tables may not be written yet, so they are not read.
/// Every backend checks before it starts work.
void check_split(const SplitRequest& request);

}  // namespace penstock
