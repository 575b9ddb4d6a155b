#pragma once

#include "commands.hpp"

#include <penstock/link/group_measurement.hpp>
#include <penstock/link/link_measurement.hpp>

#include <string>

namespace penstock::cli {

/// The results of a measurement as text: tables, the curve, the costs.
[[nodiscard]] std::string link_report(const DeviceInfo& device, const LinkMeasurement& measurement);
/// The same of a group: its links, the copies between its devices, and what they bring together.
[[nodiscard]] std::string group_report(const DeviceGroup& group, const GroupMeasurement& measurement);

}  // namespace penstock::cli
