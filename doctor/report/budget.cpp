#include "doctor/report/budget.hpp"

#include "doctor/report/trace_report.hpp"
#include "doctor/rules/not_examined.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <span>
#include <sstream>
#include <system_error>

namespace penstock::cli {

namespace {

constexpr double kMillisecond = 1e-3;

/// "exposed copies", "Exposed_Copies" and "exposed-copies" are the same.
std::string spelled_alike(std::string_view name) {
  std::string words;
  for (const char c : name) {
    const auto letter = static_cast<unsigned char>(c);
    if (std::isalnum(letter) != 0) {
      words += static_cast<char>(std::tolower(letter));
    } else if (!words.empty() && words.back() != ' ') {
      words += ' ';
    }
  }
  return words;
}

/// By its name, or as the report calls it.
std::optional<DevicePart> part_named(std::string_view name) {
  const std::string wanted = spelled_alike(name);
  for (const DevicePart part : kAllDeviceParts) {
    if (spelled_alike(device_part_name(part)) == wanted || spelled_alike(device_part_label(part)) == wanted)
      return part;
  }
  return std::nullopt;
}

std::optional<std::string_view> finding_named(std::string_view name) {
  const auto ids = finding_ids();
  const auto found = std::ranges::find(ids, spelled_alike(name), spelled_alike);
  return found != ids.end() ? std::optional<std::string_view>(*found) : std::nullopt;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

/// Throws Error that says what is wrong with it.
double number_of(std::string_view text) {
  constexpr double kLargest = 1e9;
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = end == text.data() + text.size();
  if (!whole || error == std::errc::invalid_argument || std::isnan(number))
    throw Error(fmt::format("'{}' is not a number", text));
  if (error != std::errc() || number < 0 || number > kLargest)
    throw Error(fmt::format("'{}' is not a number from 0 to {:.0f}", text, kLargest));
  return number;
}

std::vector<std::string_view> known_parts() {
  std::vector<std::string_view> names;
  names.reserve(kDeviceParts);
  for (const DevicePart part : kAllDeviceParts) names.push_back(device_part_name(part));
  return names;
}

/// "2%" and "2.5ms" are two words each.
void part_unit(std::vector<std::string>& words) {
  for (const std::string_view unit : {"%", "ms"}) {
    std::string& last = words.back();
    if (!last.ends_with(unit) || last.size() == unit.size()) continue;
    last.resize(last.size() - unit.size());
    words.emplace_back(unit);
    return;
  }
}

std::string joined(std::span<const std::string> words) { return fmt::format("{}", fmt::join(words, " ")); }

/// "no pageable copies in the step" is "no pageable copies": findings are of steps.
std::string finding_in(const std::vector<std::string>& words) {
  constexpr std::string_view kOfSteps = " in the step";
  std::string name = joined(std::span(words).subspan(1));
  if (name.ends_with(kOfSteps)) name.resize(name.size() - kOfSteps.size());
  return name;
}

/// Throws Error that says what is wrong, but not where.
BudgetLine parse_line(const std::string& text) {
  constexpr std::size_t kLimitWords = 3;  // below N %
  std::vector<std::string> words = words_of(text);
  BudgetLine line{joined(words), {}, {}};
  if (words.size() > 1 && words[0] == "no") {
    const std::string name = finding_in(words);
    const auto id = finding_named(name);
    if (!id)
      throw Error(
          fmt::format("there is no finding '{}'; there are {}", name, fmt::join(finding_ids(), ", ")));
    line.name = *id;
    return line;
  }
  part_unit(words);
  if (words.size() <= kLimitWords || words[words.size() - kLimitWords] != "below")
    throw Error(fmt::format("'{}' is not 'no FINDING', 'PART below N %' or 'step below N ms'", line.text));
  const std::span<const std::string> limit = std::span(words).last(kLimitWords);
  const std::string name = joined(std::span(words).first(words.size() - kLimitWords));
  const bool step = name == "step";
  const std::optional<DevicePart> part = part_named(name);
  if (!step && !part) {
    throw Error(
        fmt::format("there is no part '{}'; there are step, {}", name, fmt::join(known_parts(), ", ")));
  }
  const double number = number_of(limit[1]);
  if (limit[2] != (step ? "ms" : "%"))
    throw Error(fmt::format("'{}' is not {}", limit[2], step ? "ms" : "%"));
  line.name = step ? name : device_part_name(*part);
  line.most = number * (step ? kMillisecond : 0.01);
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

/// Names the GPU if there are several.
std::string why_broken(const Finding& finding, const Diagnosis& diagnosis) {
  if (diagnosis.accounts.size() < 2) return finding.text;
  return fmt::format("it is found on GPU {}. {}", finding.device, finding.text);
}

}  // namespace

std::vector<BudgetLine> parse_budget(std::string_view text, const std::string& file) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
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
    if (const NotExamined* const missing = find_not_examined(diagnosis.not_examined, line.name)) {
      breaches.push_back({line.text, "it cannot be judged. " + missing->text});
      continue;
    }
    if (line.most) {
      for (const DeviceAccount& account : diagnosis.accounts) check_device(line, account, breaches);
      continue;
    }
    for (const Finding& finding : diagnosis.findings) {
      if (finding.id == line.name && gains(finding, step_of(diagnosis, finding.device)))
        breaches.push_back({line.text, why_broken(finding, diagnosis)});
    }
  }
  return breaches;
}

}  // namespace penstock::cli
