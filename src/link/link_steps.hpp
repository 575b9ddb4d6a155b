#pragma once

#include "link/link_bench.hpp"

#include <penstock/transfer/transfer_engine.hpp>

#include <cstddef>
#include <functional>
#include <memory>

namespace penstock {

/// The state that the steps of a measurement share. measure_link lists the steps in their order.
struct LinkRun {
  LinkBench& bench;
  LinkMeasurement& result;
  /// Made by search_staging, with the settings it found.
  std::unique_ptr<TransferEngine> engine;
  /// Takes the share of the current step that is done.
  std::function<void(double)> advance;
};

/// Fills result.host_copy.
void measure_host_copy(LinkRun& run);
/// Tries threads, chunks and stores; fills result.staging_trials, the profile's settings, and run.engine.
void search_staging(LinkRun& run);
/// Fills a curve of the profile, by the host's clock.
void measure_curve(LinkRun& run, LinkProfile::Curve curve);
/// Fills the profile's grid of a direction.
void measure_packed(LinkRun& run, CopyDirection direction);
/// Fills the profile's gathers: shuffled batches, as a loader makes them. Takes the link's ceiling from the
/// profile's pinned curve.
void measure_gathers(LinkRun& run);
/// Fills the profile's copy_interval.
void measure_copy_interval(LinkRun& run);

}  // namespace penstock
