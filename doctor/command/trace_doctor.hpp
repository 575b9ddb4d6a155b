#pragma once

#include "cli/shared/output.hpp"
#include "doctor/command/doctor_command.hpp"
#include "doctor/report/trace_report.hpp"
#include "doctor/timeline/timeline.hpp"

#include <penstock/transfer/link_profile.hpp>

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock::cli {

/// Examines timelines as the user's options say, and writes what they ask for. Its constructor throws
/// UsageError or Error if one of their files cannot be used, before anything is read or run.
class Examiner {
 public:
  Examiner(const DoctorOptions& options, const Environment& environment);

  /// `name` says in the report what was examined.
  [[nodiscard]] TraceReport examine(std::string name, const Timeline& timeline) const;
  /// The file of --json.
  [[nodiscard]] OutputFile& json() noexcept { return json_; }
  /// True if a page is asked for.
  [[nodiscard]] bool has_page() const noexcept { return bool(html_); }
  /// Writes the page, if it is asked for. `verified` is as in trace_page().
  void write_page(std::span<const TraceReport> reports, const std::vector<std::string>& verified = {});
  /// One of the files is standard output, so nothing else may go there.
  [[nodiscard]] bool has_standard_output() const noexcept { return has_standard_output_; }

 private:
  /// Null if there is none.
  [[nodiscard]] const LinkProfile* profile_of(const Timeline& timeline) const;
  /// What the report says if --profile is of none of the recorded devices.
  [[nodiscard]] std::optional<NotExamined> other_profile(const Timeline& timeline) const;

  OutputFile json_;
  OutputFile html_;
  bool has_standard_output_ = false;
  std::optional<LinkProfile> named_;  ///< by --profile
  std::vector<LinkProfile> here_;     ///< of this machine's GPUs, if the program runs on it
};

}  // namespace penstock::cli
