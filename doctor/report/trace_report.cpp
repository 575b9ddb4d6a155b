#include "doctor/report/trace_report.hpp"

#include "cli/shared/terminal.hpp"
#include "doctor/timeline/place_name.hpp"

#include <penstock/core/bytes.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>
#include <string_view>

namespace penstock::cli {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kPlaces = 3;

}  // namespace

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string share_text(double seconds, double whole) {
  return fmt::format("{:.1f} %", whole > 0 ? 100 * seconds / whole : 0);
}

std::string seconds_text(double seconds) { return seconds > 0 ? format_seconds(seconds) : "0 s"; }

namespace {

/// Empty if the steps hardly vary: eight in ten of them are alike, and the others do not make the mean.
std::string spread_text(const DeviceAccount& account) {
  constexpr double kHardly = 0.1;
  constexpr double kMean = 0.02;
  const std::optional<StepTimes>& times = account.step_times;
  if (!times) return "";
  const bool are_alike = times->nine_tenths <= (1 + kHardly) * times->tenth;
  if (are_alike && account.step_seconds() <= (1 + kMean) * times->nine_tenths) return "";
  return fmt::format(" on average, 8 in 10 of them {} to {}", seconds_text(times->tenth),
                     seconds_text(times->nine_tenths));
}

}  // namespace

std::string window_text(const DeviceAccount& account) {
  const std::string name = account.name.empty() ? "" : fmt::format(" ({})", one_line(account.name));
  const std::string time = seconds_text(account.step_seconds());
  const std::string gpu = fmt::format("GPU {}{}", account.device, name);
  if (account.steps == 0) return fmt::format("{}: {}, no steps found", gpu, time);
  return fmt::format("{}: {} {} of {}{}", gpu, account.steps, account.steps == 1 ? "step" : "steps", time,
                     spread_text(account));
}

namespace {

/// Bytes of a step, and how many copies do not tell theirs.
std::string size_text(const CopyFigures& copies, double steps) {
  const std::string bytes =
      format_bytes(static_cast<std::uint64_t>(static_cast<double>(copies.bytes) / steps));
  if (copies.unsized == 0) return bytes;
  if (copies.unsized == copies.count) return "of unknown size,";
  return fmt::format("{} and {:.3g} of unknown size,", bytes, static_cast<double>(copies.unsized) / steps);
}

}  // namespace

std::string copies_text(const DeviceAccount& account, CopyDirection direction) {
  const bool to_device = direction == CopyDirection::h2d;
  const CopyFigures& copies = to_device ? account.h2d : account.d2h;
  const std::string label =
      fmt::format("copies to the {} {}", to_device ? "GPU" : "host", account.steps > 0 ? "a step" : "in all");
  if (!account.has_copies) return label + ": not recorded";
  if (copies.count == 0) return label + ": none";
  const double steps = static_cast<double>(std::max<std::size_t>(account.steps, 1));
  const double seconds = seconds_of(copies.busy);
  const std::string hidden =
      account.has_kernels
          ? fmt::format("{} hidden, {} exposed", seconds_text(account.per_step(copies.busy - copies.exposed)),
                        seconds_text(account.per_step(copies.exposed)))
          : "what hides them is not known";
  const bool has_rate = seconds > 0 && copies.unsized == 0;
  return fmt::format(
      "{}: {:.3g}, {} at {}; {}", label, static_cast<double>(copies.count) / steps, size_text(copies, steps),
      has_rate ? format_gbps(static_cast<double>(copies.bytes) / seconds) : "an unknown rate", hidden);
}

namespace {

/// A report has these only if they took time.
bool is_rare(DevicePart part) {
  return part == DevicePart::communication || part == DevicePart::starting ||
         part == DevicePart::not_observed;
}

std::string account_text(const DeviceAccount& account) {
  Table table({"where the time went", account.steps > 0 ? "a step" : "in all", "share"});
  for (const DevicePart part : kAllDeviceParts) {
    if (account.part(part) == 0 && is_rare(part)) continue;
    table.add({std::string(device_part_label(part)), seconds_text(account.per_step(account.part(part))),
               fmt::format("{:.1f} %", 100 * account.share(part))});
  }
  return fmt::format("{}\n\n{}\n{}\n{}\n\n", window_text(account), table.text(),
                     copies_text(account, CopyDirection::h2d), copies_text(account, CopyDirection::d2h));
}

}  // namespace

