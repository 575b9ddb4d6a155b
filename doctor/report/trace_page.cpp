#include "doctor/report/trace_page.hpp"

#include "cli/shared/page.hpp"
#include "core/shared/printable.hpp"
#include "doctor/report/copy_rates.hpp"
#include "doctor/report/timeline_excerpt.hpp"
#include "page_texts.hpp"

#include <penstock/core/bytes.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::cli {

namespace {

using Json = nlohmann::ordered_json;
using Reports = std::span<const TraceReport>;

/// A colour of the page, and what it stands for in the timeline's legend.
struct TraceColour {
  std::string_view name;  ///< a class of trace.css or page.css
  std::string_view meaning;
};
constexpr auto kTraceColours = std::to_array<TraceColour>({{"compute", "kernels"},
                                                           {"communication", "communication"},
                                                           {"exposed", "copies that nothing hides"},
                                                           {"pageable", "copies from pageable memory"},
                                                           {"pinned", "other copies to the GPU"},
                                                           {"to-host", "copies to the host"},
                                                           {"stall", "waiting for data"},
                                                           {"starting", "the start of CUDA"},
                                                           {"launch", "launches and calls"},
                                                           {"wait", "waits of the host for the GPU"},
                                                           {"pin", "pinning"},
                                                           {"other", "idle, other"},
                                                           {"unknown", "not observed"},
                                                           {"evidence", "what a finding is about"}});

std::string_view part_colour(DevicePart part) {
  constexpr std::array<std::string_view, kDeviceParts> kColours = {
      "compute", "communication", "exposed", "stall", "starting", "launch", "other", "unknown"};
  return kColours[static_cast<std::size_t>(part)];
}

/// The colour of a bar of the timeline.
std::string_view bar_colour(std::string_view kind) {
  for (const DevicePart part : kAllDeviceParts) {
    if (kind == device_part_label(part)) return part_colour(part);
  }
  if (kind == "kernel" || kind == "copy within GPUs") return "compute";
  if (kind == "copy from pageable memory") return "pageable";
  if (kind == "copy to the host") return "to-host";
  if (kind.starts_with("copy ")) return "pinned";
  if (kind.starts_with("next()")) return "stall";
  if (kind.ends_with("synchronization")) return "wait";
  if (kind.ends_with("pinning")) return "pin";
  return kind == "evidence" ? "evidence" : "launch";
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
  std::string bar;
  std::string legend;
  for (const DevicePart part : kAllDeviceParts) {
    if (account.part(part) == 0) continue;
    constexpr double kRoom = 0.06;  // of the bar, for a figure in it
    const double share = account.share(part);
    bar += fmt::format("<i class=\"{}\" style=\"width:{:.3f}%\">{}</i>", part_colour(part), 100 * share,
                       share >= kRoom ? fmt::format("{:.0f} %", 100 * share) : "");
    legend += fmt::format("<span><i class=\"{}\"></i>{} <b>{}</b>, {:.1f}&nbsp;%</span>\n", part_colour(part),
                          device_part_label(part), prose(seconds_text(account.per_step(account.part(part)))),
                          100 * share);
  }
  return fmt::format(
      "<h3>{}</h3>\n<div class=\"bar\" aria-hidden=\"true\">{}</div>\n<div class=\"legend\">{}</div>\n"
      "<p class=\"facts\">{}<br>{}</p>\n",
      prose(printable(window_text(account))), bar, legend, prose(copies_text(account, CopyDirection::h2d)),
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
      "<article>\n<h3><span class=\"severity {}\">{}</span>{}{}</h3>\n<p>{}</p>\n"
      "<p class=\"gain\">Gain: {}</p>\n<ul>\n",
      finding.severity == Severity::note ? "note-severity" : severity, severity, escaped(finding.id),
      diagnosis.accounts.size() > 1 ? fmt::format(" on GPU {}", finding.device) : "",
      prose(printable(finding.text)), prose(gain_text(finding, diagnosis)));
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
  return (has_any
              ? "<p class=\"explain\">What gains most comes first. Gains do not add up: two findings may be "
                "about the same time.</p>\n"
              : "") +
         of_each(reports, [](const TraceReport& report) { return findings_html(report); });
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
  std::string html = "<p class=\"explain\">Nothing is known about these, good or bad.</p>\n<ul>\n";
  for (const auto& [text, processes] : texts) {
    const std::string of =
        processes.size() < reports.size() ? fmt::format(" ({})", fmt::join(processes, ", ")) : std::string();
    html += fmt::format("<li>{}{}</li>\n", prose(printable(text)), escaped(of));
  }
  return html + "</ul>\n";
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

std::string verified_html(const std::vector<std::string>& lines, const std::string& name) {
  std::string html;
  for (const std::string& line : lines) html += (html.empty() ? "" : "<br>\n") + prose(printable(line));
  return fmt::format("<p class=\"note\">{}{}</p>\n", escaped(name), html);
}

std::string trace_notes(const TraceReport& report, const std::string& name) {
  std::string html;
  const auto note = [&](const char* kind, std::string_view text) {
    html += fmt::format("<p class=\"note {}\">{}{}</p>\n", kind, escaped(name), prose(printable(text)));
  };
  if (report.breaches) {
    if (report.breaches->empty()) note("good", "The budget is kept.");
    for (const BudgetBreach& breach : *report.breaches)
      note("bad", fmt::format("The budget is broken. {}: {}", breach.text, breach.why));
  }
  if (!report.verified.empty()) html += verified_html(report.verified, name);
  return html;
}

/// `drawn`: the name of the process whose pictures the page has; empty: there is one only.
std::string page_notes(const PageReports& reports, const std::string& drawn) {
  std::string html;
  if (!drawn.empty()) {
    html += fmt::format(
        "<p class=\"note\">{} processes used a GPU. All their findings are here. The timeline, the link and "
        "its copies are those of {}. To see another one's, keep the recordings with <code>--record</code>, "
        "and name it by <code>--process</code>.</p>\n",
        reports.all.size(), escaped(drawn));
  }
  for (const TraceReport& report : reports.all)
    html += trace_notes(report, drawn.empty() ? std::string() : process_name(report) + ": ");
  if (!reports.verified.empty()) html += verified_html(reports.verified, "");
  return html;
}

std::string run_lines(Reports reports) {
  std::string html;
  for (const TraceReport& report : reports) {
    html += fmt::format("{}{}: {} events", html.empty() ? "" : "<br>\n", escaped(printable(report.file)),
                        report.events);
  }
  return html;
}

/// A copy's colour, and its name.
std::pair<std::string_view, std::string> copies_name(CopyDirection direction,
                                                     std::optional<MemoryKind> host) {
  const std::string memory =
      host ? fmt::format("{} memory", memory_kind_name(*host)) : "memory of an unknown kind";
  if (direction == CopyDirection::d2h) return {"to-host", "copies to the host"};
  return {host == MemoryKind::pageable ? "pageable" : "pinned", fmt::format("copies from {}", memory)};
}

std::string copies_table(const std::vector<CopyRate>& rates) {
  struct Sum {
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
    double seconds = 0;
    double slowest = 0;
    double fastest = 0;
  };
  std::map<std::string, Sum> sums;
  for (const CopyRate& rate : rates) {
    Sum& sum = sums[copies_name(rate.direction, rate.host).second];
    const double speed = static_cast<double>(rate.bytes) / rate.seconds;
    sum.slowest = sum.count == 0 ? speed : std::min(sum.slowest, speed);
    sum.fastest = std::max(sum.fastest, speed);
    sum.count += rate.count;
    sum.bytes += rate.bytes;
    sum.seconds += rate.seconds;
  }
  if (sums.empty()) return "<p>There are no copies between host and GPU.</p>";
  std::vector<std::vector<std::string>> rows{{"", "copies", "bytes", "time", "rate", "slowest", "fastest"}};
  for (const auto& [name, sum] : sums) {
    rows.push_back({name, std::to_string(sum.count), format_bytes(sum.bytes), format_seconds(sum.seconds),
                    format_gbps(static_cast<double>(sum.bytes) / sum.seconds), format_gbps(sum.slowest),
                    format_gbps(sum.fastest)});
  }
  return table_html(rows);
}

Json link_json(const std::vector<CopyRate>& rates, const LinkProfile* profile, double ceiling) {
  using Curve = LinkProfile::Curve;
  Json curves = Json::array();
  const auto add = [&](Curve curve, const char* colour, const char* name) {
    const auto found = profile->curves.find(curve);
    if (found == profile->curves.end()) return;
    Json points = Json::array();
    for (const LinkProfile::Point& point : found->second) {
      if (point.bytes > 0 && point.seconds > 0)
        points.push_back({point.bytes, static_cast<double>(point.bytes) / point.seconds});
    }
    curves.push_back({{"kind", colour}, {"name", name}, {"points", std::move(points)}});
  };
  if (profile) {
    add(Curve::pinned_h2d, "pinned", "from pinned memory");
    add(Curve::pageable_h2d, "pageable", "from pageable memory");
    add(Curve::pinned_d2h, "to-host", "to the host, pinned memory");
  }
  Json copies = Json::array();
  for (const CopyRate& rate : rates) {
    const auto [colour, name] = copies_name(rate.direction, rate.host);
    copies.push_back({{"kind", colour},
                      {"name", name},
                      {"count", rate.count},
                      {"bytes", static_cast<double>(rate.bytes) / static_cast<double>(rate.count)},
                      {"rate", static_cast<double>(rate.bytes) / rate.seconds},
                      {"seconds", rate.seconds}});
  }
  return {{"curves", curves}, {"ceiling", ceiling}, {"copies", copies}};
}

std::string link_text_of(const LinkProfile* profile, double ceiling) {
  const std::string circles =
      "Each circle stands for copies of about one size and rate; the more time they take, the larger it is.";
  if (profile) {
    return fmt::format("The lines are what the link profile of {} measured for single copies. {}",
                       profile->device_name, circles);
  }
  if (ceiling <= 0) {
    return "What the link could carry is not known: pass --profile with the link profile of the recorded "
           "machine. " +
           circles;
  }
  return fmt::format(
      "The best large copy from pinned memory reaches {}. The link may carry more: pass --profile with the "
      "link profile of the recorded machine. {}",
      format_gbps(ceiling), circles);
}

std::string steps_title(const TimelineExcerpt& excerpt, std::size_t all) {
  if (excerpt.steps.empty()) return "A part of the recording";
  const std::size_t first = excerpt.first_step + 1;
  const std::size_t last = excerpt.first_step + excerpt.steps.size();
  const std::string steps =
      first == last ? fmt::format("Step {}", first) : fmt::format("Steps {} to {}", first, last);
  return fmt::format("{} of {}", steps, all);
}

std::string steps_text(const TimelineExcerpt& excerpt) {
  std::string text = excerpt.steps.empty() ? "The part that is nearest to the mean of the recording."
                                           : "The steps that are nearest to the mean of all.";
  const auto left_out = [&text](std::size_t count, const char* what) {
    if (count > 0) text += fmt::format(" {} more {}{} not shown.", count, what, count == 1 ? " is" : "s are");
  };
  left_out(excerpt.devices_left_out, "GPU");
  left_out(excerpt.threads_left_out, "thread");
  if (excerpt.resolution > 0) {
    text += fmt::format(" Neighbours that take less than {} together are one bar.",
                        format_seconds(static_cast<double>(excerpt.resolution) * 1e-9));
  }
  return text;
}

/// The page's data, as text in which nothing ends the element that holds it.
std::string page_data(const TimelineExcerpt& excerpt, Json link) {
  const TraceTime origin = excerpt.window.begin;
  Json value{{"window", std::max<TraceTime>(excerpt.window.end - origin, 1)},
             {"steps", Json::array()},
             {"legend", Json::array()},
             {"kinds", Json::array()},
             {"places", Json::array()},
             {"lanes", Json::array()},
             {"link", std::move(link)}};
  for (std::size_t i = 0; i < excerpt.steps.size(); ++i) {
    value["steps"].push_back(
        {excerpt.steps[i].begin - origin, excerpt.steps[i].end - origin, excerpt.first_step + i + 1});
  }
  for (const TraceColour& colour : kTraceColours) value["legend"].push_back({colour.name, colour.meaning});
  for (const std::string& place : excerpt.places) value["places"].push_back(printable(place));
  std::map<std::string_view, std::size_t> kinds;
  for (const ExcerptLane& lane : excerpt.lanes) {
    Json bars = Json::array();
    for (const ExcerptBar& bar : lane.bars) {
      const auto [kind, added] = kinds.try_emplace(bar.kind, kinds.size());
      if (added) value["kinds"].push_back({bar.kind, bar_colour(bar.kind)});
      bars.push_back({bar.time.begin - origin, bar.time.end - origin, kind->second, bar.count, bar.bytes,
                      bar.busy, bar.place});
    }
    value["lanes"].push_back(
        {{"group", lane.group}, {"name", lane.name}, {"tiles", lane.tiles}, {"bars", std::move(bars)}});
  }
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  for (std::size_t at = text.find('<'); at != std::string::npos; at = text.find('<', at))
    text.replace(at, 1, "\\u003c");
  return text;
}

}  // namespace

std::string trace_page(const PageReports& reports, const Timeline& timeline, const LinkProfile* profile) {
  const TraceReport& report = reports.all[reports.drawn];
  const Diagnosis& diagnosis = report.diagnosis;
  const std::string drawn = reports.all.size() > 1 ? process_name(report) : "";
  const TimelineExcerpt excerpt = excerpt_timeline(timeline, diagnosis, {.most_bars = 8000});
  const std::vector<CopyRate> rates = copy_rates(timeline);
  const PageParts parts = page_parts(kTraceStyle, kTraceScript);
  const std::string of_drawn = drawn.empty() ? "" : ", " + escaped(drawn);
  const std::string file = printable(drawn.empty() ? report.file : program_name(report));
  return filled(kTracePage,
                {{"title", escaped(std::filesystem::path(file).filename().string())},
                 {"css", parts.style},
                 {"sentence", prose(headline(reports.all))},
                 {"advice", prose(trace_advice(reports.all))},
                 {"notes", page_notes(reports, drawn)},
                 {"accounts", of_each(reports.all, accounts_html)},
                 {"findings", findings_html(reports.all)},
                 {"steps", steps_title(excerpt, timeline.steps.size()) + of_drawn},
                 {"steps_text", prose(steps_text(excerpt))},
                 {"link_text", prose(printable(link_text_of(profile, diagnosis.h2d_ceiling)))},
                 {"copies", copies_table(rates)},
                 {"not_examined", not_examined_html(reports.all)},
                 {"copies_of", drawn.empty() ? "the program's copies" : "the copies of " + escaped(drawn)},
                 {"run", run_lines(reports.all)},
                 {"version", PENSTOCK_VERSION},
                 {"data", page_data(excerpt, link_json(rates, profile, diagnosis.h2d_ceiling))},
                 {"scripts", parts.scripts}});
}

}  // namespace penstock::cli
