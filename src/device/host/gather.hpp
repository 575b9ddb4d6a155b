#pragma once

#include <penstock/device/requests.hpp>

#include <cstdint>

namespace penstock {

/// Carries out the rows [first, end) of a checked gather on the calling thread, over memory that it can read
/// and write directly. Rounds to nearest even if the result is narrower.
void gather_on_host(const GatherRequest& request, std::uint64_t first, std::uint64_t end) noexcept;

/// Counts the gathered rows that exist and lie in the head, if `of_head`, or in the source, if `of_source`.
[[nodiscard]] std::uint64_t count_rows(const GatherRequest& request, bool of_head, bool of_source) noexcept;

}  // namespace penstock
