#include "feed_report.hpp"

#include "report_files.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/device/topology.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <sstream>
#include <utility>

namespace penstock::cli {

namespace {

using nlohmann::json;
using Rows = std::vector<std::pair<std::string, std::string>>;

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
      default:
        result += c;
    }
  }
  return result;
}

std::string pairs_table(const Rows& rows) {
  std::string html = "<table><tbody>\n";
  for (const auto& [name, value] : rows) {
    html += fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", escaped(name), escaped(value));
  }
  return html + "</tbody></table>";
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string count_text(std::uint64_t count) {
  std::string text = std::to_string(count);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, 1, ',');
  return text;
}

std::string time_text(double seconds) { return seconds > 0 ? format_seconds(seconds) : "none"; }

std::string rate_text(double rate) {
  if (rate >= 1e6) return fmt::format("{:.2f} M", rate / 1e6);
  if (rate >= 1e4) return fmt::format("{:.1f} k", rate / 1e3);
  return fmt::format("{:.0f}", rate);
}

std::string efficiency_text(const FeedStatistics& s) {
  if (s.link_ceiling <= 0) return "ceiling not measured";
  return fmt::format("{} of {} GB/s", percent(s.link_efficiency()), format_rate(s.link_ceiling));
}

std::string tiles(const FeedAccount& account) {
  const FeedStatistics& s = account.total;
  const Rows rows{{rate_text(s.samples_per_second()), "samples a second"},
                  {fmt::format("{:.2f} GB/s", s.link_gbps()), "over the link, " + efficiency_text(s)},
                  {fmt::format("{:.2f} GB/s", s.delivered_gbps()), "delivered"},
                  {percent(s.stall_share()), "of its time the consumer waited"},
                  {format_seconds(s.seconds), "for " + format_bytes(s.delivered_bytes)}};
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
      "<th>link GB/s</th><th>delivered GB/s</th><th>stalled</th><th>limit</th></tr></thead><tbody>\n";
  for (const FeedEpoch& epoch : account.epochs) {
    const FeedStatistics& s = epoch.statistics;
    html += fmt::format(
        "<tr><th>{}{}</th><td>{}</td><td>{:.3f}</td><td>{}</td><td>{:.2f}</td><td>{:.2f}</td><td>{}</td>"
        "<td>{}</td></tr>\n",
        epoch.epoch + 1, epoch.complete ? "" : " (cut short)", count_text(s.samples), s.seconds,
        rate_text(s.samples_per_second()), s.link_gbps(), s.delivered_gbps(), percent(s.stall_share()),
        feed_limit_name(s.limited_by()));
  }
  return html + "</tbody></table>";
}

std::string account_table(const FeedAccount& account) {
  const FeedStatistics& s = account.total;
  Rows rows{
      {"samples", fmt::format("{} in {} batches", count_text(s.samples), count_text(s.batches))},
      {"delivered", fmt::format("{}, {:.2f} GB/s", format_bytes(s.delivered_bytes), s.delivered_gbps())},
      {"over the link",
       fmt::format("{}, {:.2f} GB/s, {}", format_bytes(s.link_bytes), s.link_gbps(), efficiency_text(s))},
      {"time", time_text(s.seconds)},
      {"gather on the host", time_text(s.gather_seconds)},
      {"transfer", time_text(s.transfer_seconds)},
      {"gather on the device", time_text(s.kernel_seconds)},
      {"compute", time_text(s.compute_seconds)},
      {"stall", fmt::format("{}, {} of it while the batch's transfer ran", format_seconds(s.stall_seconds),
                            format_seconds(s.exposed_transfer_seconds))},
      {"no free slot", time_text(s.slot_wait_seconds)},
      {"ready when asked", fmt::format("{:.2f} batches on average", s.mean_ready)},
      {"device ring", fmt::format("{} slots, {}", s.slots, format_bytes(s.ring_bytes))},
      {"resident", s.resident_bytes == 0 ? "nothing"
                                         : fmt::format("{}, moved in {}", format_bytes(s.resident_bytes),
                                                       format_seconds(s.resident_seconds))},
      {"before the feed",
       fmt::format("{} to open the dataset, {} to make the loader", format_seconds(account.open_seconds),
                   format_seconds(account.setup_seconds))}};
  if (account.options.verify) {
    rows.emplace_back(
        "compared",
        fmt::format("{} in {} batches, {} of the consumer's time", format_bytes(account.compared.bytes),
                    count_text(account.compared.batches), format_seconds(account.compared.seconds)));
  }
  return pairs_table(rows);
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
       {"link", device.backend == "host" ? "none: copies within host memory" : format_link(device.link)},
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
    html += fmt::format("<p class=\"note {}\">{}</p>\n", kind, escaped(text));
  };
  if (!account.trouble.empty()) note("bad", account.trouble);
  if (account.interrupted) note("bad", "Interrupted: the account ends before the feed would have.");
  if (account.verified) {
    note("good", fmt::format("Verified: all {} bytes that arrived are those of the dataset.",
                             count_text(account.compared.bytes)));
  }
  if (!account.profile_measured) {
    note("", fmt::format("The link's ceiling was not measured here; `penstock link --device {}` does it.",
                         account.device.spec));
  }
  if (!pictures) {
    note("", "This page has no pictures because d3 was not found; Debian and Ubuntu have it as node-d3.");
  }
  return html;
}

std::string data_text(const FeedAccount& account) {
  const FeedStatistics& s = account.total;
  json value{{"total",
              {{"seconds", s.seconds},
               {"gather_seconds", s.gather_seconds},
               {"slot_wait_seconds", s.slot_wait_seconds},
               {"transfer_seconds", s.transfer_seconds},
               {"kernel_seconds", s.kernel_seconds},
               {"compute_seconds", s.compute_seconds},
               {"stall_seconds", s.stall_seconds},
               {"exposed_transfer_seconds", s.exposed_transfer_seconds}}},
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

std::string sentence_of(const FeedAccount& account) {
  std::string sentence = account.total.sentence();
  if (!sentence.empty() && sentence[0] >= 'a' && sentence[0] <= 'z') {
    sentence[0] = static_cast<char>(sentence[0] - 'a' + 'A');
  }
  return sentence;
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
  return filled(kReportPage,
                {{"title", escaped(joined(account.options.sources)) + " to " + escaped(account.device.name)},
                 {"css", style},
                 {"sentence", escaped(sentence_of(account))},
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
