#include "doctor/report/trace_page.hpp"

#include "cli/shared/page.hpp"
#include "core/shared/printable.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::cli {

namespace {

using Reports = std::span<const TraceReport>;

std::string_view part_colour(DevicePart part) {
  constexpr std::array<std::string_view, kDeviceParts> kColours = {
      "compute", "communication", "transfer", "stall", "starting", "gather", "other", "unknown"};
  return kColours[static_cast<std::size_t>(part)];
}

/// Of a process's report: what ran, without the process.
std::string program_name(const TraceReport& report) {
  return report.file.substr(0, report.file.rfind(", process "));
}

std::string process_name(const TraceReport& report) {
  return report.process ? fmt::format("process {}", *report.process) : printable(report.file);
}

/// A part of the page for each process, below its name if there are several.
template <typename Part>
std::string of_each(Reports reports, Part&& part) {
  std::string html;
  for (const TraceReport& report : reports) {
    if (reports.size() > 1)
      html += fmt::format("<h3 class=\"process\">{}</h3>\n", escaped(process_name(report)));
    html += part(report);
  }
  return html;
}

std::string account_html(const DeviceAccount& account) {
  std::vector<BarPart> parts;
  for (const DevicePart part : kAllDeviceParts) {
    parts.push_back({part_colour(part), device_part_label(part), account.share(part),
                     seconds_text(account.per_step(account.part(part)))});
  }
  return fmt::format("<h3>{}</h3>\n{}<p class=\"facts\">{}<br>{}</p>\n",
                     prose(printable(window_text(account))), bar_html(parts),
                     prose(copies_text(account, CopyDirection::h2d)),
                     prose(copies_text(account, CopyDirection::d2h)));
}

std::string accounts_html(const TraceReport& report) {
  std::string html;
  for (const DeviceAccount& account : report.diagnosis.accounts) html += account_html(account);
  return html;
}

std::string change_html(std::string_view title, std::string_view code) {
  if (code.empty()) return "";
  return fmt::format("<div><span>{}</span><pre>{}</pre></div>", title, escaped(code));
}

/// The frames that called a place's line: the innermost is seen, and the others are unfolded.
std::string callers_html(const FindingPlace& place) {
  if (place.stack.size() < 2) return "";
  const auto called_from = [&place](std::size_t i) {
    return "called from " + escaped(printable(one_line(place.stack[i])));
  };
  if (place.stack.size() == 2) return fmt::format("\n<div class=\"callers\">{}</div>", called_from(1));
  std::string others;
  for (std::size_t i = 2; i < place.stack.size(); ++i) others += fmt::format("<div>{}</div>", called_from(i));
  return fmt::format("\n<details class=\"callers\"><summary>{}</summary>{}</details>", called_from(1),
                     others);
}

std::string finding_html(const Finding& finding, const Diagnosis& diagnosis) {
  const std::string_view severity = severity_name(finding.severity);
  std::string html = fmt::format(
      "<article>\n<h3><span class=\"severity {}\">{}</span>{}</h3>\n<p>{}</p>\n"
      "<p class=\"gain\">Gain: {}</p>\n<ul>\n",
      finding.severity == Severity::note ? "note-severity" : severity, severity,
      escaped(finding_name(finding, diagnosis)), prose(printable(finding.text)),
      prose(gain_text(finding, diagnosis)));
  for (const FindingPlace& place : finding.places)
    html += fmt::format("<li>{}{}</li>\n", escaped(printable(place_text(place))), callers_html(place));
  return html +
         fmt::format("</ul>\n<p class=\"explain\">{}</p>\n<div class=\"changes\">{}{}</div>\n</article>\n",
                     prose(finding.meaning), change_html("the change", finding.change),
                     change_html("with penstock", finding.penstock_change));
}

std::string findings_html(const TraceReport& report) {
  const Diagnosis& diagnosis = report.diagnosis;
  if (diagnosis.findings.empty()) return fmt::format("<p>{}</p>\n", nothing_found_text(diagnosis));
  std::string html;
  for (const Finding& finding : diagnosis.findings) html += finding_html(finding, diagnosis);
  return html;
}

std::string findings_html(Reports reports) {
  const bool has_any = std::ranges::any_of(
      reports, [](const TraceReport& report) { return !report.diagnosis.findings.empty(); });
  return section_html("Findings",
                      has_any
                          ? "What gains most comes first. Gains do not add up: two findings may be about the "
                            "same time."
                          : "",
                      of_each(reports, [](const TraceReport& report) { return findings_html(report); }));
}

/// What several processes have in common is said once.
std::string not_examined_html(Reports reports) {
  std::vector<std::pair<std::string, std::vector<std::string>>> texts;
  for (const TraceReport& report : reports) {
    for (const NotExamined& missing : report.diagnosis.not_examined) {
      auto known = std::ranges::find(texts, missing.text, [](const auto& entry) { return entry.first; });
      if (known == texts.end()) known = texts.insert(texts.end(), {missing.text, {}});
      known->second.push_back(process_name(report));
    }
  }
  std::string html = "<ul>\n";
  for (const auto& [text, processes] : texts) {
    const std::string of =
        processes.size() < reports.size() ? fmt::format(" ({})", fmt::join(processes, ", ")) : std::string();
    html += fmt::format("<li>{}{}</li>\n", prose(printable(text)), escaped(of));
  }
  return section_html("Not examined", "Nothing is known about these, good or bad.", html + "</ul>\n");
}

/// "Kernels run in 51.1 % of a step of 2.35 ms." Processes may have steps of other lengths.
std::string headline(Reports reports) {
  std::vector<DeviceAccount> accounts;
  for (const TraceReport& report : reports)
    accounts.insert(accounts.end(), report.diagnosis.accounts.begin(), report.diagnosis.accounts.end());
  const auto kernels = [](const DeviceAccount& account) { return account.share(DevicePart::kernel); };
  const auto [least, most] = std::ranges::minmax_element(accounts, {}, kernels);
  const std::string low = fmt::format("{:.1f}", 100 * kernels(*least));
  const std::string high = fmt::format("{:.1f}", 100 * kernels(*most));
  const std::string share = low == high ? low + " %" : fmt::format("{} to {} %", low, high);
  const bool has_steps = least->steps > 0;
  const std::string step = seconds_text(least->step_seconds());
  const bool is_one_step = std::ranges::all_of(accounts, [&](const DeviceAccount& account) {
    return (account.steps > 0) == has_steps && seconds_text(account.step_seconds()) == step;
  });
  if (!least->has_kernels)
    return is_one_step ? fmt::format("No kernels were recorded in {}{}.", has_steps ? "steps of " : "", step)
                       : "No kernels were recorded.";
  if (!is_one_step) return fmt::format("Kernels run in {} of the time.", share);
  return fmt::format("Kernels run in {} of {} {}.", share, has_steps ? "a step of" : "the recorded", step);
}

/// What the first finding gains of a step. Below 0: there is none.
double most_gain(const TraceReport& report) {
  if (report.diagnosis.findings.empty()) return -1;
  const Finding& first = report.diagnosis.findings.front();
  const double step = step_of(report.diagnosis, first.device);
  return step > 0 ? first.gain.high / step : 0;
}

std::string trace_advice(Reports reports) {
  const TraceReport& report = *std::ranges::max_element(reports, {}, most_gain);
  const Diagnosis& diagnosis = report.diagnosis;
  if (diagnosis.findings.empty()) return nothing_found_text(diagnosis);
  const Finding& first = diagnosis.findings.front();
  if (!gains(first, step_of(diagnosis, first.device))) return "None of the findings below gains much.";
  return fmt::format("The most to gain is {}by {}: {}.",
                     reports.size() > 1 ? fmt::format("in {}, ", process_name(report)) : "", first.id,
                     gain_text(first, diagnosis));
}

/// One box; empty without lines. `name`: of the process, with a colon; empty if there is one only.
std::string verified_html(const std::string& name, const std::vector<std::string>& lines) {
  std::string html;
  for (const std::string& line : lines)
    html += (html.empty() ? escaped(name) : "<br>\n") + prose(printable(line));
  return html.empty() ? "" : fmt::format("<p class=\"note\">{}</p>\n", html);
}

/// What the page is about.
std::string run_lines(Reports reports) {
  std::string html;
  for (const TraceReport& report : reports)
    html += fmt::format("{}: {} events<br>\n", escaped(printable(report.file)), report.events);
  return fmt::format("<p class=\"run\">{}penstock {}</p>\n", html, PENSTOCK_VERSION);
}

}  // namespace

std::string trace_page(std::span<const TraceReport> reports, const std::vector<std::string>& verified) {
  const bool has_one = reports.size() == 1;
  std::string notes;
  for (const TraceReport& report : reports)
    notes += verified_html(has_one ? "" : process_name(report) + ": ", report.verified);
  const std::string file = printable(has_one ? reports.front().file : program_name(reports.front()));
  constexpr std::string_view kAccounts =
      "The wall-clock time of each GPU. Its parts add up; of each moment, the first of them that is true "
      "counts.";
  return page_html(
      {.command = "penstock doctor",
       .title = std::filesystem::path(file).filename().string(),
       .sentence = headline(reports),
       .advice = trace_advice(reports),
       .head = notes + verified_html("", verified),
       .sections = section_html("Where the time went", kAccounts, of_each(reports, accounts_html)) +
                   findings_html(reports) + not_examined_html(reports) + run_lines(reports)});
}

}  // namespace penstock::cli
