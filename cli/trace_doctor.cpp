#include "commands.hpp"
#include "output.hpp"
#include "page.hpp"
#include "trace_page.hpp"
#include "trace_report.hpp"

#include <penstock/core/error.hpp>
#include <penstock/doctor/chrome_trace.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
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

/// The files that are written. Checked before the trace is read, so that an unwritable one does not waste
/// that.
struct TraceOutputs {
  TraceOutputs(const DoctorOptions& options, const Environment& environment)
      : json("--json", options.json), html("--html", options.html), perfetto("--perfetto", options.perfetto) {
    html.keep_off(options.json, "the file of --json");
    perfetto.keep_off(options.json, "the file of --json");
    perfetto.keep_off(options.html, "the file of --html");
    int streams = 0;
    for (OutputFile* file : {&json, &html, &perfetto}) {
      file->keep_off(options.trace, "the trace");
      file->keep_off(options.budget, "the budget");
      file->keep_off(options.profile, "the link profile");
      for (const auto& library : environment.chart_libraries) file->keep_off(library, "the chart library");
      if (file->is_standard_output()) ++streams;
    }
    if (streams > 1) throw UsageError("only one of --json, --html and --perfetto may be -; name files");
    has_standard_output = streams == 1;
  }

  OutputFile json;
  OutputFile html;
  OutputFile perfetto;
  bool has_standard_output = false;  ///< one of them goes there, so nothing else may
};

}  // namespace

int run_trace_doctor(const DoctorOptions& options, const Environment& environment) {
  TraceOutputs outputs(options, environment);
  std::vector<BudgetLine> budget;
  if (!options.budget.empty()) budget = parse_budget(read_text(options.budget), options.budget);
  std::optional<LinkProfile> profile;
  if (!options.profile.empty()) {
    try {
      profile = LinkProfile::parse(read_text(options.profile));
    } catch (const InvalidArgument& error) {
      throw Error(fmt::format("{}: {}", options.profile, error.what()));
    }
  }
  TraceReport report;
  report.file = options.trace;
  const Timeline timeline = read_torch_trace(options.trace);
  report.events = timeline.events;
  report.diagnosis =
      diagnose_timeline(timeline, {.h2d_ceiling = profile ? profile->ceiling(CopyDirection::h2d) : 0});
  if (!budget.empty()) report.breaches = check_budget(budget, report.diagnosis);
  const auto library = chart_library(environment.chart_libraries);
  const auto tell = [&] {
    std::string text;
    if (!outputs.has_standard_output) text = trace_text(report, {false, terminal_columns(STDOUT_FILENO)});
    if (outputs.html && !library)
      text += "\nThe page has no pictures: d3 is not installed (Debian's package node-d3).\n";
    outputs.has_standard_output ? say(text) : print(text);
  };
  const auto write_html = [&] {
    if (outputs.html) outputs.html.write(trace_page(report, timeline, profile, library));
  };
  const auto write_perfetto = [&](TextSink sink) {
    write_chrome_trace(timeline, report.diagnosis, sink, options.perfetto.ends_with(".gz"));
  };
  run_all({[&] { outputs.json.write(trace_json(report)); }, write_html,
           [&] { outputs.perfetto.write_pieces(write_perfetto); }, tell});
  return report.breaches && !report.breaches->empty() ? kBudgetBroken : 0;
}

}  // namespace penstock::cli
