#pragma once

#include "commands.hpp"

#include <penstock/doctor/link_measurement.hpp>

#include <string>

namespace penstock::cli {

/// What a measurement found, for people: tables, the curve, the costs.
[[nodiscard]] std::string link_report(const DeviceInfo& device, const LinkMeasurement& measurement,
                                      const Look& look);

}  // namespace penstock::cli
