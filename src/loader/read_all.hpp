#pragma once

#include <penstock/core/host_workers.hpp>
#include <penstock/data/dataset.hpp>

#include <cstddef>
#include <functional>

namespace penstock {

/// Reads all samples of a field into `destination`. Blocks the host. Calls `between`, if it is not empty,
/// every 256 MiB: it may throw.
void read_all(const Dataset& dataset, std::size_t field, std::byte* destination, HostWorkers& workers,
              const std::function<void()>& between = {});

}  // namespace penstock
