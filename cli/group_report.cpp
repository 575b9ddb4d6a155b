#include "link_report.hpp"

#include <penstock/core/bytes.hpp>

#include <fmt/format.h>

namespace penstock::cli {

namespace {

std::string device_table(const DeviceGroup& group, const GroupProfile& profile) {
  std::vector<std::string> header{"device", "its link", "over all links"};
  for (std::size_t to = 0; to < group.size(); ++to) {
    header.push_back(fmt::format("to {}", group[to].info().spec));
  }
  Table table(std::move(header));
  for (std::size_t from = 0; from < group.size(); ++from) {
    const GroupProfile::Member& member = profile.members[from];
    std::vector<std::string> cells{group[from].info().spec, format_rate(member.link),
                                   format_rate(member.relayed)};
    for (std::size_t to = 0; to < group.size(); ++to) {
      const bool reached = member.peers[to] > 0;
      cells.push_back(reached ? format_rate(member.peers[to]) : from == to ? "" : "none");
    }
    table.add(std::move(cells));
  }
  return "GB/s of copies from pinned memory, and from each device to the others, median\n" + table.text();
}

std::string together(const GroupProfile& profile) {
  Table table({"all devices at once", "GB/s"});
  table.add({"all links together", format_rate(profile.links_at_once)});
  table.add({"each receives, if each pulls all", format_rate(profile.replicated)});
  table.add({"each receives, fed once", format_rate(profile.fed_once)});
  return table.text();
}

}  // namespace

std::string group_report(const DeviceGroup& group, const GroupMeasurement& measurement) {
  const GroupProfile& profile = measurement.profile;
  std::string text =
      fmt::format("copies of {}, {} of copied bytes compared, {} in all\n\n", format_bytes(measurement.bytes),
                  format_bytes(measurement.verified_bytes), format_seconds(measurement.seconds));
  text += device_table(group, profile) + "\n" + together(profile) + "\n";
  text += fmt::format("chunks of {}, {} on each link\n", format_bytes(profile.chunk_bytes), profile.slots);
  for (std::size_t i = 0; i < group.size(); ++i) {
    if (profile.relay_pays(i)) continue;
    text += fmt::format("relays to {} do not pay: its own link carries all\n", group[i].info().spec);
  }
  if (!profile.feeding_once_pays()) text += "feeding once does not pay: each device pulls for itself\n";
  for (const std::string& note : measurement.notes) text += fmt::format("\nnote: {}\n", note);
  return text;
}

}  // namespace penstock::cli
