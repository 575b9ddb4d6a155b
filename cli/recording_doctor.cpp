#include "code_reader.hpp"
#include "commands.hpp"
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

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace penstock::cli {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kRecorder = "libpenstock_recorder.so";
constexpr const char* kInjection = "CUDA_INJECTION64_PATH";

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

struct Examined {
  std::vector<TraceReport> reports;  ///< of the processes that used a GPU
  Timeline first;                    ///< of the first of them, if a page or a trace is asked for
  std::vector<std::string> remarks;  ///< about the others, if there are no reports
  Json processes = Json::array();
};

bool used_gpu(const Timeline& timeline) { return !timeline.copies.empty() || !timeline.work.empty(); }

Examined examine(const Examiner& examiner, const fs::path& folder, const std::string& name) {
  Examined examined;
  const LineReader lines;
  for (Recording& recording : read_recordings(folder)) {
    name_code_places(recording, lines);
    const std::string process = fmt::format("{}, process {}", name, recording.process);
    if (used_gpu(recording.timeline)) {
      examined.reports.push_back(examiner.examine(process, recording.timeline));
      Json json{{"process", recording.process}};
      json.update(Json::parse(trace_json(examined.reports.back())));
      examined.processes.push_back(std::move(json));
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

std::string report_text(const Examined& examined, std::size_t columns) {
  std::string text;
  for (const TraceReport& report : examined.reports)
    text += (text.empty() ? "" : "\n") + trace_text(report, {false, columns});
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

}  // namespace

int run_recording_doctor(const DoctorOptions& options, const Environment& environment) {
  Examiner examiner(options, environment);
  std::optional<int> exit_status;
  std::optional<RecordingFolder> made;
  fs::path folder = options.trace;
  std::string name = options.trace;
  if (!options.command.empty()) {
    const fs::path recorder = find_recorder(options.recorder);
    refuse_other_injection();
    made.emplace(options.record);
    folder = made->path();
    name = fmt::format("{}", fmt::join(options.command, " "));
    const pid_t process =
        start_program(options.command,
                      {fmt::format("{}={}", kInjection, recorder.string()),
                       fmt::format("PENSTOCK_RECORD={}", folder.string())},
                      false, fmt::format("there is no program '{}' in the PATH", options.command[0]));
    exit_status = wait_for_program(process);
  }
  Examined examined;
  if (exit_status && !holds_recordings(folder)) {
    examined.remarks.push_back(
        name + ": the program used no CUDA, as none of its processes initialized the driver.");
  } else {
    examined = examine(examiner, folder, name);
  }
  const auto tell = [&] {
    const int stream = exit_status ? STDERR_FILENO : STDOUT_FILENO;
    const bool quiet = !exit_status && examiner.has_standard_output();
    std::string text = quiet ? "" : report_text(examined, terminal_columns(stream));
    if (examiner.draws()) text += drawn_text(examined) + examiner.missing();
    exit_status ? say("\n" + text) : quiet ? say(text) : print(text);
  };
  const auto write_json = [&] {
    if (!examiner.json()) return;
    Json json{{"schema", "penstock-recording-diagnosis/1"},
              {"name", name},
              {"exit_status", exit_status ? Json(*exit_status) : Json(nullptr)},
              {"processes", examined.processes},
              {"remarks", examined.remarks}};
    examiner.json().write(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  };
  const auto draw = [&] {
    if (examiner.draws() && !examined.reports.empty()) examiner.draw(examined.reports[0], examined.first);
  };
  run_all({tell, write_json, draw});
  if (exit_status.value_or(0) != 0) return *exit_status;
  if (!options.budget.empty() && examined.reports.empty()) return kBudgetBroken;
  for (const TraceReport& report : examined.reports) {
    if (Examiner::status(report) != 0) return Examiner::status(report);
  }
  return 0;
}

}  // namespace penstock::cli
