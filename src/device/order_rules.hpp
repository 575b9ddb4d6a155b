#pragma once

#include <penstock/device/requests.hpp>

namespace penstock {

/// Checks an OrderRequest without touching memory: a size of zero or too large, an order of another size,
/// positions that overflow, null or misaligned indices. Throws InvalidArgument. Shared by the backends.
void check_order(const OrderRequest& request);

}  // namespace penstock
