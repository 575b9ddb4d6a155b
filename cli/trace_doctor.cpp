#include "trace_doctor.hpp"

#include "commands.hpp"

#include <penstock/core/error.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace penstock::cli {

namespace {

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

DiagnosisOptions diagnosis_options(const DoctorOptions& options) {
  DiagnosisOptions how;
  if (options.profile.empty()) return how;
  try {
    how.h2d_ceiling = LinkProfile::parse(read_text(options.profile)).ceiling(CopyDirection::h2d);
  } catch (const InvalidArgument& error) {
    throw Error(fmt::format("{}: {}", options.profile, error.what()));
  }
  return how;
}

}  // namespace

Examiner::Examiner(const DoctorOptions& options)
    : output_("--json", options.json), has_budget_(!options.budget.empty()) {
  output_.keep_off(options.trace, "the trace");
  output_.keep_off(options.budget, "the budget");
  output_.keep_off(options.profile, "the link profile");
  if (has_budget_) budget_ = parse_budget(read_text(options.budget), options.budget);
  how_ = diagnosis_options(options);
}

TraceReport Examiner::examine(std::string name, const Timeline& timeline) const {
  TraceReport report;
  report.file = std::move(name);
  report.events = timeline.events;
  report.diagnosis = diagnose_timeline(timeline, how_);
  if (has_budget_) report.breaches = check_budget(budget_, report.diagnosis);
  return report;
}

int Examiner::status(const TraceReport& report) {
  return report.breaches && !report.breaches->empty() ? kBudgetBroken : 0;
}

int run_trace_doctor(const DoctorOptions& options) {
  if (std::filesystem::is_directory(options.trace)) return run_recording_doctor(options);
  Examiner examiner(options);
  const TraceReport report = examiner.examine(options.trace, read_torch_trace(options.trace));
  if (!examiner.output().is_standard_output())
    print(trace_text(report, {false, terminal_columns(STDOUT_FILENO)}));
  if (examiner.output()) examiner.output().write(trace_json(report));
  return Examiner::status(report);
}

}  // namespace penstock::cli
