#pragma once

#include "doctor/report/trace_report.hpp"
#include "doctor/timeline/timeline.hpp"

#include <penstock/transfer/link_profile.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace penstock::cli {

/// What a page shows: the reports on all processes, at least one. The timeline and the link are those of one
/// of them.
struct PageReports {
  std::span<const TraceReport> all;
  std::size_t drawn = 0;                   ///< index of that one
  std::vector<std::string> verified = {};  ///< lines about the changed program of --verify, if all share them
};

/// The reports as one HTML page that loads nothing. `timeline` is that of the drawn one. `profile` is that of
/// the recorded machine, if there is one.
[[nodiscard]] std::string trace_page(const PageReports& reports, const Timeline& timeline,
                                     const LinkProfile* profile);

}  // namespace penstock::cli
