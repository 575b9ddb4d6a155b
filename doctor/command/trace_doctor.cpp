#include "doctor/command/trace_doctor.hpp"

#include "cli/shared/link_profiles.hpp"
#include "cli/shared/terminal.hpp"
#include "doctor/command/doctor_command.hpp"
#include "doctor/read/recording_format.hpp"
#include "doctor/read/torch_trace.hpp"
#include "doctor/report/rank_comparison.hpp"
#include "doctor/report/trace_page.hpp"
#include "doctor/timeline/device_activity.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::cli {

namespace {

using Json = nlohmann::ordered_json;

namespace fs = std::filesystem;

std::string read_text(const std::string& file) {
  constexpr std::streamsize kMostBytes = 1 << 20;
  std::ifstream in(file, std::ios::binary);
  std::string text(static_cast<std::size_t>(kMostBytes), '\0');
  in.read(text.data(), kMostBytes);
  if (in.bad() || !in.is_open())
    throw Error(fmt::format("{} cannot be read: {}.", file, std::strerror(errno)));
  if (!in.eof()) throw Error(fmt::format("{} is larger than 1 MiB.", file));
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text;
}

bool is_named_as_trace(const std::string& name) { return name.ends_with(".json") || name.ends_with(".gz"); }

bool is_program(const fs::path& file) {
  return fs::is_regular_file(file) && ::access(file.c_str(), X_OK) == 0;
}

/// Says what to write in place of a trace, if something else was named. Throws UsageError.
void refuse_other_than_trace(const std::string& name) {
  const fs::path file(name);
  const std::size_t colon = name.rfind(':');
  const bool is_there = fs::exists(file);
  if (name.ends_with(".py")) {
    throw UsageError(
        fmt::format("{0} is a program and not a trace; write penstock doctor -- python {0}, or "
                    "--loader {0}:NAME to examine its DataLoader",
                    name));
  }
  if (!is_there && colon != std::string::npos && name.substr(0, colon).ends_with(".py"))
    throw UsageError(fmt::format("{0} is not a trace; write penstock doctor --loader {0}", name));
  if (!is_there && name.find_first_of("./") == std::string::npos) {
    throw UsageError(fmt::format(
        "there is no file or folder '{0}'; if it is a program, write penstock doctor -- {0}", name));
  }
  if (is_program(file) && !is_named_as_trace(name))
    throw UsageError(fmt::format("{0} is a program and not a trace; write penstock doctor -- {0}", name));
}

/// Those that are stored for this machine's GPUs. Without any, no driver is opened.
std::vector<LinkProfile> profiles_here(const Environment& environment) {
  std::vector<LinkProfile> profiles;
  if (!environment.cache_directory) return profiles;
  const fs::path folder = LinkProfile::file_for(*environment.cache_directory, {}).parent_path();
  std::error_code error;
  if (!fs::is_directory(folder, error)) return profiles;
  for (const DeviceInfo& info : Device::inventory(environment.device).devices) {
    if (info.in_host_memory) continue;
    if (auto profile = stored_profile(LinkProfile::file_for(*environment.cache_directory, info), info)) {
      profiles.push_back(std::move(*profile));
    }
  }
  return profiles;
}

}  // namespace

Examiner::Examiner(const DoctorOptions& options, const Environment& environment)
    : json_("--json", options.json), html_("--html", options.html) {
  html_.keep_off(options.json, "the file of --json");
  int streams = 0;
  for (OutputFile* file : {&json_, &html_}) {
    for (const std::string& trace : options.traces) file->keep_off(trace, "the trace");
    file->keep_off(options.profile, "the link profile");
    if (file->is_standard_output()) ++streams;
  }
  if (streams > 1) throw UsageError("only one of --json and --html may be -; name a file");
  has_standard_output_ = streams == 1;
  if (options.profile.empty()) {
    // What was recorded elsewhere says nothing of this machine's links.
    if (!options.command.empty()) here_ = profiles_here(environment);
    return;
  }
  try {
    named_ = LinkProfile::parse(read_text(options.profile));
  } catch (const InvalidArgument& error) {
    throw Error(fmt::format("{}: {}", options.profile, error.what()));
  }
}

