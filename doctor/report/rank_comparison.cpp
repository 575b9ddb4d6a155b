#include "doctor/report/rank_comparison.hpp"

#include "cli/shared/terminal.hpp"

#include <penstock/core/bytes.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace penstock::cli {

namespace {

constexpr double kLonger = 0.05;  // of a step

/// Ranks by their numbers, if each report has another one.
bool are_numbered(std::span<const TraceReport> reports) {
  std::set<std::uint64_t> numbers;
  for (const TraceReport& report : reports) {
    if (report.rank) numbers.insert(*report.rank);
  }
  return numbers.size() == reports.size();
}

std::string name_of(const TraceReport& report, bool numbered) {
  if (numbered) return fmt::format("rank {}", *report.rank);
  return report.process ? fmt::format("process {}", *report.process) : one_line(report.file);
}

RankFigures figures_of(const DeviceAccount& account, std::string name) {
  const auto seconds = [&account](DevicePart part) { return account.per_step(account.part(part)); };
  RankFigures rank{std::move(name),
                   account.step_seconds(),
                   seconds(DevicePart::kernel),
                   seconds(DevicePart::communication),
                   seconds(DevicePart::exposed_copy),
                   seconds(DevicePart::waiting_for_data)};
  rank.other = rank.step - rank.kernels - rank.communication - rank.copies - rank.waiting_for_data;
  return rank;
}

/// "It takes 2.1 ms more than the others for kernels", of what the rank that all wait for does instead.
std::string excess_of(const RankFigures& rank, std::span<const RankFigures> ranks) {
  constexpr std::pair<double RankFigures::*, const char*> kParts[] = {
      {&RankFigures::kernels, "kernels"},
      {&RankFigures::copies, "exposed copies"},
      {&RankFigures::waiting_for_data, "waiting for data"},
      {&RankFigures::other, "other idle time"}};
  double most = 0;
  const char* name = "";
  for (const auto& [part, text] : kParts) {
    double others = 0;
    for (const RankFigures& other : ranks) others += other.*part;
    others = (others - rank.*part) / static_cast<double>(ranks.size() - 1);
    if (rank.*part - others <= most) continue;
    most = rank.*part - others;
    name = text;
  }
  return most > 0
             ? fmt::format(" It takes {} more for {} than the others on average.", seconds_text(most), name)
             : "";
}

}  // namespace

std::vector<RankFigures> rank_figures(std::span<const TraceReport> reports) {
  const bool numbered = are_numbered(reports);
  std::vector<const TraceReport*> order;
  for (const TraceReport& report : reports) order.push_back(&report);
  if (numbered) std::ranges::sort(order, {}, [](const TraceReport* report) { return *report->rank; });
  std::vector<RankFigures> ranks;
  for (const TraceReport* report : order) {
    const std::string name = name_of(*report, numbered);
    const auto& accounts = report->diagnosis.accounts;
    for (const DeviceAccount& account : accounts)
      ranks.push_back(
          figures_of(account, accounts.size() > 1 ? fmt::format("{}, GPU {}", name, account.device) : name));
  }
  return ranks;
}

std::vector<std::string> compare_ranks(std::span<const RankFigures> ranks) {
  const auto communicates = [](const RankFigures& rank) { return rank.communication > 0; };
  if (ranks.size() < 2 || std::ranges::count_if(ranks, communicates) < 2) return {};
  std::vector<std::string> sentences;
  const auto [fastest, slowest] = std::ranges::minmax_element(ranks, {}, &RankFigures::step);
  if (slowest->step > (1 + kLonger) * fastest->step) {
    sentences.push_back(fmt::format("The steps of {} take longest: {}. Those of {} take {}.", slowest->name,
                                    seconds_text(slowest->step), fastest->name, seconds_text(fastest->step)));
  }
  const auto [least, most] = std::ranges::minmax_element(ranks, {}, &RankFigures::communication);
  const double waited = most->communication - least->communication;
  if (waited < kLonger * most->step) {
    sentences.emplace_back("All ranks communicate about as long, so none of them keeps the others waiting.");
    return sentences;
  }
  sentences.push_back(fmt::format(
      "{} communicates least: {} of a step, and {} {}. A collective ends when the last rank has come to it, "
      "so the others wait for {}, up to {} of a step.{}",
      least->name, seconds_text(least->communication), most->name, seconds_text(most->communication),
      least->name, seconds_text(waited), excess_of(*least, ranks)));
  return sentences;
}

std::string reports_text(std::span<const TraceReport> reports, std::size_t columns) {
  std::string text;
  for (const TraceReport& report : reports) text += (text.empty() ? "" : "\n") + trace_text(report, columns);
  const std::vector<RankFigures> ranks = rank_figures(reports);
  const std::vector<std::string> sentences = compare_ranks(ranks);
  if (sentences.empty()) return text;
  Table table({"the ranks", "a step", "kernels", "communication", "exposed copies", "idle"});
  for (const RankFigures& rank : ranks) {
    table.add({rank.name, seconds_text(rank.step), seconds_text(rank.kernels),
               seconds_text(rank.communication), seconds_text(rank.copies),
               seconds_text(rank.waiting_for_data + rank.other)});
  }
  text += "\n" + table.text() + "\n";
  for (const std::string& sentence : sentences) text += paragraph(sentence, columns, 0);
  return text;
}

}  // namespace penstock::cli
