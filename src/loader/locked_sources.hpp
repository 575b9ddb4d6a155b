#pragma once

#include "loader/feed_facts.hpp"

#include <penstock/core/host_workers.hpp>
#include <penstock/data/dataset.hpp>
#include <penstock/device/device.hpp>
#include <penstock/loader/feed_plan.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/memory/registration.hpp>

#include <cstddef>
#include <memory>
#include <vector>

namespace penstock {

/// The memory from which the device reads samples, page-locked for as long as this object lives.
struct LockedSources {
  /// For each field, the device's address of the first sample that streams; null if it is not read there.
  std::vector<const std::byte*> samples;
  std::vector<Registration> registrations;
  std::vector<Buffer> copies;
  /// The rows of all samples; null if the plan has none that stream.
  std::shared_ptr<const Buffer> rows;
  /// A lock or copy was refused, and noted in the facts. The plan must be made again.
  bool refused = false;
};

/// Locks or copies the memory that the device reads, and makes the rows, which `dataset` has as with_rows
/// adds them. Blocks the host: about 30 ms per GiB, and for rows as long as the workers need to read the
/// columns. Throws DeviceError, and what reading throws.
[[nodiscard]] LockedSources lock_sources(const FeedPlan& plan, const Dataset& dataset, const Device& device,
                                         HostWorkers& workers, FeedFacts& facts);

}  // namespace penstock
