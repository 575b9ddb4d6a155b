#pragma once

#include "doctor/report/trace_report.hpp"

#include <span>
#include <string>
#include <vector>

namespace penstock::cli {

/// The reports on all processes, at least one, as one HTML page that loads nothing. `verified`: lines about
/// the changed program of --verify, if all processes share them.
[[nodiscard]] std::string trace_page(std::span<const TraceReport> reports,
                                     const std::vector<std::string>& verified = {});

}  // namespace penstock::cli
