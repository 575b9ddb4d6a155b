#pragma once

#include "doctor/rules/findings.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::cli {

/// One line of a budget: "no FINDING", "PART below N %" or "step below N ms".
struct BudgetLine {
  std::string text;
  std::string name;            ///< id of a finding, name of a part, or "step"
  std::optional<double> most;  ///< share or seconds; nullopt: no such finding may gain anything
};

/// Reads a budget: a condition a line, with empty lines and comments behind #. A byte order mark of UTF-8 may
/// begin it. `file` names it in errors.
/// Throws Error with the line.
[[nodiscard]] std::vector<BudgetLine> parse_budget(std::string_view text, const std::string& file);

/// A condition that is broken, or cannot be judged by what was recorded.
struct BudgetBreach {
  std::string text;  ///< the condition
  std::string why;
};
[[nodiscard]] std::vector<BudgetBreach> check_budget(const std::vector<BudgetLine>& budget,
                                                     const Diagnosis& diagnosis);

}  // namespace penstock::cli
