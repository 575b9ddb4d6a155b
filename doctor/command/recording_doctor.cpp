#include "cli/shared/output.hpp"
#include "cli/shared/run_program.hpp"
#include "cli/shared/terminal.hpp"
#include "doctor/command/doctor_command.hpp"
#include "doctor/command/recorded_program.hpp"
#include "doctor/command/trace_doctor.hpp"
#include "doctor/read/recording.hpp"
#include "doctor/report/gain_comparison.hpp"
#include "doctor/report/rank_comparison.hpp"
#include "doctor/report/trace_report.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <cstddef>
#include <exception>
#include <filesystem>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::cli {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kFailed = 1;

struct Examined {
  std::vector<TraceReport> reports;  ///< of the processes that used a GPU
  std::vector<std::string> remarks;  ///< about the others, if there are no reports
  std::vector<std::string> unread;   ///< about recordings that cannot be read
};

bool used_gpu(const Timeline& timeline) { return !timeline.copies.empty() || !timeline.work.empty(); }

Examined examine(const Examiner& examiner, const fs::path& folder, const std::string& name) {
  Examined examined;
  for (Recording& recording : read_recordings(folder, &examined.unread)) {
    const std::string process = fmt::format("{}, process {}", name, recording.process);
    if (used_gpu(recording.timeline)) {
      examined.reports.push_back(examiner.examine(process, recording.timeline));
      examined.reports.back().process = recording.process;
      continue;
    }
    std::string remark = process + ": no work of a GPU was recorded.";
    for (const std::string& note : recording.timeline.notes) remark += " " + note;
    examined.remarks.push_back(std::move(remark));
  }
  return examined;
}

bool holds_recordings(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename().string().find(".penstock") != std::string::npos) return true;
  }
  return bool(error);  // reading them says why
}

/// The same of a program's folder.
Examined examine_program(const Examiner& examiner, const fs::path& folder, const std::string& name) {
  if (holds_recordings(folder)) return examine(examiner, folder, name);
  Examined none;
  none.remarks.push_back(
      name +
      ": nothing was recorded: no process loaded the recorder. Either none used CUDA, or they did not get "
      "this environment (containers, sudo, ssh).");
  return none;
}

std::string report_text(const Examined& examined, std::size_t columns) {
  std::string text = reports_text(examined.reports, columns);
  if (text.empty()) {
    for (const std::string& remark : examined.remarks) text += remark + "\n";
  } else if (!examined.unread.empty()) {
    text += "\n";
  }
  for (const std::string& remark : examined.unread) text += remark + "\n";
  return text;
}

/// A program that was run, or a folder of recordings.
struct Run {
  std::string name;
  std::optional<int> exit_status;  ///< nullopt: a folder
  Examined examined;
};

/// The changed program of --verify, and what it gained.
struct Verification {
  std::string name;
  std::optional<Run> changed;  ///< nullopt: it was not run
  std::vector<std::vector<GainComparison>> processes;
  std::string remark;  ///< why nothing is compared, or empty
  bool failed = false;
};

std::string why_not_compared(const Run& first, const Run& changed) {
  const std::size_t before = first.examined.reports.size();
  const std::size_t after = changed.examined.reports.size();
  if (*changed.exit_status != 0)
    return fmt::format("It ended with exit status {}, so nothing is compared.", *changed.exit_status);
  if (before != after) {
    return fmt::format("{} of its processes used a GPU, and {} before, so nothing is compared.", after,
                       before);
  }
  return "";
}

/// What to say of an error.
std::string reason(const std::exception& error) {
  const bool lacks_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  return lacks_memory ? "There is not enough host memory for this." : one_line(error.what());
}

/// What --verify runs.
struct Changed {
  std::string name;
  std::vector<std::string> words;
};

Changed changed_program(const DoctorOptions& options, const Environment& environment) {
  if (options.verify != kUnderRun) return {options.verify, {"/bin/sh", "-c", options.verify}};
  std::vector<std::string> words = own_command(environment.python);
  words.insert(words.end(), {"run", "--"});
  words.insert(words.end(), options.command.begin(), options.command.end());
  return {fmt::format("{} -- {}", kUnderRun, fmt::join(options.command, " ")), std::move(words)};
}

Run run_changed(const Recorder& recorder, const Examiner& examiner, const Changed& changed) {
  RecordingFolder folder("");
  Run run{changed.name, recorder.run(changed.words, folder), {}};
  try {
    run.examined = examine_program(examiner, folder.path(), changed.name);
  } catch (const std::exception& error) {
    folder.keep();
    throw Error(fmt::format("{} Its recordings stay in {}.", reason(error), folder.path().string()));
  }
  return run;
}

Verification verify(const Recorder& recorder, const Examiner& examiner, const Changed& program,
                    const Run& first) {
  Verification verification{program.name, std::nullopt, {}, ""};
  if (*first.exit_status != 0 || first.examined.reports.empty()) {
    verification.remark =
        *first.exit_status != 0
            ? fmt::format("It was not run, because the first program ended with exit status {}.",
                          *first.exit_status)
            : "It was not run: the first program did no work on a GPU.";
    return verification;
  }
  say(fmt::format("\npenstock: now {}\n", program.name));
  try {
    verification.changed = run_changed(recorder, examiner, program);
  } catch (const std::exception& error) {
    verification.remark = fmt::format("Nothing is compared. {}", reason(error));
    verification.failed = true;
    return verification;
  }
  const Run& changed = *verification.changed;
  verification.remark = why_not_compared(first, changed);
  if (!verification.remark.empty()) return verification;
  for (std::size_t i = 0; i < changed.examined.reports.size(); ++i) {
    verification.processes.push_back(compare_gains(first.examined.reports[i], changed.examined.reports[i]));
  }
  return verification;
}