std::string finding_name(const Finding& finding, const Diagnosis& diagnosis) {
  return diagnosis.accounts.size() > 1 ? fmt::format("{} on GPU {}", finding.id, finding.device) : finding.id;
}

std::string place_text(const FindingPlace& place) {
  std::string text = place.function.empty() ? "(place not recorded)" : one_line(place.function);
  if (!place.op.empty()) text += ", " + one_line(place.op);
  fmt::format_to(std::back_inserter(text), ": {} {}", place.count, place.count == 1 ? "time" : "times");
  if (place.bytes > 0) text += ", " + format_bytes(place.bytes);
  text += ", " + seconds_text(place.seconds);
  return place.idle_seconds ? text + ", then the GPU idles " + seconds_text(*place.idle_seconds) : text;
}

bool gains(const Finding& finding, double step) { return finding.gain.high >= kNothingToGain * step; }

std::string gain_text(const Finding& finding, const Diagnosis& diagnosis) {
  const GainRange& gain = finding.gain;
  const double step = step_of(diagnosis, finding.device);
  if (!gains(finding, step)) return "about nothing: leave it";
  const DeviceAccount* const account = diagnosis.account(finding.device);
  const std::string_view whole = account != nullptr && account->steps > 0 ? "a step" : "the recording";
  if (gain.low <= 0) {
    return fmt::format("at most {} of {}, {}", seconds_text(gain.high), whole, share_text(gain.high, step));
  }
  return fmt::format("{} to {} of {}, {} to {}", seconds_text(gain.low), seconds_text(gain.high), whole,
                     share_text(gain.low, step), share_text(gain.high, step));
}

std::string nothing_found_text(const Diagnosis& diagnosis) {
  const bool has_kernels = std::ranges::all_of(diagnosis.accounts, &DeviceAccount::has_kernels);
  const bool has_copies = std::ranges::all_of(diagnosis.accounts, &DeviceAccount::has_copies);
  if (has_kernels && has_copies) return "Nothing was found in what was recorded.";
  return fmt::format("Nothing was judged, as no {} were recorded.", has_kernels ? "copies" : "kernels");
}

double step_of(const Diagnosis& diagnosis, std::uint16_t device) {
  const DeviceAccount* const account = diagnosis.account(device);
  return account != nullptr ? account->step_seconds() : 0;
}

namespace {

std::string finding_text(const Finding& finding, const Diagnosis& diagnosis, std::size_t columns) {
  std::string text = fmt::format("{}: {}\n{}", severity_name(finding.severity),
                                 finding_name(finding, diagnosis), paragraph(finding.text, columns));
  for (std::size_t i = 0; i < std::min(kPlaces, finding.places.size()); ++i) {
    text += paragraph("at " + place_text(finding.places[i]), columns, 2, 2);
  }
  if (finding.places.size() > kPlaces) {
    const std::size_t more = finding.places.size() - kPlaces;
    fmt::format_to(std::back_inserter(text), "  and {} more {}; --json has all\n", more,
                   more == 1 ? "place" : "places");
  }
  text += paragraph("why: " + finding.meaning, columns, 2, 2);
  if (!finding.change.empty()) text += paragraph("change: " + finding.change, columns, 2, 2);
  if (!finding.penstock_change.empty()) {
    text += paragraph("with penstock: " + finding.penstock_change, columns, 2, 2);
  }
  return text + fmt::format("  gain: {}\n\n", gain_text(finding, diagnosis));
}

}  // namespace

Json place_json(std::string_view function) {
  Json place{{"function", function}, {"file", nullptr}, {"line", nullptr}};
  if (const auto name = parse_place_name(function)) {
    place["file"] = name->file;
    place["line"] = name->line;
  }
  return place;
}

