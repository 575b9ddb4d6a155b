#pragma once

#include <penstock/core/host_workers.hpp>
#include <penstock/data/dataset.hpp>

#include <cstddef>

namespace penstock {

/// Reads all samples of a field into `destination`. Blocks the host.
void read_all(const Dataset& dataset, std::size_t field, std::byte* destination, HostWorkers& workers);

}  // namespace penstock
