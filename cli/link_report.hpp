#pragma once

#include "commands.hpp"

#include <penstock/link/link_measurement.hpp>

#include <string>

namespace penstock::cli {

/// The results of a measurement as text: tables, the curve, the costs.
[[nodiscard]] std::string link_report(const DeviceInfo& device, const LinkMeasurement& measurement);

}  // namespace penstock::cli