namespace {

Json copies_json(const DeviceAccount& account, const CopyFigures& copies) {
  const auto known = [&account](Json value) { return account.has_copies ? std::move(value) : nullptr; };
  const auto compared = [&](double seconds) { return known(account.has_kernels ? Json(seconds) : nullptr); };
  return {{"count", known(copies.count)},
          {"bytes", known(copies.unsized == 0 ? Json(copies.bytes) : nullptr)},
          {"seconds", known(seconds_of(copies.busy))},
          {"exposed_seconds", compared(seconds_of(copies.exposed))},
          {"hidden_seconds", compared(seconds_of(copies.busy - copies.exposed))},
          {"exposed_seconds_per_step", compared(account.per_step(copies.exposed))}};
}

Json step_times_json(const std::optional<StepTimes>& times) {
  if (!times) return nullptr;
  return {{"tenth_seconds", times->tenth},
          {"median_seconds", times->median},
          {"nine_tenths_seconds", times->nine_tenths},
          {"mean_error_seconds", times->mean_error ? Json(*times->mean_error) : Json(nullptr)}};
}

Json account_json(const DeviceAccount& account) {
  Json parts;
  for (const DevicePart part : kAllDeviceParts) {
    parts[std::string(device_part_name(part))] = {{"seconds", seconds_of(account.part(part))},
                                                  {"share", account.share(part)}};
  }
  return {{"device", account.device},
          {"name", account.name},
          {"seconds", seconds_of(account.total())},
          {"steps", account.steps > 0 ? Json(account.steps) : Json(nullptr)},
          {"step_seconds", account.step_seconds()},
          {"step_times", step_times_json(account.step_times)},
          {"parts", parts},
          {"copies_to_device", copies_json(account, account.h2d)},
          {"copies_to_host", copies_json(account, account.d2h)}};
}

Json finding_json(const Finding& finding) {
  Json places = Json::array();
  for (const FindingPlace& place : finding.places) {
    places.push_back(place_json(place.function));
    places.back().update({{"operator", place.op},
                          {"count", place.count},
                          {"bytes", place.bytes},
                          {"seconds", place.seconds},
                          {"idle_seconds", place.idle_seconds ? Json(*place.idle_seconds) : Json(nullptr)},
                          {"stack", place.stack}});
  }
  return {{"id", finding.id},
          {"severity", severity_name(finding.severity)},
          {"device", finding.device},
          {"text", finding.text},
          {"meaning", finding.meaning},
          {"change", finding.change},
          {"penstock_change", finding.penstock_change},
          {"count_per_step", finding.count},
          {"bytes_per_step", finding.bytes},
          {"seconds_per_step", finding.seconds},
          {"gain_seconds_per_step", {{"low", finding.gain.low}, {"high", finding.gain.high}}},
          {"places", places}};
}

std::string not_examined_text(const Diagnosis& diagnosis, std::size_t columns) {
  std::string text = "not examined\n";
  for (const NotExamined& missing : diagnosis.not_examined) text += paragraph(missing.text, columns, 2, 2);
  return text;
}

}  // namespace

std::string trace_text(const TraceReport& report, std::size_t columns) {
  const Diagnosis& diagnosis = report.diagnosis;
  std::string text = fmt::format("{}: {} events\n", report.file, report.events);
  for (const DeviceAccount& account : diagnosis.accounts) text += account_text(account);
  for (const Finding& finding : diagnosis.findings) text += finding_text(finding, diagnosis, columns);
  if (diagnosis.findings.empty()) text += nothing_found_text(diagnosis) + "\n\n";
  return text + not_examined_text(diagnosis, columns);
}

Json trace_json(const TraceReport& report) {
  Json value = {{"schema", "penstock-trace-diagnosis/1"},
                {"version", PENSTOCK_VERSION},
                {"trace", report.file},
                {"rank", report.rank ? Json(*report.rank) : Json(nullptr)},
                {"events", report.events},
                {"devices", Json::array()},
                {"findings", Json::array()},
                {"not_examined", Json::array()}};
  for (const DeviceAccount& account : report.diagnosis.accounts)
    value["devices"].push_back(account_json(account));
  for (const Finding& finding : report.diagnosis.findings) value["findings"].push_back(finding_json(finding));
  for (const NotExamined& missing : report.diagnosis.not_examined) {
    value["not_examined"].push_back({{"names", missing.names}, {"text", missing.text}});
  }
  return value;
}

std::string json_text(const Json& value) {
  return value.dump(2, ' ', true, Json::error_handler_t::replace) + "\n";
}

}  // namespace penstock::cli
