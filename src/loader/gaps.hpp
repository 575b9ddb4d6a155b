#pragma once

#include <penstock/core/host_workers.hpp>
#include <penstock/data/dataset.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace penstock {

/// The fields whose samples lie in memory with gaps between them, but for `kept`, which is in ascending
/// order.
[[nodiscard]] std::vector<std::size_t> fields_with_gaps(const Dataset& dataset,
                                                        std::span<const std::size_t> kept);

/// `dataset` with copies of these fields in memory. Blocks the host.
[[nodiscard]] Dataset with_copies(const Dataset& dataset, std::span<const std::size_t> fields,
                                  HostWorkers& workers);

}  // namespace penstock
