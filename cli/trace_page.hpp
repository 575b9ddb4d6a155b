#pragma once

#include "trace_report.hpp"

#include <penstock/doctor/timeline.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <optional>
#include <string>

namespace penstock::cli {

/// The report on a trace as one HTML page that loads nothing. `profile` is that of the recorded machine, if
/// there is one. `chart_library` is d3's text. Without it the page has no timeline and no curves, and says
/// what is missing.
[[nodiscard]] std::string trace_page(const TraceReport& report, const Timeline& timeline,
                                     const LinkProfile* profile,
                                     const std::optional<std::string>& chart_library);

}  // namespace penstock::cli
