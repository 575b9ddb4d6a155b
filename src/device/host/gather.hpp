#pragma once

#include <penstock/device/backend.hpp>

namespace penstock {

/// Carries out a checked gather on the calling thread, over memory that it can read and write directly.
/// Rounds to nearest even where the result is narrower.
void gather_on_host(const GatherRequest& request) noexcept;

}  // namespace penstock
