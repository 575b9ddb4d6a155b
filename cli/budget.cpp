#include "budget.hpp"

#include "trace_report.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <sstream>

namespace penstock::cli {

namespace {

constexpr double kMillisecond = 1e-3;

std::optional<DevicePart> part_named(std::string_view name) {
  for (std::size_t i = 0; i < kDeviceParts; ++i) {
    if (device_part_name(static_cast<DevicePart>(i)) == name) return static_cast<DevicePart>(i);
  }
  return std::nullopt;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

std::optional<double> number_of(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && number >= 0 && number <= 1e9 ? std::optional(number) : std::nullopt;
}

std::vector<std::string_view> known_parts() {
  std::vector<std::string_view> names;
  names.reserve(kDeviceParts);
  for (std::size_t i = 0; i < kDeviceParts; ++i)
    names.push_back(device_part_name(static_cast<DevicePart>(i)));
  return names;
}

/// "2%" and "2.5ms" are two words each.
void part_unit(std::vector<std::string>& words) {
  if (words.size() != 3) return;
  for (const std::string_view unit : {"%", "ms"}) {
    std::string& last = words.back();
    if (!last.ends_with(unit) || last.size() == unit.size()) continue;
    last.resize(last.size() - unit.size());
    words.emplace_back(unit);
    return;
  }
}

/// Throws Error that says what is wrong, but not where.
BudgetLine parse_line(const std::string& text) {
  std::vector<std::string> words = words_of(text);
  BudgetLine line{fmt::format("{}", fmt::join(words, " ")), {}, {}};
  part_unit(words);
  if (words.size() == 2 && words[0] == "no") {
    const auto ids = finding_ids();
    if (std::find(ids.begin(), ids.end(), words[1]) == ids.end()) {
      throw Error(fmt::format("there is no finding '{}'; there are {}", words[1], fmt::join(ids, ", ")));
    }
    line.name = words[1];
    return line;
  }
  if (words.size() != 4 || words[1] != "below") {
    throw Error(fmt::format("'{}' is not 'no FINDING', 'PART below N %' or 'step below N ms'", line.text));
  }
  const bool step = words[0] == "step";
  if (!step && !part_named(words[0])) {
    throw Error(
        fmt::format("there is no part '{}'; there are step, {}", words[0], fmt::join(known_parts(), ", ")));
  }
  const std::optional<double> number = number_of(words[2]);
  if (!number) throw Error(fmt::format("'{}' is not a number", words[2]));
  if (words[3] != (step ? "ms" : "%"))
    throw Error(fmt::format("'{}' is not {}", words[3], step ? "ms" : "%"));
  line.name = words[0];
  line.most = *number * (step ? kMillisecond : 0.01);
  return line;
}

void check_device(const BudgetLine& line, const DeviceAccount& account, std::vector<BudgetBreach>& breaches) {
  const bool step = line.name == "step";
  const double value = step ? account.step_seconds() : account.share(*part_named(line.name));
  if (value < *line.most) return;
  breaches.push_back(
      {line.text,
       fmt::format("it is {} on GPU {}", step ? format_seconds(value) : fmt::format("{:.2f} %", 100 * value),
                   account.device)});
}

}  // namespace

std::vector<BudgetLine> parse_budget(std::string_view text, const std::string& file) {
  std::vector<BudgetLine> budget;
  std::istringstream in{std::string(text)};
  std::size_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    line.resize(std::min(line.find('#'), line.size()));
    if (words_of(line).empty()) continue;
    try {
      budget.push_back(parse_line(line));
    } catch (const Error& why) {
      throw Error(fmt::format("{}, line {}: {}.", file, number, why.what()));
    }
  }
  if (budget.empty())
    throw Error(fmt::format("{} has no conditions; write one a line, such as: no pageable-copies", file));
  return budget;
}

std::vector<BudgetBreach> check_budget(const std::vector<BudgetLine>& budget, const Diagnosis& diagnosis) {
  std::vector<BudgetBreach> breaches;
  for (const BudgetLine& line : budget) {
    bool judged = true;
    for (const NotExamined& missing : diagnosis.not_examined) {
      if (std::find(missing.names.begin(), missing.names.end(), line.name) == missing.names.end()) continue;
      breaches.push_back({line.text, "it cannot be judged. " + missing.text});
      judged = false;
      break;
    }
    if (!judged) continue;
    if (line.most) {
      for (const DeviceAccount& account : diagnosis.accounts) check_device(line, account, breaches);
      continue;
    }
    for (const Finding& finding : diagnosis.findings) {
      if (finding.id == line.name && gains(finding, step_of(diagnosis, finding.device)))
        breaches.push_back({line.text, finding.text});
    }
  }
  return breaches;
}

}  // namespace penstock::cli
