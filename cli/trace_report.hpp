#pragma once

#include "budget.hpp"
#include "terminal.hpp"

#include <penstock/doctor/findings.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::cli {

/// What the doctor says about a trace.
struct TraceReport {
  std::string file;
  std::uint64_t events = 0;
  Diagnosis diagnosis;
  std::optional<std::vector<BudgetBreach>> breaches;  ///< nullopt: there was no budget
};

[[nodiscard]] std::string trace_text(const TraceReport& report, const Look& look);
[[nodiscard]] std::string trace_json(const TraceReport& report);

}  // namespace penstock::cli
