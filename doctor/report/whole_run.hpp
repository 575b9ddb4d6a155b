#pragma once

#include "doctor/read/recording.hpp"
#include "doctor/rules/findings.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace penstock::cli {

/// The totals of a run of which the timeline has only the last part.
struct WholeRunReport {
  WholeRun run;
  std::vector<FindingPlace> devices;  ///< kernels and copies: "GPU 0", and in `op` their kind
  std::vector<FindingPlace> lines;    ///< calls and waits by place and kind, the most time first
  std::vector<FindingPlace> others;   ///< what the recording had no room for, by kind
};

/// nullopt if the timeline has the whole run. The recording's places have their names.
[[nodiscard]] std::optional<WholeRunReport> whole_run_report(const Recording& recording);

/// "The timeline covers the last 12.3 s of 620 s, 1.98 % of the run."
[[nodiscard]] std::string coverage_text(const WholeRunReport& report);
[[nodiscard]] std::string whole_run_text(const WholeRunReport& report, std::size_t columns);
[[nodiscard]] nlohmann::ordered_json whole_run_json(const WholeRunReport& report);

}  // namespace penstock::cli
