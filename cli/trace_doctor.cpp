#include "commands.hpp"
#include "output.hpp"
#include "trace_report.hpp"

#include <penstock/core/error.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
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

}  // namespace

int run_trace_doctor(const DoctorOptions& options) {
  OutputFile output("--json", options.json);
  output.keep_off(options.trace, "the trace");
  output.keep_off(options.budget, "the budget");
  output.keep_off(options.profile, "the link profile");
  std::vector<BudgetLine> budget;
  if (!options.budget.empty()) budget = parse_budget(read_text(options.budget), options.budget);
  DiagnosisOptions how;
  if (!options.profile.empty()) {
    try {
      how.h2d_ceiling = LinkProfile::parse(read_text(options.profile)).ceiling(CopyDirection::h2d);
    } catch (const InvalidArgument& error) {
      throw Error(fmt::format("{}: {}", options.profile, error.what()));
    }
  }
  TraceReport report;
  report.file = options.trace;
  const Timeline timeline = read_torch_trace(options.trace);
  report.events = timeline.events;
  report.diagnosis = diagnose_timeline(timeline, how);
  if (!budget.empty()) report.breaches = check_budget(budget, report.diagnosis);
  if (!output.is_standard_output()) print(trace_text(report, {false, terminal_columns(STDOUT_FILENO)}));
  if (output) output.write(trace_json(report));
  return report.breaches && !report.breaches->empty() ? kBudgetBroken : 0;
}

}  // namespace penstock::cli