const LinkProfile* Examiner::profile_of(const Timeline& timeline) const {
  if (named_) return &*named_;
  if (timeline.devices.empty() && !here_.empty()) return &here_.front();
  for (const auto& [number, name] : timeline.devices) {
    const auto found = std::ranges::find(here_, name, &LinkProfile::device_name);
    if (found != here_.end()) return &*found;
  }
  return nullptr;
}

std::optional<NotExamined> Examiner::other_profile(const Timeline& timeline) const {
  std::set<std::string> names;
  for (const auto& [number, name] : timeline.devices) names.insert(name);
  if (!named_ || names.empty() || names.contains(named_->device_name)) return std::nullopt;
  return NotExamined{{},
                     one_line(fmt::format(
                         "The link: the profile of --profile is of {}, and the recorded GPU is {}. Gains are "
                         "those of the profile's link.",
                         named_->device_name, fmt::join(names, ", ")))};
}

TraceReport Examiner::examine(std::string name, const Timeline& timeline) const {
  TraceReport report;
  report.file = std::move(name);
  report.rank = timeline.rank;
  report.events = timeline.events;
  const TimeSpan recorded = whole_window(timeline);
  report.recorded_seconds = seconds_of(recorded.end - recorded.begin);
  report.diagnosis = diagnose_timeline(timeline, profile_of(timeline));
  if (auto other = other_profile(timeline))
    report.diagnosis.not_examined.insert(report.diagnosis.not_examined.begin(), std::move(*other));
  return report;
}

void Examiner::write_page(std::span<const TraceReport> reports, const std::vector<std::string>& verified) {
  if (html_) html_.write(trace_page(reports, verified));
}

namespace {

std::string traces_json(std::span<const TraceReport> reports) {
  if (reports.size() == 1) return json_text(trace_json(reports.front()));
  Json value{{"schema", "penstock-traces-diagnosis/1"},
             {"traces", Json::array()},
             {"comparison", compare_ranks(rank_figures(reports))}};
  for (const TraceReport& report : reports) value["traces"].push_back(trace_json(report));
  return json_text(value);
}

/// True of a folder, and of a recording.
bool is_recorded(const fs::path& file) {
  return fs::is_directory(file) || file.extension() == recording::kSuffix;
}

void refuse_unfit_traces(const DoctorOptions& options) {
  if (options.traces.size() > 1 && !is_named_as_trace(options.traces.front())) {
    throw UsageError(
        fmt::format("{} is not a trace; to run a program, write penstock doctor -- {}; see penstock doctor "
                    "--help",
                    options.traces.front(), fmt::join(options.traces, " ")));
  }
  for (const std::string& trace : options.traces) {
    if (is_recorded(trace)) {
      throw UsageError(fmt::format("{} is a {}; pass it alone, or several traces", trace,
                                   fs::is_directory(trace) ? "folder" : "recording"));
    }
    refuse_other_than_trace(trace);
  }
}

}  // namespace

int run_trace_doctor(const DoctorOptions& options, const Environment& environment) {
  if (options.traces.size() == 1 && is_recorded(options.traces.front()))
    return run_recording_doctor(options, environment);
  refuse_unfit_traces(options);
  Examiner examiner(options, environment);
  std::vector<TraceReport> reports;
  for (const std::string& trace : options.traces)
    reports.push_back(examiner.examine(trace, read_torch_trace(trace)));
  const auto write_json = [&] {
    if (examiner.json()) examiner.json().write(traces_json(reports));
  };
  const auto tell = [&] {
    if (!examiner.has_standard_output()) print(reports_text(reports, terminal_columns(STDOUT_FILENO)));
  };
  run_all({write_json, [&] { examiner.write_page(reports); }, tell});
  return 0;
}

}  // namespace penstock::cli
