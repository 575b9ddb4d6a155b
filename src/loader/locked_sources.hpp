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

/// The memory that the device reads samples out of, page-locked for as long as this lives.
struct LockedSources {
  /// For each field, where the device reaches the first sample that streams; null if it does not read it.
  std::vector<const std::byte*> samples;
  std::vector<Registration> registrations;
  std::vector<Buffer> copies;
  /// Something was refused, and noted in the facts: the plan has to be made again.
  bool refused = false;
};

/// Locks or copies the memory that `plan` has the device read. Blocks the host: about 30 ms per GiB. Throws
/// DeviceError.
[[nodiscard]] LockedSources lock_sources(const FeedPlan& plan, const Dataset& dataset, const Device& device,
                                         FeedFacts& facts);

}  // namespace penstock
