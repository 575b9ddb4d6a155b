#pragma once

#include "commands.hpp"

#include <penstock/link/group_measurement.hpp>

#include <string>

namespace penstock::cli {

/// The rates of a group as text: the links, the copies between devices, and what they bring together.
[[nodiscard]] std::string group_report(const DeviceGroup& group, const GroupMeasurement& measurement);

}  // namespace penstock::cli
