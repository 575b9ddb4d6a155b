#pragma once

#include "commands.hpp"
#include "output.hpp"
#include "trace_report.hpp"

#include <string>
#include <vector>

namespace penstock::cli {

/// Examines timelines as the user's options say. Its constructor throws UsageError or Error if one of their
/// files cannot be used.
class Examiner {
 public:
  explicit Examiner(const DoctorOptions& options);

  /// `name` says in the report what was examined.
  [[nodiscard]] TraceReport examine(std::string name, const Timeline& timeline) const;
  /// kBudgetBroken, or 0.
  [[nodiscard]] static int status(const TraceReport& report);
  /// The file of --json.
  [[nodiscard]] OutputFile& output() noexcept { return output_; }

 private:
  OutputFile output_;
  DiagnosisOptions how_;
  bool has_budget_ = false;
  std::vector<BudgetLine> budget_;
};

}  // namespace penstock::cli
