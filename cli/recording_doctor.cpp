#include "code_reader.hpp"
#include "commands.hpp"
#include "gain_comparison.hpp"
#include "output.hpp"
#include "run_program.hpp"
#include "trace_doctor.hpp"
#include "trace_report.hpp"

#include <penstock/core/error.hpp>
#include <penstock/doctor/recording.hpp>

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::cli {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kRecorder = "libpenstock_recorder.so";
constexpr const char* kInjection = "CUDA_INJECTION64_PATH";
constexpr const char* kRangeInjection = "NVTX_INJECTION64_PATH";
constexpr const char* kRecordWithout = "PENSTOCK_RECORD_WITHOUT";
// As the recorder knows them (recorder/parts.hpp, recording_format.hpp).
constexpr std::array<std::string_view, 6> kRecordedParts = {"kernels", "launches", "calls",
                                                            "lines",   "contents", "nodes"};
constexpr std::uint64_t kMostRecords = std::uint64_t{1} << 28;

/// Beside the command or the Python module; where `cmake --install` puts it.
fs::path find_recorder(const std::string& named) {
  if (!named.empty()) return fs::absolute(named);
  std::vector<fs::path> folders;
  Dl_info here{};
  if (::dladdr(reinterpret_cast<const void*>(&run_recording_doctor), &here) != 0 &&
      here.dli_fname != nullptr && fs::path(here.dli_fname).is_absolute()) {
    folders.push_back(fs::path(here.dli_fname).parent_path());
  }
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    const fs::path folder = program.parent_path();
    folders.insert(folders.end(), {folder, folder.parent_path() / PENSTOCK_LIBDIR / "penstock"});
  }
  for (const fs::path& folder : folders) {
    if (fs::is_regular_file(folder / kRecorder, error)) return folder / kRecorder;
  }
  throw Error(fmt::format("{} is missing beside the command; install penstock again", kRecorder));
}

/// The folder of the recordings. Unless it is the user's, it ends with this object.
class RecordingFolder {
 public:
  explicit RecordingFolder(const std::string& named) : kept_(!named.empty()) {
    std::error_code error;
    if (kept_) {
      fs::create_directories(named, error);
      if (!fs::is_directory(named)) throw Error(fmt::format("--record: {} cannot be made a folder", named));
      if (!fs::is_empty(named, error)) {
        throw UsageError(fmt::format("--record: {} is not empty; name a new folder", named));
      }
      path_ = fs::canonical(named);
      if (::access(path_.c_str(), W_OK) != 0)
        throw Error(fmt::format("--record: {} cannot be written: {}", named, std::strerror(errno)));
      return;
    }
    std::string pattern = (fs::temp_directory_path() / "penstock-recording-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr)
      throw Error(fmt::format("{} cannot be made: {}", pattern, std::strerror(errno)));
    path_ = pattern;
  }
  ~RecordingFolder() {
    std::error_code error;
    if (!kept_) fs::remove_all(path_, error);
  }
  RecordingFolder(const RecordingFolder&) = delete;
  RecordingFolder& operator=(const RecordingFolder&) = delete;

  [[nodiscard]] const fs::path& path() const noexcept { return path_; }

 private:
  bool kept_;
  fs::path path_;
};

/// A profiler around this command would lose the program; one that the user set up inside would lose it to
/// us.
void refuse_other_injection() {
  const char* const other = std::getenv(kInjection);
  if (other == nullptr || *other == 0) return;
  throw Error(fmt::format(
      "{} is set to {}: another profiler wants to record the program. Unset it, or do without the "
      "other one",
      kInjection, other));
}

/// The recorder takes its options from the environment, and cannot complain in the program. Throws
/// UsageError.
void check_recorder_variables(bool has_own_parts) {
  if (const char* const records = std::getenv("PENSTOCK_RECORDS")) {
    const std::string_view text = records;
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || number < 1 || number > kMostRecords) {
      throw UsageError(fmt::format("PENSTOCK_RECORDS is '{}', and not a number of records from 1 to {}", text,
                                   kMostRecords));
    }
  }
  const char* const without = std::getenv(kRecordWithout);
  if (without == nullptr || has_own_parts) return;
  std::istringstream names{std::string(without)};
  for (std::string name; std::getline(names, name, ',');) {
    if (name.empty() || std::ranges::find(kRecordedParts, name) != kRecordedParts.end()) continue;
    throw UsageError(fmt::format("{} names '{}'; it may have {}, with commas between them", kRecordWithout,
                                 name, fmt::join(kRecordedParts, ", ")));
  }
}

