#pragma once

#include <penstock/device/requests.hpp>

#include <cstdint>
#include <functional>

namespace penstock {

/// True if every value lies in a row and in its segment, and `writable(address, bytes)` is true for its
/// column. `request` has been checked, and its tables can be read.
[[nodiscard]] bool split_stays_inside(const SplitRequest& request,
                                      const std::function<bool(const void*, std::uint64_t)>& writable);

/// Splits rows on the calling thread, over memory that it can read and write directly. `request` has been
/// checked and stays inside.
void split_on_host(const SplitRequest& request) noexcept;

}  // namespace penstock