std::string verification_text(const Verification& verification, const Run& first, std::size_t columns) {
  std::string text = fmt::format("\nverified with {}\n", verification.name);
  if (!verification.remark.empty()) text += paragraph(verification.remark, columns);
  if (verification.changed) {
    for (const std::string& remark : verification.changed->examined.unread) text += remark + "\n";
  }
  for (std::size_t i = 0; i < verification.processes.size(); ++i) {
    if (verification.processes.size() > 1) text += first.examined.reports[i].file + "\n";
    for (const GainComparison& comparison : verification.processes[i])
      text += gain_comparison_text(comparison, columns);
  }
  return text;
}

std::string verified_with(const Verification& verification) {
  return fmt::format("Verified with {}", verification.name);
}

/// About a process that was compared.
std::vector<std::string> comparison_lines(const Verification& verification, std::size_t process) {
  std::vector<std::string> lines{verified_with(verification)};
  for (const GainComparison& comparison : verification.processes[process]) {
    for (std::string& line : gain_comparison_lines(comparison)) lines.push_back(std::move(line));
  }
  return lines;
}

/// About all processes, if none was compared.
std::vector<std::string> remark_lines(const std::optional<Verification>& verification) {
  if (!verification || verification->remark.empty()) return {};
  return {verified_with(*verification), verification->remark};
}

Json run_json(const Run& run) {
  Json processes = Json::array();
  for (const TraceReport& report : run.examined.reports) {
    processes.push_back({{"process", *report.process}});
    processes.back().update(trace_json(report));
  }
  std::vector<std::string> remarks = run.examined.remarks;
  remarks.insert(remarks.end(), run.examined.unread.begin(), run.examined.unread.end());
  return {{"name", run.name},
          {"exit_status", run.exit_status ? Json(*run.exit_status) : Json(nullptr)},
          {"processes", std::move(processes)},
          {"remarks", remarks}};
}

Json verification_json(const Verification& verification) {
  Json comparisons = Json::array();
  for (const std::vector<GainComparison>& process : verification.processes) {
    Json devices = Json::array();
    for (const GainComparison& comparison : process) devices.push_back(gain_comparison_json(comparison));
    comparisons.push_back(std::move(devices));
  }
  return {{"name", verification.name},
          {"remark", verification.remark},
          {"comparisons", std::move(comparisons)},
          {"changed", verification.changed ? run_json(*verification.changed) : Json(nullptr)}};
}

/// Of a program.
int exit_status_of(const Run& run, const std::optional<Verification>& verification) {
  if (*run.exit_status != 0) return *run.exit_status;
  if (verification && verification->failed) return kFailed;
  return verification && verification->changed ? *verification->changed->exit_status : 0;
}

void write_report(Examiner& examiner, Run& run, const std::optional<Verification>& verification) {
  Examined& examined = run.examined;
  for (std::size_t i = 0; verification && i < verification->processes.size(); ++i)
    examined.reports[i].verified = comparison_lines(*verification, i);
  const auto tell = [&] {
    const int stream = run.exit_status ? STDERR_FILENO : STDOUT_FILENO;
    const bool quiet = !run.exit_status && examiner.has_standard_output();
    const std::size_t columns = terminal_columns(stream);
    std::string text = quiet ? "" : report_text(examined, columns);
    if (verification) text += verification_text(*verification, run, columns);
    if (examiner.has_page() && examined.reports.empty())
      text += "There is no page: no work of a GPU was recorded.\n";
    run.exit_status ? say("\n" + text) : quiet ? say(text) : print(text);
  };
  const auto write_json = [&] {
    if (!examiner.json()) return;
    Json value{{"schema", "penstock-recording-diagnosis/1"}};
    value.update(run_json(run));
    value["verify"] = verification ? verification_json(*verification) : Json(nullptr);
    examiner.json().write(json_text(value));
  };
  const auto write_page = [&] {
    if (!examined.reports.empty()) examiner.write_page(examined.reports, remark_lines(verification));
  };
  run_all({tell, write_json, write_page});
}

int report_folder(Examiner& examiner, const DoctorOptions& options) {
  const std::string& folder = options.traces.front();
  Run run{folder, std::nullopt, examine(examiner, folder, folder)};
  if (run.examined.reports.empty() && run.examined.remarks.empty())
    throw Error(fmt::format("{}", fmt::join(run.examined.unread, " ")));
  write_report(examiner, run, std::nullopt);
  return 0;
}

/// Once the program has run, an error costs neither its exit status nor what was recorded.
int report_program(Examiner& examiner, const DoctorOptions& options, const Environment& environment) {
  const Recorder recorder(options, examiner.has_standard_output());
  RecordingFolder folder(options.record);
  Run run{fmt::format("{}", fmt::join(options.command, " ")), recorder.run(options.command, folder), {}};
  try {
    run.examined = examine_program(examiner, folder.path(), run.name);
    std::optional<Verification> verification;
    if (!options.verify.empty())
      verification = verify(recorder, examiner, changed_program(options, environment), run);
    write_report(examiner, run, verification);
    return exit_status_of(run, verification);
  } catch (const std::exception& error) {
    folder.keep();
    say(fmt::format(
        "\npenstock: {0}\npenstock: the recordings stay in {1}; penstock doctor {1} examines them\n",
        reason(error), folder.path().string()));
    return *run.exit_status != 0 ? *run.exit_status : kFailed;
  }
}

}  // namespace

int run_recording_doctor(const DoctorOptions& options, const Environment& environment) {
  Examiner examiner(options, environment);
  return options.command.empty() ? report_folder(examiner, options)
                                 : report_program(examiner, options, environment);
}

}  // namespace penstock::cli
