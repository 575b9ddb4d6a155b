#pragma once

#include <penstock/device/device_group.hpp>
#include <penstock/link/link_measurement.hpp>
#include <penstock/transfer/group_profile.hpp>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace penstock {

struct GroupMeasurementOptions {
  /// Of one copy, at least 1 MiB. Lowered, with a note, if the host or a device lacks room for it.
  std::size_t bytes = std::size_t{256} << 20;
  /// Fewer repetitions.
  bool quick = false;
  /// Most repetitions of a rate; 0: as the time allows, up to 200.
  std::size_t repetitions = 0;
  /// As in LinkMeasurementOptions.
  std::function<void(const LinkProgress&)> progress;
};

/// One setting of the search for the best chunks.
struct GroupTrial {
  std::size_t chunk_bytes = 0;
  unsigned slots = 0;
  double fed_once = 0;  ///< bytes per second that each member received
};

struct GroupMeasurement {
  GroupProfile profile;
  std::vector<GroupTrial> trials;
  std::size_t bytes = 0;           ///< of one copy
  std::vector<std::string> notes;  ///< as in LinkMeasurement; also members that do not reach each other
  std::size_t verified_bytes = 0;  ///< compared with their source after a measurement
  double seconds = 0;              ///< the whole measurement

  /// All members as JSON text, in seconds and bytes.
  [[nodiscard]] std::string to_json() const;
};

/// Measures a group of two devices or more on an otherwise idle machine: each link alone and all at once, the
/// copies from each member to each other, the settings for GroupEngine, feeding all once, and a relay to
/// each. Blocks the host throughout. After each measurement, compares the destinations with the random source
/// data. If they differ, throws Error that names the measurement. Throws InvalidArgument for one device,
/// OutOfMemory if there is no room for 1 MiB, DeviceError.
[[nodiscard]] GroupMeasurement measure_group(const DeviceGroup& group,
                                             const GroupMeasurementOptions& options = {});

}  // namespace penstock