struct Examined {
  std::vector<TraceReport> reports;  ///< of the processes that used a GPU
  Timeline first;                    ///< of the first of them, if a page or a trace is asked for
  std::vector<std::string> remarks;  ///< about the others, if there are no reports
  Json processes = Json::array();
};

bool used_gpu(const Timeline& timeline) { return !timeline.copies.empty() || !timeline.work.empty(); }

Examined examine(const Examiner& examiner, const fs::path& folder, const std::string& name) {
  Examined examined;
  LineReader lines;
  for (Recording& recording : read_recordings(folder)) {
    name_code_places(recording, lines);
    const std::string process = fmt::format("{}, process {}", name, recording.process);
    if (used_gpu(recording.timeline)) {
      examined.reports.push_back(examiner.examine(process, recording.timeline));
      examined.reports.back().whole_run = whole_run_report(recording);
      Json process_json{{"process", recording.process}};
      process_json.update(Json::parse(trace_json(examined.reports.back())));
      examined.processes.push_back(std::move(process_json));
      if (examiner.draws() && examined.reports.size() == 1) examined.first = std::move(recording.timeline);
      continue;
    }
    std::string remark = process + ": no work of a GPU was recorded.";
    for (const std::string& note : recording.timeline.notes) remark += " " + note;
    examined.remarks.push_back(std::move(remark));
  }
  return examined;
}

bool holds_recordings(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".penstock") return true;
  }
  return false;
}

std::string report_text(const Examined& examined, const Look& look) {
  std::string text;
  for (const TraceReport& report : examined.reports)
    text += (text.empty() ? "" : "\n") + trace_text(report, look);
  if (!text.empty()) return text;
  for (const std::string& remark : examined.remarks) text += remark + "\n";
  return text;
}

/// What is drawn, unless it is all there is.
std::string drawn_text(const Examined& examined) {
  if (examined.reports.empty()) return "Nothing was drawn: no work of a GPU was recorded.\n";
  if (examined.reports.size() == 1) return "";
  return fmt::format("Drawn is {}, the first of {} with work of a GPU.\n", examined.reports[0].file,
                     examined.reports.size());
}

/// A program that was run, or a folder of recordings.
struct Run {
  std::string name;
  std::optional<int> exit_status;  ///< nullopt: a folder
  Examined examined;
};

/// Runs programs under the recorder, and examines what they did.
class Recorder {
 public:
  /// Throws Error if the library is missing, another one is to record the program, or a variable for it is
  /// wrong.
  Recorder(const Examiner& examiner, const DoctorOptions& options)
      : examiner_(examiner), library_(find_recorder(options.recorder)) {
    refuse_other_injection();
    if (options.no_lines) left_out_.emplace_back("lines");
    if (options.no_contents) left_out_.emplace_back("contents");
    check_recorder_variables(!left_out_.empty());
  }

  /// `record` names the folder of the recordings; empty: they are not kept.
  [[nodiscard]] Run run(const std::vector<std::string>& words, std::string name,
                        const std::string& record) const {
    const RecordingFolder folder(record);
    Run run{std::move(name), std::nullopt, {}};
    std::vector<std::string> environment{fmt::format("{}={}", kInjection, library_.string()),
                                         fmt::format("PENSTOCK_RECORD={}", folder.path().string())};
    // Ranges tell the steps. Another tool that wants them has them.
    if (std::getenv(kRangeInjection) == nullptr)
      environment.push_back(fmt::format("{}={}", kRangeInjection, library_.string()));
    if (!left_out_.empty())
      environment.push_back(fmt::format("{}={}", kRecordWithout, fmt::join(left_out_, ",")));
    const pid_t process = start_program(words, {.variables = environment},
                                        fmt::format("there is no program '{}' in the PATH", words[0]));
    run.exit_status = wait_for_program(process);
    if (holds_recordings(folder.path())) {
      run.examined = examine(examiner_, folder.path(), run.name);
    } else {
      run.examined.remarks.push_back(
          run.name + ": the program used no CUDA, as none of its processes initialized the driver.");
    }
    return run;
  }

 private:
  const Examiner& examiner_;
  fs::path library_;
  std::vector<std::string> left_out_;  ///< of what is recorded
};

