#include "cli/shared/page.hpp"
#include "feed_account.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/feed_figures.hpp>
#include <penstock/device/topology.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <ranges>
#include <span>
#include <utility>
#include <vector>

namespace penstock::cli {

namespace {

using Rows = std::vector<std::pair<std::string, std::string>>;

/// Batches that the page shows one by one.
constexpr std::size_t kWindow = 16;

std::string pairs_table(const Rows& rows) {
  std::string html = "<table><tbody>\n";
  for (const auto& [name, value] : rows) {
    html += fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", escaped(name), escaped(value));
  }
  return html + "</tbody></table>\n";
}

/// The first row and the first column are heads.
std::string table_html(const std::vector<std::vector<std::string>>& rows) {
  std::string html = "<table class=\"numbers\"><thead>";
  for (std::size_t row = 0; row < rows.size(); ++row) {
    html += "<tr>";
    for (std::size_t i = 0; i < rows[row].size(); ++i) {
      html += fmt::format("<{0}>{1}</{0}>", row == 0 || i == 0 ? "th" : "td", escaped(rows[row][i]));
    }
    html += row == 0 ? "</tr></thead><tbody>\n" : "</tr>\n";
  }
  return html + "</tbody></table>";
}

/// What a reader may unfold.
std::string details_html(std::string_view summary, std::string_view text) {
  return fmt::format("<details class=\"explain\"><summary>{}</summary>\n<p>{}</p></details>\n", summary,
                     text);
}

std::string scroll_html(const std::string& table) {
  return fmt::format("<div class=\"scroll\">{}</div>\n", table);
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

std::string start_text(double seconds) { return seconds > 0 ? format_seconds(seconds) : "0 s"; }

/// What stands below a picture of time.
std::string span_html(double begin, double end) {
  return fmt::format("<div class=\"span\"><span>{}</span><span>{}</span></div>\n", start_text(begin),
                     format_seconds(end));
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
  return fmt::format("<section class=\"tiles\">\n{}</section>\n", html);
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
  const auto note = [&](const char* kind, const std::string& text) { html += note_html(kind, text); };
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

/// A bar for the step with its waits, and one for each stage beside it.
std::string shares_section(const FeedStatistics& s) {
  const double time = s.stall_seconds + s.compute_seconds;
  if (time <= 0) return "";
  const auto part = [](const char* colour, const char* name, double seconds, double share) {
    return BarPart{colour, name, share, format_seconds(seconds)};
  };
  const auto wait = [&](const char* colour, const char* name, double seconds) {
    return part(colour, name, seconds, seconds / time);
  };
  return section_html(
      "Where the time went",
      "The first line is your step: it works, or it waits for data. Below it are the stages of the feed, "
      "which run side by side. The line that is fullest sets the pace.",
      bar_html({part("compute", "your step works", s.compute_seconds, 1 - s.stall_share()),
                wait("for-transfer", "waits for the transfer", s.exposed_transfer_seconds),
                wait("for-gather", "waits for the host gather", s.exposed_gather_seconds),
                wait("for-kernel", "waits for the device gather", s.exposed_kernel_seconds),
                wait("for-start", "waits for a batch to start", s.stall_other_seconds())}) +
          bar_html({part("gather", "host gather", s.gather_seconds, s.gather_share())}) +
          bar_html({part("transfer", "transfer", s.transfer_seconds, s.transfer_share())}) +
          bar_html({part("kernel", "device gather", s.kernel_seconds, s.kernel_share())}) +
          details_html(
              "What the lines mean",
              "100&nbsp;% is the time of your step with its waits. <b>Your step</b> is the work between a "
              "batch's arrival and the next request: here the work of --step-ms and --verify. The colour of "
              "a wait is the stage that ran for that batch meanwhile. If no stage ran for it, it waited "
              "<b>for a batch to start</b>. <b>Host gather</b>: threads gathered samples. <b>Transfer</b>: "
              "bytes crossed the link. <b>Device gather</b>: kernels gathered samples that stay on the "
              "device."));
}

/// When a stage ran for a batch.
struct StageTime {
  std::string_view colour;
  const BatchTimes* batch;
  double begin;
  double end;
};

/// Of the first batches, at most kWindow.
std::vector<StageTime> stage_times(std::span<const BatchTimes> batches) {
  std::vector<StageTime> times;
  for (std::size_t i = 0; i < std::min(kWindow, batches.size()); ++i) {
    const BatchTimes& batch = batches[i];
    const auto add = [&](std::string_view colour, double begin, double end) {
      if (end > begin) times.push_back({colour, &batch, begin, end});
    };
    add("gather", batch.gather_begin, batch.gather_end);
    add(batch.link_bytes > 0 ? "transfer" : "kernel", batch.transfer_begin, batch.transfer_end);
    add("stall", batch.asked, batch.arrived);
    if (i + 1 < batches.size()) add("compute", batch.arrived, batches[i + 1].asked);
  }
  return times;
}

std::string batches_section(const FeedAccount& account) {
  constexpr auto kLanes =
      std::to_array<std::pair<std::string_view, std::string_view>>({{"gather", "host gather"},
                                                                    {"transfer", "transfer"},
                                                                    {"kernel", "device gather"},
                                                                    {"stall", "your step waits for data"},
                                                                    {"compute", "your step works"}});
  const FeedStatistics& s = account.total;
  const std::size_t first = typical_window(account.timeline, kWindow, s.stall_share(), s.slots);
  const std::vector<StageTime> times = stage_times(std::span(account.timeline).subspan(first));
  if (times.empty()) return "";
  const double begin = std::ranges::min(times, {}, &StageTime::begin).begin;
  const double length = std::ranges::max(times, {}, &StageTime::end).end - begin;
  std::string html;
  for (const auto& [colour, name] : kLanes) {
    std::string bars;
    for (const auto& [its_colour, batch, from, to] : times) {
      if (its_colour != colour) continue;
      bars += fmt::format(
          "<i class=\"{}{}\" style=\"left:{:.3f}%;width:{:.3f}%\" title=\"{}, epoch {}, "
          "batch {}: {} samples, {} bytes over the link\"></i>\n",
          colour, batch->batch % 2 != 0 ? " odd" : "", 100 * (from - begin) / length,
          100 * (to - from) / length, format_seconds(to - from), batch->epoch + 1, batch->batch + 1,
          count_text(batch->samples), count_text(batch->link_bytes));
    }
    if (!bars.empty())
      html += fmt::format("<div class=\"legend\">{}</div>\n<div class=\"lane\">{}</div>\n", name, bars);
  }
  return section_html(
      "Some batches, one by one",
      "These batches wait about as much as the whole feed does. Every other batch is in the lower "
      "half of its lane. Time runs from the first request.",
      html + span_html(begin, begin + length));
}

std::string rate_section(const FeedAccount& account) {
  if (account.marks.empty()) return "";
  // Rates over at least a hundredth of the run, so that single batches do not show as noise.
  const double least = account.marks.back().seconds / 100;
  struct Rate {
    double begin;
    double seconds;
    double samples;  // a second
    double bytes;    // a second
  };
  std::vector<Rate> rates;
  FeedMark from = account.marks.front();
  for (const FeedMark& mark : account.marks) {
    const double seconds = mark.seconds - from.seconds;
    if (seconds <= 0 || seconds < least) continue;
    rates.push_back({from.seconds, seconds, static_cast<double>(mark.samples - from.samples) / seconds,
                     static_cast<double>(mark.delivered_bytes - from.delivered_bytes) / seconds});
    from = mark;
  }
  if (rates.size() < 2) return "";
  const double most = std::ranges::max(rates, {}, &Rate::samples).samples;
  std::string bars;
  for (const Rate& rate : rates) {
    bars += fmt::format(
        "<i style=\"width:{:.3f}%;height:{:.2f}%\" title=\"{} samples/s, {} delivered, {} to {}\"></i>\n",
        100 * rate.seconds / from.seconds, 100 * rate.samples / most, rate_text(rate.samples),
        format_gbps(rate.bytes), start_text(rate.begin), format_seconds(rate.begin + rate.seconds));
  }
  for (const FeedEpoch& epoch : account.epochs | std::views::drop(1))
    bars += fmt::format("<b style=\"left:{:.3f}%\"></b>\n", 100 * epoch.seconds / from.seconds);
  return section_html(
      "Throughput over time",
      fmt::format(
          "The rate at which the host saw batches given out: at most {} samples/s. Dashed lines mark the "
          "beginnings of epochs.",
          rate_text(most)),
      fmt::format("<div class=\"rates\">{}</div>\n", bars) + span_html(0, from.seconds));
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
  constexpr std::string_view kColumns =
      "<b>Link GB/s</b> counts the bytes that crossed the link, and <b>delivered GB/s</b> the bytes that a "
      "model reads, both over the whole time of the epoch. <b>Waiting</b> is the share of the time that your "
      "step waited for data. <b>Sets the pace</b> names the part that the others wait for: your step, a "
      "stage, or the fixed cost of a batch.";
  return page_html(
      {.command = "penstock feed",
       .title = joined(account.options.sources) + " to " + account.device.name,
       .sentence = sentence.substr(0, end),
       .advice = advice,
       .head = fmt::format("<p class=\"run\">{}<br><code>{}</code></p>\n{}", escaped(when(account.started)),
                           command_html(account.options.command_line), notes(account)),
       .sections = tiles(account) + shares_section(account.total) + batches_section(account) +
                   rate_section(account) +
                   section_html("Epochs", "",
                                scroll_html(table_html(epoch_table(account).rows())) +
                                    details_html("What the columns mean", kColumns)) +
                   section_html("The account", "Click a name to see what it means.",
                                scroll_html(account_table(account))) +
                   section_html("Fields", "", fmt::format("<ul>\n{}</ul>\n", fields)) +
                   section_html("Options", "", options_table(account)) +
                   section_html("Machine", "", machine_table(account))});
}

}  // namespace penstock::cli
