#include "doctor/report/whole_run.hpp"

#include "cli/shared/terminal.hpp"
#include "doctor/report/trace_report.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <tuple>
#include <utility>

namespace penstock::cli {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kTextLines = 10;

/// Sums by place and kind.
class Sums {
 public:
  void add(std::string place, std::string kind, const RunSum& sum) {
    if (sum.count > 0) sums_[{std::move(place), std::move(kind)}] += sum;
  }
  /// In the order of the places.
  [[nodiscard]] std::vector<FindingPlace> places() const {
    std::vector<FindingPlace> places;
    for (const auto& [key, sum] : sums_)
      places.push_back({key.first, key.second, sum.count, sum.bytes, sum.seconds});
    return places;
  }

 private:
  std::map<std::pair<std::string, std::string>, RunSum> sums_;
};

std::vector<FindingPlace> lines_of(const WholeRun& run, const std::vector<std::string>& names) {
  const auto name = [&names](std::optional<std::uint32_t> index) {
    return index ? names[*index] : std::string();
  };
  Sums sums;
  for (const RunLine& line : run.lines) sums.add(name(line.name), std::string(line.call), line.sum);
  std::vector<FindingPlace> lines = sums.places();
  std::ranges::sort(lines, [](const FindingPlace& a, const FindingPlace& b) {
    return std::tie(b.seconds, a.function, a.op) < std::tie(a.seconds, b.function, b.op);
  });
  return lines;
}

std::string copies_name(const RunCopies& copies) {
  if (copies.direction == CopyDirection::d2d) return "copies within GPUs";
  const bool to_device = copies.direction == CopyDirection::h2d;
  const std::optional<MemoryKind> host = to_device ? copies.source : copies.destination;
  return fmt::format("copies {} {} memory", to_device ? "from" : "to",
                     host ? memory_kind_name(*host) : "unknown");
}

std::vector<FindingPlace> device_sums(const WholeRun& run) {
  Sums sums;
  const auto device = [](std::uint16_t number) { return fmt::format("GPU {}", number); };
  for (const auto& [work, sum] : run.work)
    sums.add(device(work.device), work.is_set ? "memory sets" : "kernels", sum);
  for (const auto& [copies, sum] : run.copies) sums.add(device(copies.device), copies_name(copies), sum);
  return sums.places();
}

/// What had no slot in the recording's table.
std::vector<FindingPlace> other_sums(const WholeRun& run) {
  Sums sums;
  constexpr const char* kOthers = "others, for which the recording had no room";
  sums.add(kOthers, "calls", run.other_calls);
  sums.add(kOthers, "waits for loaders", run.other_waits);
  sums.add(kOthers, "copies", run.other_copies);
  sums.add(kOthers, "kernels and memory sets", run.other_work);
  return sums.places();
}

Json sum_json(const RunSum& sum) {
  return {{"count", sum.count}, {"bytes", sum.bytes}, {"seconds", sum.seconds}};
}

Json with_sum(Json value, const RunSum& sum) {
  value.update(sum_json(sum));
  return value;
}

Json kind_json(std::optional<MemoryKind> kind) {
  return kind ? Json(memory_kind_name(*kind)) : Json(nullptr);
}

}  // namespace

std::optional<WholeRunReport> whole_run_report(const Recording& recording) {
  if (!recording.whole_run) return std::nullopt;
  const WholeRun& run = *recording.whole_run;
  return WholeRunReport{run, device_sums(run), lines_of(run, recording.timeline.names), other_sums(run)};
}

std::string coverage_text(const WholeRunReport& report) {
  const WholeRun& run = report.run;
  return fmt::format("The timeline covers the last {} of {}, {:.3g} % of the run.",
                     seconds_text(run.timeline_seconds), seconds_text(run.seconds),
                     run.seconds > 0 ? 100 * run.timeline_seconds / run.seconds : 0);
}

std::string whole_run_text(const WholeRunReport& report, std::size_t columns) {
  std::string text = fmt::format("the whole run, {}\n", seconds_text(report.run.seconds));
  const std::size_t lines = std::min(kTextLines, report.lines.size());
  const auto add = [&](std::span<const FindingPlace> places) {
    for (const FindingPlace& place : places) text += paragraph(place_text(place), columns, 2, 2);
  };
  add(report.devices);
  add(std::span(report.lines).first(lines));
  if (lines < report.lines.size())
    text += fmt::format("  and {} more lines; --json has all\n", report.lines.size() - lines);
  add(report.others);
  return text + "\n";
}

nlohmann::ordered_json whole_run_json(const WholeRunReport& report) {
  const WholeRun& run = report.run;
  Json value{{"seconds", run.seconds},
             {"timeline_seconds", run.timeline_seconds},
             {"work", Json::array()},
             {"copies", Json::array()},
             {"lines", Json::array()}};
  for (const auto& [work, sum] : run.work) {
    value["work"].push_back(
        with_sum({{"device", work.device}, {"kind", work.is_set ? "memory set" : "kernel"}}, sum));
  }
  for (const auto& [copies, sum] : run.copies) {
    value["copies"].push_back(with_sum({{"device", copies.device},
                                        {"direction", copy_direction_name(copies.direction)},
                                        {"source", kind_json(copies.source)},
                                        {"destination", kind_json(copies.destination)}},
                                       sum));
  }
  for (const FindingPlace& line : report.lines) {
    value["lines"].push_back(place_json(line.function));
    value["lines"].back().update(with_sum({{"call", line.op}}, {line.count, line.bytes, line.seconds}));
  }
  value["others"] = {{"calls", sum_json(run.other_calls)},
                     {"waits", sum_json(run.other_waits)},
                     {"copies", sum_json(run.other_copies)},
                     {"work", sum_json(run.other_work)}};
  return value;
}

}  // namespace penstock::cli
