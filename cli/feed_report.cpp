#include "feed_report.hpp"

#include "cli/shared/page.hpp"
#include "page_texts.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/feed_figures.hpp>
#include <penstock/device/topology.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <time.h>

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

namespace penstock::cli {

namespace {

using nlohmann::json;
using Rows = std::vector<std::pair<std::string, std::string>>;

/// Batches that the page shows one by one at first. feed.html selects this option.
constexpr std::size_t kWindow = 16;

std::string pairs_table(const Rows& rows) {
  std::string html = "<table><tbody>\n";
  for (const auto& [name, value] : rows) {
    html += fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", escaped(name), escaped(value));
  }
  return html + "</tbody></table>";
}

/// A name, which shows its meaning when it is clicked, and its value.
std::string figure_row(std::string_view name, std::string_view value, std::string_view help) {
  return fmt::format("<tr><th><details><summary>{}</summary><p>{}</p></details></th><td>{}</td></tr>\n",
                     escaped(name), prose(help), escaped(value));
}

std::string count_text(std::uint64_t count) {
  std::string text = std::to_string(count);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, 1, ',');
  return text;
}

std::string batches_text(std::uint64_t count) {
  return count_text(count) + (count == 1 ? " batch" : " batches");
}

std::string time_text(double seconds) { return seconds > 0 ? format_seconds(seconds) : "none"; }

std::string rate_text(double rate) {
  if (rate >= 1e6) return fmt::format("{:.2f} M", rate / 1e6);
  if (rate >= 1e4) return fmt::format("{:.1f} k", rate / 1e3);
  return fmt::format("{:.0f}", rate);
}

std::string efficiency_text(const FeedStatistics& s) {
  if (s.link_ceiling <= 0) return "ceiling not measured";
  return fmt::format("{} of {}", percent_text(s.link_efficiency()), format_gbps(s.link_ceiling));
}

std::string tiles(const FeedAccount& account) {
  const FeedStatistics& s = account.total;
  const Rows rows{{rate_text(s.samples_per_second()), "samples a second"},
                  {format_gbps(s.link_gbps() * kGB), "over the link, " + efficiency_text(s)},
                  {format_gbps(s.delivered_gbps() * kGB), "delivered"},
                  {percent_text(s.stall_share()), "of the time your step waited for data"},
                  {time_text(s.seconds), "for " + format_bytes(s.delivered_bytes)}};
  std::string html;
  for (const auto& [value, name] : rows) {
    html +=
        fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", escaped(value), escaped(name));
  }
  return html;
}

/// The lines that FeedStatistics prints, each with the help of its figures.
std::string figure_rows(const FeedStatistics& statistics) {
  std::string html;
  for (const FeedLine& line : feed_lines(statistics)) {
    // A time or size without text is zero. A count without text is as expected, so it is left out.
    if (line.text.empty() && line.figures.front()->unit == FigureUnit::count) continue;
    const std::size_t indent = line.label.find_first_not_of(' ');
    std::string help;
    for (const FeedFigure* figure : line.figures) help += fmt::format("{} ", figure->help);
    html += figure_row(fmt::format("{}{}", indent > 2 ? "… " : "", line.label.substr(indent)),
                       line.text.empty() ? "none" : line.text, help);
  }
  return html;
}

std::string account_table(const FeedAccount& account) {
  std::string html = "<table><tbody>\n" + figure_rows(account.total);
  html += figure_row("before the feed",
                     fmt::format("{} to open the dataset, {} to make the loader",
                                 format_seconds(account.open_seconds), format_seconds(account.setup_seconds)),
                     "The time before the first request. No other figure includes it.");
  if (account.options.verify) {
    html += figure_row(
        "compared",
        fmt::format("{} in {}, {}", format_bytes(account.compared.bytes),
                    batches_text(account.compared.batches), format_seconds(account.compared.seconds)),
        "What --verify compared with the dataset, and how long that took. It is work of the "
        "step.");
  }
  return html + "</tbody></table>";
}

std::string joined(const std::vector<std::string>& words) {
  return words.empty() ? "-" : fmt::format("{}", fmt::join(words, " "));
}

std::string options_table(const FeedAccount& account) {
  const FeedOptions& o = account.options;
  return pairs_table({{"sources", joined(o.sources)},
                      {"batch", std::to_string(o.batch)},
                      {"epochs", std::to_string(o.epochs)},
                      {"order", o.shuffle ? "shuffled" : "as stored"},
                      {"delivered as", joined(o.to)},
                      {"residency", o.residency},
                      {"gather", o.gather},
                      {"prefetch", std::to_string(o.prefetch)},
                      {"step", o.step_ms > 0 ? fmt::format("{} ms", o.step_ms) : "none"}});
}

std::string machine_table(const FeedAccount& account) {
  const HostTopology& host = host_topology();
  const DeviceInfo& device = account.device;
  return pairs_table(
      {{"device", fmt::format("{}: {}", device.spec, device.name)},
       {"link", link_text(device)},
       {"driver", device.driver},
       {"processor",
        fmt::format("{}, {} usable", host.processor.empty() ? "unknown" : host.processor, host.processors)},
       {"memory", format_bytes(host.memory_bytes)},
       {"dataset", fmt::format("{} samples, {}", count_text(account.dataset_samples),
                               format_bytes(account.dataset_bytes))},
       {"penstock", PENSTOCK_VERSION}});
}

std::string notes(const FeedAccount& account) {
  std::string html;
  const auto note = [&](const char* kind, const std::string& text) {
    html += fmt::format("<p class=\"note {}\">{}</p>\n", kind, prose(text));
  };
  if (!account.trouble.empty()) note("bad", account.trouble);
  if (account.interrupted) note("bad", "Interrupted: the figures end there.");
  if (account.verified) {
    note("good", fmt::format("Verified: all {} delivered bytes are those of the dataset.",
                             count_text(account.compared.bytes)));
  }
  if (!account.profile_ignored.empty()) {
    note("", fmt::format("The link profile is ignored: {}", account.profile_ignored));
  }
  if (!account.profile_measured) {
    note("", fmt::format("The link's ceiling is not known. `penstock link --device {}` measures it.",
                         account.device.spec));
  }
  return html;
}

/// The lines of the picture of shares: each part with its kind (a colour), name, seconds and share.
json shares(const FeedStatistics& s) {
  const double time = s.stall_seconds + s.compute_seconds;
  if (time <= 0) return json::array();
  json lines = json::array();
  const auto part = [](const char* kind, const char* name, double seconds, double share) {
    return json{{"kind", kind}, {"name", name}, {"seconds", seconds}, {"share", share}};
  };
  const auto wait = [&](const char* kind, const char* name, double seconds) {
    return part(kind, name, seconds, seconds / time);
  };
  lines.push_back({{"name", "your step"},
                   {"parts",
                    {part("compute", "your step works", s.compute_seconds, 1 - s.stall_share()),
                     wait("for-transfer", "waits for the transfer", s.exposed_transfer_seconds),
                     wait("for-gather", "waits for the host gather", s.exposed_gather_seconds),
                     wait("for-kernel", "waits for the device gather", s.exposed_kernel_seconds),
                     wait("for-start", "waits for a batch to start", s.stall_other_seconds())}}});
  const auto stage = [&](const char* kind, const char* name, double seconds, double share) {
    if (seconds > 0) lines.push_back({{"name", name}, {"parts", {part(kind, name, seconds, share)}}});
  };
  stage("gather", "host gather", s.gather_seconds, s.gather_share());
  stage("transfer", "transfer", s.transfer_seconds, s.transfer_share());
  stage("kernel", "device gather", s.kernel_seconds, s.kernel_share());
  return lines;
}

std::string data_text(const FeedAccount& account) {
  const FeedStatistics& s = account.total;
  json value{{"shares", shares(s)},
             {"window", typical_window(account.timeline, kWindow, s.stall_share(), s.slots)},
             {"timeline", json::array()},
             {"marks", json::array()},
             {"epochs", json::array()}};
  for (const BatchTimes& batch : account.timeline) {
    json times;
    for (const BatchFigure& figure : batch_figures()) {
      std::visit([&](auto number) { times[std::string(figure.name)] = number; }, figure.value(batch));
    }
    value["timeline"].push_back(std::move(times));
  }
  for (const FeedMark& mark : account.marks) {
    value["marks"].push_back(
        {{"seconds", mark.seconds}, {"samples", mark.samples}, {"bytes", mark.delivered_bytes}});
  }
  for (const FeedEpoch& epoch : account.epochs) value["epochs"].push_back(epoch.seconds);
  return value.dump();
}

std::string when(std::time_t time) {
  std::tm local{};
  std::array<char, 64> text{};
  if (::localtime_r(&time, &local) == nullptr) return "unknown";
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S %z", &local)};
}

std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+./:,@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

/// The command line as a shell takes it. Lines break only between words.
std::string command_html(const std::vector<std::string>& words) {
  std::string html;
  for (const std::string& word : words) html += fmt::format("<span>{}</span> ", escaped(shell_word(word)));
  return html;
}

}  // namespace

std::string feed_report(const FeedAccount& account) {
  std::string fields;
  for (const std::string& field : account.fields) fields += fmt::format("<li>{}</li>\n", escaped(field));
  const std::string sentence = account.total.sentence();
  const std::size_t end = std::min(sentence.find(". "), sentence.size() - 1) + 1;
  const std::string advice =
      joined({sentence.substr(std::min(end + 1, sentence.size())), step_advice(account)});
  const PageParts parts = page_parts("", kFeedScript);
  return filled(kFeedPage,
                {{"title", escaped(joined(account.options.sources)) + " to " + escaped(account.device.name)},
                 {"css", parts.style},
                 {"sentence", prose(sentence.substr(0, end))},
                 {"advice", prose(advice)},
                 {"date", escaped(when(account.started))},
                 {"command", command_html(account.options.command_line)},
                 {"notes", notes(account)},
                 {"tiles", tiles(account)},
                 {"epochs", table_html(epoch_table(account).rows())},
                 {"account", account_table(account)},
                 {"fields", fields},
                 {"options", options_table(account)},
                 {"machine", machine_table(account)},
                 {"data", data_text(account)},
                 {"scripts", parts.scripts}});
}

}  // namespace penstock::cli
