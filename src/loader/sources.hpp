#pragma once

#include "loader/route.hpp"

#include <penstock/data/dataset.hpp>
#include <penstock/device/device.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/memory/registration.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace penstock {

/// What keeps the memory locked that the device reads samples out of.
struct LockedSources {
  std::vector<Registration> registrations;
  std::vector<Buffer> copies;
};

/// Sets the `source` of each route that the device reads, and locks the memory there. What is small is copied
/// first; where memory cannot be locked, the host gathers. Throws InvalidArgument or Unsupported where
/// another path than the host's was asked for and cannot be had.
[[nodiscard]] LockedSources lock_sources(std::vector<Route>& routes, const Dataset& dataset,
                                         const Device& device, const LoaderOptions& options);

/// The field is a slice of an array that would be locked whole, and is less than half of it, with the other
/// fields that lie there.
[[nodiscard]] bool is_small_part(const Dataset& dataset, std::size_t field, const Device& device,
                                 const LoaderOptions& options);

/// Locked by another library's allocator, say, and by none of our registrations, which may end before the
/// loader does, and which may cover a part of it only.
[[nodiscard]] bool is_locked_by_others(const Device& device, std::span<const std::byte> range);

}  // namespace penstock
