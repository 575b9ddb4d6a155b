#pragma once

#include "loader/feed_facts.hpp"

#include <penstock/data/dataset.hpp>
#include <penstock/device/device.hpp>
#include <penstock/loader/feed_plan.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/memory/registration.hpp>

#include <cstddef>
#include <vector>

namespace penstock {

/// The memory from which the device reads samples, page-locked for as long as this object lives.
struct LockedSources {
  /// For each field, the device's address of the first sample that streams; null if it is not read there.
  std::vector<const std::byte*> samples;
  std::vector<Registration> registrations;
  std::vector<Buffer> copies;
  /// A lock or copy was refused, and noted in the facts. The plan must be made again.
  bool refused = false;
};

/// Locks or copies the memory that the device reads. Blocks the host: about 30 ms per GiB. Throws
/// DeviceError.
[[nodiscard]] LockedSources lock_sources(const FeedPlan& plan, const Dataset& dataset, const Device& device,
                                         FeedFacts& facts);

}  // namespace penstock