/// The changed program of --verify, and what it gained.
struct Verification {
  std::string name;
  std::optional<Run> changed;  ///< nullopt: it was not run
  std::vector<std::vector<GainComparison>> processes;
  std::string remark;  ///< why nothing is compared, or empty
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

Verification verify(const Recorder& recorder, const std::string& line, const Run& first) {
  Verification verification{line, std::nullopt, {}, ""};
  if (*first.exit_status != 0 || first.examined.reports.empty()) {
    verification.remark =
        *first.exit_status != 0
            ? fmt::format("It was not run, because the first program ended with exit status {}.",
                          *first.exit_status)
            : "It was not run: the first program did no work on a GPU.";
    return verification;
  }
  say(fmt::format("\npenstock: now {}\n", line));
  verification.changed = recorder.run({"/bin/sh", "-c", line}, line, "");
  const Run& changed = *verification.changed;
  verification.remark = why_not_compared(first, changed);
  if (!verification.remark.empty()) return verification;
  for (std::size_t i = 0; i < changed.examined.reports.size(); ++i) {
    verification.processes.push_back(compare_gains(first.examined.reports[i], changed.examined.reports[i]));
  }
  return verification;
}

std::string verification_text(const Verification& verification, const Run& first, const Look& look) {
  std::string text = fmt::format("\nverified with {}\n", verification.name);
  if (!verification.remark.empty()) text += paragraph(verification.remark, look);
  for (std::size_t i = 0; i < verification.processes.size(); ++i) {
    if (verification.processes.size() > 1) text += first.examined.reports[i].file + "\n";
    for (const GainComparison& comparison : verification.processes[i])
      text += gain_comparison_text(comparison, look);
  }
  return text;
}

/// About the first process that used a GPU, which is the one that is drawn.
std::vector<std::string> verification_lines(const Verification& verification) {
  std::vector<std::string> lines{fmt::format("Verified with {}", verification.name)};
  if (!verification.remark.empty()) lines.push_back(verification.remark);
  if (verification.processes.empty()) return lines;
  for (const GainComparison& comparison : verification.processes.front()) {
    for (std::string& line : gain_comparison_lines(comparison)) lines.push_back(std::move(line));
  }
  return lines;
}

Json run_json(const Run& run) {
  return {{"name", run.name},
          {"exit_status", run.exit_status ? Json(*run.exit_status) : Json(nullptr)},
          {"processes", run.examined.processes},
          {"remarks", run.examined.remarks}};
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

int exit_status_of(const Run& run, const std::optional<Verification>& verification, bool has_budget) {
  if (run.exit_status.value_or(0) != 0) return *run.exit_status;
  if (verification && verification->changed) return *verification->changed->exit_status;
  if (has_budget && run.examined.reports.empty()) return kBudgetBroken;
  for (const TraceReport& report : run.examined.reports) {
    if (Examiner::status(report) != 0) return Examiner::status(report);
  }
  return 0;
}

}  // namespace

int run_recording_doctor(const DoctorOptions& options, const Environment& environment) {
  Examiner examiner(options, environment);
  Run run{options.trace, std::nullopt, {}};
  std::optional<Verification> verification;
  if (options.command.empty()) {
    run.examined = examine(examiner, options.trace, options.trace);
  } else {
    const Recorder recorder(examiner, options);
    run = recorder.run(options.command, fmt::format("{}", fmt::join(options.command, " ")), options.record);
    if (!options.verify.empty()) verification = verify(recorder, options.verify, run);
  }
  if (verification && !run.examined.reports.empty())
    run.examined.reports.front().verified = verification_lines(*verification);
  const Examined& examined = run.examined;
  const auto tell = [&] {
    const int stream = run.exit_status ? STDERR_FILENO : STDOUT_FILENO;
    const bool quiet = !run.exit_status && examiner.has_standard_output();
    const Look look{false, terminal_columns(stream)};
    std::string text = quiet ? "" : report_text(examined, look);
    if (verification) text += verification_text(*verification, run, look);
    if (examiner.draws()) text += drawn_text(examined) + examiner.missing();
    run.exit_status ? say("\n" + text) : quiet ? say(text) : print(text);
  };
  const auto write_json = [&] {
    if (!examiner.json()) return;
    Json json{{"schema", "penstock-recording-diagnosis/1"}};
    json.update(run_json(run));
    json["verify"] = verification ? verification_json(*verification) : Json(nullptr);
    examiner.json().write(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  };
  const auto draw = [&] {
    if (examiner.draws() && !examined.reports.empty()) examiner.draw(examined.reports[0], examined.first);
  };
  run_all({tell, write_json, draw});
  return exit_status_of(run, verification, !options.budget.empty());
}

}  // namespace penstock::cli
