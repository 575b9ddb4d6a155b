#include "feed_report.hpp"

#include "report_files.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/device/topology.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <time.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <utility>

namespace penstock::cli {

namespace {

using nlohmann::json;
using Rows = std::vector<std::pair<std::string, std::string>>;

/// Batches that the page shows one by one at first; the option that page.html selects.
constexpr std::size_t kWindow = 16;

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

/// Text that keeps each number and its unit in one line, and in which `commands` stand out.
std::string prose(std::string_view text) {
  std::string html;
  for (const char c : escaped(text)) {
    const bool is_after_digit = !html.empty() && html.back() >= '0' && html.back() <= '9';
    html += c == ' ' && is_after_digit ? "&nbsp;" : std::string(1, c);
  }
  bool is_code = false;
  for (std::size_t at = html.find('`'); at != std::string::npos; at = html.find('`', at)) {
    html.replace(at, 1, is_code ? "</code>" : "<code>");
    is_code = !is_code;
  }
  return html + (is_code ? "</code>" : "");
}

std::string pairs_table(const Rows& rows) {
  std::string html = "<table><tbody>\n";
  for (const auto& [name, value] : rows) {
    html += fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", escaped(name), escaped(value));
  }
  return html + "</tbody></table>";
}

/// A name that shows what it means when it is clicked.
std::string defined(std::string_view name, std::string_view definition) {
  return fmt::format("<details><summary>{}</summary><p>{}</p></details>", escaped(name), escaped(definition));
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

std::string epochs_table(const FeedAccount& account) {
  std::string html =
      "<table class=\"numbers\"><thead><tr><th>epoch</th><th>samples</th><th>seconds</th><th>samples/s</th>"
      "<th>link GB/s</th><th>delivered GB/s</th><th>waiting</th><th>sets the pace</th></tr></thead><tbody>\n";
  for (const FeedEpoch& epoch : account.epochs) {
    const FeedStatistics& s = epoch.statistics;
    html += fmt::format(
        "<tr><th>{}{}</th><td>{}</td><td>{:.3f}</td><td>{}</td><td>{:.2f}</td><td>{:.2f}</td><td>{}</td>"
        "<td>{}</td></tr>\n",
        epoch.epoch + 1, epoch.complete ? "" : " (cut short)", count_text(s.samples), s.seconds,
        rate_text(s.samples_per_second()), s.link_gbps(), s.delivered_gbps(), percent_text(s.stall_share()),
        pace_text(s.limited_by()));
  }
  return html + "</tbody></table>";
}

struct Figure {
  std::string_view name;
  std::string value;
  std::string_view definition;
};

std::string of_time(double seconds, double share) {
  return seconds > 0 ? fmt::format("{}, {} of the time", format_seconds(seconds), percent_text(share))
                     : "none";
}

/// The figures that FeedStatistics prints, by the same names.
std::vector<Figure> figures(const FeedStatistics& s) {
  const std::string ran =
      s.transfer_seconds > 0 ? fmt::format(", {} while it ran", format_gbps(s.transfer_gbps() * kGB)) : "";
  return {
      {"samples", fmt::format("{} in {}", count_text(s.samples), batches_text(s.batches)),
       "Samples and batches that were given out."},
      {"delivered",
       fmt::format("{}, {}", format_bytes(s.delivered_bytes), format_gbps(s.delivered_gbps() * kGB)),
       "Bytes in device memory in the types that a model reads, and their rate over the whole time. 1 GB/s "
       "is "
       "10^9 bytes a second."},
      {"over the link",
       fmt::format("{}, {}, {}", format_bytes(s.link_bytes), format_gbps(s.link_gbps() * kGB),
                   efficiency_text(s)),
       "Bytes that crossed between host and device for them. They are fewer than those delivered if values "
       "widen on arrival or stay on the device. The ceiling is the best rate that penstock link measured. "
       "The "
       "share of it is low wherever something else sets the pace."},
      {"kept on the device",
       s.resident_bytes == 0 ? "nothing"
                             : fmt::format("{}, moved in {}", format_bytes(s.resident_bytes),
                                           format_seconds(s.resident_seconds)),
       "The part of the dataset that stays in device memory (--residency) and no longer crosses the link."},
      {"whole time", time_text(s.seconds), "From the first request for a batch to the end of the last one."},
      {"your step", of_time(s.compute_seconds, 1 - s.stall_share()),
       "The work between a batch's arrival and the next request: here what --step-ms and --verify do. All "
       "shares of the time are of the step and its waits together."},
      {"waiting for data", of_time(s.stall_seconds, s.stall_share()),
       "From a request until the batch is there. A faster feed can save this much at most."},
      {"… for the transfer", time_text(s.exposed_transfer_seconds),
       "The part of the wait in which the batch's bytes were on their way: no step hid it."},
      {"… for the host gather", time_text(s.exposed_gather_seconds),
       "The part of the wait in which host threads copied the batch's samples together."},
      {"… for the device gather", time_text(s.exposed_kernel_seconds),
       "The part of the wait in which a kernel gathered the batch out of device memory."},
      {"… for a batch to start", time_text(s.stall_other_seconds()),
       "The rest of the wait: the batch was handed from thread to thread, its copies were being launched, no "
       "slot "
       "was free for it yet, or the resident part was still on its way."},
      {"host gather", of_time(s.gather_seconds, s.gather_share()),
       "Host threads copied the samples of a batch together."},
      {"transfer", of_time(s.transfer_seconds, s.transfer_share()) + ran,
       "Copies ran, or kernels that read host memory over the link."},
      {"device gather", of_time(s.kernel_seconds, s.kernel_share()),
       "Kernels gathered samples that stay on the device."},
      {"batches ahead", fmt::format("{:.1f} of {} on average", s.mean_ready, s.prefetch_depth),
       "Batches that were ready or on their way when one was asked for, of those that may be (--prefetch). "
       "Nearly "
       "all: the feed is ahead. Few say little, for a host that only queues work asks early."},
      {"paused, all slots full", time_text(s.slot_wait_seconds),
       "The feed had nothing to do, because every slot held a batch that the step had not used up. That is "
       "good: the feed was ahead."},
      {"ring", fmt::format("{} slots, {}", s.slots, format_bytes(s.ring_bytes)),
       "The places in device memory where batches arrive."}};
}

std::string account_table(const FeedAccount& account) {
  std::vector<Figure> rows = figures(account.total);
  rows.push_back({"before the feed",
                  fmt::format("{} to open the dataset, {} to make the loader",
                              format_seconds(account.open_seconds), format_seconds(account.setup_seconds)),
                  "What came before the first request. It is in no other figure."});
  if (account.options.verify) {
    rows.push_back(
        {"compared",
         fmt::format("{} in {}, {}", format_bytes(account.compared.bytes),
                     batches_text(account.compared.batches), format_seconds(account.compared.seconds)),
         "What --verify compared with the dataset, and how long that took. It is work of the step."});
  }
  std::string html = "<table><tbody>\n";
  for (const auto& [name, value, definition] : rows) {
    html += fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", defined(name, definition), escaped(value));
  }
  return html + "</tbody></table>";
}

std::string joined(const std::vector<std::string>& words) {
  return words.empty() ? "-" : fmt::format("{}", fmt::join(words, " "));
}

std::string options_table(const FeedAccount& account) {
  const FeedOptions& o = account.options;
  const std::string sharing =
      o.world_size == 1 ? "one process" : fmt::format("rank {} of {}", o.rank, o.world_size);
  return pairs_table({{"sources", joined(o.sources)},
                      {"batch", fmt::format("{}{}", o.batch, o.drop_last ? ", full ones only" : "")},
                      {"epochs", std::to_string(o.epochs)},
                      {"order", o.shuffle ? fmt::format("shuffled, seed {}", o.seed) : "as stored"},
                      {"shared by", sharing},
                      {"delivered as", joined(o.to)},
                      {"scale, shift", joined(o.scale) + ", " + joined(o.shift)},
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

std::string notes(const FeedAccount& account, bool pictures) {
  std::string html;
  const auto note = [&](const char* kind, const std::string& text) {
    html += fmt::format("<p class=\"note {}\">{}</p>\n", kind, prose(text));
  };
  if (!account.trouble.empty()) note("bad", account.trouble);
  if (account.interrupted) note("bad", "Interrupted: the figures are those until then.");
  if (account.verified) {
    note("good", fmt::format("Verified: all {} bytes that arrived are those of the dataset.",
                             count_text(account.compared.bytes)));
  }
  if (!account.profile_ignored.empty()) {
    note("", fmt::format("The link profile is ignored: {}", account.profile_ignored));
  }
  if (!account.profile_measured) {
    note("", fmt::format("It is not known what this link can carry. `penstock link --device {}` measures it.",
                         account.device.spec));
  }
  if (!pictures) {
    note("", "This page has no pictures because d3 was not found; Debian and Ubuntu have it as node-d3.");
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
    value["timeline"].push_back({{"epoch", batch.epoch},
                                 {"batch", batch.batch},
                                 {"samples", batch.samples},
                                 {"link_bytes", batch.link_bytes},
                                 {"gather_begin", batch.gather_begin},
                                 {"gather_end", batch.gather_end},
                                 {"transfer_begin", batch.transfer_begin},
                                 {"transfer_end", batch.transfer_end},
                                 {"asked", batch.asked},
                                 {"arrived", batch.arrived}});
  }
  for (const FeedMark& mark : account.marks) {
    value["marks"].push_back(
        {{"seconds", mark.seconds}, {"samples", mark.samples}, {"bytes", mark.delivered_bytes}});
  }
  for (const FeedEpoch& epoch : account.epochs) value["epochs"].push_back(epoch.seconds);
  return value.dump();
}

/// Puts `parts` in the places that the page's text names {{so}}; nothing is looked for in the parts.
std::string filled(std::string_view page,
                   const std::vector<std::pair<std::string_view, std::string>>& parts) {
  std::string result;
  while (true) {
    const std::size_t begin = page.find("{{");
    result += page.substr(0, begin);
    if (begin == std::string_view::npos) return result;
    const std::size_t end = page.find("}}", begin);
    const std::string_view name = page.substr(begin + 2, end - begin - 2);
    for (const auto& [part, text] : parts) {
      if (part == name) result += text;
    }
    page.remove_prefix(end + 2);
  }
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

/// The command line as a shell takes it. Lines break between words alone.
std::string command_html(const std::vector<std::string>& words) {
  std::string html;
  for (const std::string& word : words) html += fmt::format("<span>{}</span> ", escaped(shell_word(word)));
  return html;
}

}  // namespace

std::optional<std::string> chart_library(const std::vector<std::filesystem::path>& places) {
  for (const std::filesystem::path& place : places) {
    std::ifstream file(place, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    if (file && text.tellp() > 0) return std::move(text).str();
  }
  return std::nullopt;
}

std::string feed_report(const FeedAccount& account, const std::optional<std::string>& chart_library) {
  std::string style(kReportStyle);
  std::string scripts;
  if (chart_library) {
    scripts = fmt::format("<script>\n{}\n</script>\n<script>\n{}</script>", *chart_library, kReportScript);
  } else {
    style += ".picture { display: none; }\n";
  }
  std::string fields;
  for (const std::string& field : account.fields) fields += fmt::format("<li>{}</li>\n", escaped(field));
  const std::string sentence = account.total.sentence();
  const std::size_t end = std::min(sentence.find(". "), sentence.size() - 1) + 1;
  const std::string advice =
      joined({sentence.substr(std::min(end + 1, sentence.size())), step_advice(account)});
  return filled(kReportPage,
                {{"title", escaped(joined(account.options.sources)) + " to " + escaped(account.device.name)},
                 {"css", style},
                 {"sentence", prose(sentence.substr(0, end))},
                 {"advice", prose(advice)},
                 {"date", escaped(when(account.started))},
                 {"command", command_html(account.options.command_line)},
                 {"notes", notes(account, chart_library.has_value())},
                 {"tiles", tiles(account)},
                 {"epochs", epochs_table(account)},
                 {"account", account_table(account)},
                 {"fields", fields},
                 {"options", options_table(account)},
                 {"machine", machine_table(account)},
                 {"data", data_text(account)},
                 {"scripts", scripts}});
}

}  // namespace penstock::cli
