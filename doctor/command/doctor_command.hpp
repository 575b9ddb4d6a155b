#pragma once

#include "cli/shared/environment.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::cli {

struct DoctorOptions {
  std::string loader;  ///< "FILE.py:NAME"
  double seconds = 2;  ///< of each run
  std::optional<double> step_ms;
  /// Of PyTorch's profiler, several if they are of ranks; or a folder of recordings, or one of them. In place
  /// of a loader.
  std::vector<std::string> traces;
  std::vector<std::string> command;  ///< a program and its arguments, in place of a trace
  std::string verify;                ///< shell line of the changed program, kUnderRun, or empty for none
  std::string record;                ///< folder to keep the command's recordings in, empty for none
  std::string recorder;              ///< library to record with, empty: the one that lies beside the command
  bool no_lines = false;             ///< record no places of calls
  bool no_contents = false;          ///< record nothing of what copies contain
  std::string profile;               ///< link profile of the machine that was recorded, empty for none
  std::string json;                  ///< file, "-" for standard output, empty for none
  std::string html;                  ///< file for a page, empty for none
};
/// In place of a line: the program as it is, under `penstock run`.
inline constexpr std::string_view kUnderRun = "penstock run";
/// Examines a trace or a program; or runs python3, and throws Error if that ends without a verdict.
int run_doctor(const DoctorOptions& options, const Environment& environment);
/// Examines traces, or a folder of recordings, and returns 0.
int run_trace_doctor(const DoctorOptions& options, const Environment& environment);
/// Runs the command and examines what it did. If its exit status is 0, runs the changed program, if there is
/// one, and compares. Returns the first exit status that is not 0; if there is none, 1 if what it did cannot
/// be examined or written.
int run_recording_doctor(const DoctorOptions& options, const Environment& environment);

/// The options of `penstock doctor`; `options` outlives `app`.
void add_doctor(CLI::App& app, DoctorOptions& options);

/// What `penstock doctor` is to do: "run", "read" or "loader"; empty: `words`, of the command line up to --,
/// do not say it. Then they are as `penstock doctor TRACE`, `penstock doctor -- PROGRAM` or `penstock doctor
/// --loader FILE.py:NAME`.
[[nodiscard]] std::string_view doctor_form(const std::vector<std::string>& words, bool has_program);
/// The words with a form, as add_doctor's options take them: `loader` if --loader is among them, `run` with a
/// program or an option of its recording, or else `read`.
[[nodiscard]] std::vector<std::string> with_doctor_form(std::vector<std::string> words, bool has_program);

}  // namespace penstock::cli
