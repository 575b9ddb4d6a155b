#pragma once

#include <penstock/device/requests.hpp>

namespace penstock {

/// Checks an OrderRequest without touching memory: sizes that are none or too many, an order of another size,
/// positions that overflow, null or misaligned indices. Throws InvalidArgument. Shared by the backends.
void check_order(const OrderRequest& request);

}  // namespace penstock
