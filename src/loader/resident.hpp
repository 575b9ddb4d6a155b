#pragma once

#include "loader/route.hpp"

#include <penstock/core/function_ref.hpp>
#include <penstock/core/worker_team.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <cstddef>
#include <vector>

namespace penstock {

/// The part of the dataset that stays on the device, and the factors that its fields are scaled by.
class Resident {
 public:
  /// Takes the memory and sets the routes' addresses; uploads the factors. Throws OutOfMemory.
  Resident(const Device& device, Pool& memory, std::vector<Route>& routes);

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

  /// Moves the rows that the routes say are resident. Blocks the host until they are there, or `stopped`
  /// returns true: then false, and it may be called again. Throws what reading throws.
  [[nodiscard]] bool fill(const Dataset& dataset, const std::vector<Route>& routes,
                          const LinkProfile& profile, WorkerTeam* team, FunctionRef<bool()> stopped);

 private:
  Device device_;
  std::vector<Buffer> rows_;
  Buffer factors_;
  std::size_t bytes_ = 0;
};

}  // namespace penstock
