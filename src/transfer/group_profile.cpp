#include "transfer/link_identity.hpp"
#include "transfer/profile_json.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/device/topology.hpp>
#include <penstock/transfer/group_profile.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace penstock {

namespace {

namespace pj = profile_json;
using pj::json;
using Member = GroupProfile::Member;

constexpr pj::Format kGroupProfileFormat{"group profile", "penstock-group-profile", 1,
                                         "penstock link --devices"};
constexpr std::size_t kMostMembers = 1024;
// Less is within the spread of measurements.
constexpr double kLeastGain = 1.05;

json to_value(const Member& member) {
  return {{"device_name", member.device_name},
          {"device_uuid", member.device_uuid},
          {"link", member.link},
          {"relayed", member.relayed},
          {"peers", member.peers}};
}

json to_value(const GroupProfile& profile) {
  json members = json::array();
  for (const Member& member : profile.members) members.push_back(to_value(member));
  return {{"members", std::move(members)},      {"links_at_once", profile.links_at_once},
          {"replicated", profile.replicated},   {"fed_once", profile.fed_once},
          {"chunk_bytes", profile.chunk_bytes}, {"slots", profile.slots},
          {"driver", profile.driver},           {"processor", profile.processor},
          {"measured_at", profile.measured_at}};
}

Member member_from(const json& value, std::size_t members) {
  Member member;
  member.device_name = pj::read_string(value, "device_name");
  member.device_uuid = pj::read_string(value, "device_uuid");
  member.link = pj::read_positive(value, "link", false);
  member.relayed = pj::read_positive(value, "relayed", false);
  const json& peers = pj::member(value, "peers");
  if (!peers.is_array() || peers.size() != members) {
    pj::refuse(fmt::format("'peers' does not have a rate for each of {} devices", members));
  }
  for (const json& rate : peers) member.peers.push_back(pj::to_positive(rate, "peers", true));
  return member;
}

GroupProfile group_from_value(const json& value) {
  GroupProfile profile;
  const json& members = pj::member(value, "members");
  if (!members.is_array() || members.empty() || members.size() > kMostMembers) {
    pj::refuse(fmt::format("'members' is not a list of 1 to {} devices", kMostMembers));
  }
  for (const json& member : members) profile.members.push_back(member_from(member, members.size()));
  profile.links_at_once = pj::read_positive(value, "links_at_once", false);
  profile.replicated = pj::read_positive(value, "replicated", false);
  profile.fed_once = pj::read_positive(value, "fed_once", false);
  profile.chunk_bytes = pj::read_count(value, "chunk_bytes", 4 * kKiB, kGiB);
  profile.slots = static_cast<unsigned>(pj::read_count(value, "slots", 2, 64));
  profile.driver = pj::read_string(value, "driver");
  profile.processor = pj::read_string(value, "processor");
  profile.measured_at = pj::read_string(value, "measured_at");
  return profile;
}

/// Where each device of the group is among the members. Throws InvalidArgument if they are not the same.
std::vector<std::size_t> places_in(const GroupProfile& profile, const DeviceGroup& group) {
  if (profile.members.size() != group.size()) {
    throw InvalidArgument(
        fmt::format("it describes {} devices, and there are {}.", profile.members.size(), group.size()));
  }
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < group.size(); ++i) {
    const DeviceInfo& info = group[i].info();
    const auto found = std::ranges::find(profile.members, link_identity(info), &Member::device_uuid);
    if (found == profile.members.end() || found->device_name != info.name) {
      throw InvalidArgument(fmt::format("it does not describe {}.", info.spec));
    }
    places.push_back(static_cast<std::size_t>(found - profile.members.begin()));
  }
  return places;
}

/// The members, and the rates between them, as the devices of the group follow each other.
GroupProfile in_order_of(const DeviceGroup& group, const GroupProfile& profile) {
  const std::vector<std::size_t> places = places_in(profile, group);
  GroupProfile ordered = profile;
  for (std::size_t i = 0; i < places.size(); ++i) {
    ordered.members[i] = profile.members[places[i]];
    for (std::size_t j = 0; j < places.size(); ++j) {
      ordered.members[i].peers[j] = profile.members[places[i]].peers[places[j]];
    }
  }
  return ordered;
}

}  // namespace

double GroupProfile::link_beside_others(std::size_t member) const {
  double sum = 0;
  for (const Member& each : members) sum += each.link;
  return sum > 0 ? members.at(member).link * std::min(1.0, links_at_once / sum) : 0;
}

bool GroupProfile::relay_pays(std::size_t receiver) const {
  const Member& member = members.at(receiver);
  return member.relayed > kLeastGain * member.link;
}

bool GroupProfile::feeding_once_pays() const noexcept { return fed_once > kLeastGain * replicated; }

GroupProfile GroupProfile::named_after(const DeviceGroup& group) {
  GroupProfile profile;
  for (std::size_t i = 0; i < group.size(); ++i) {
    const DeviceInfo& info = group[i].info();
    profile.members.push_back({.device_name = info.name, .device_uuid = link_identity(info)});
  }
  profile.driver = group[0].info().driver;
  profile.processor = host_topology().processor;
  return profile;
}

std::string GroupProfile::to_json() const { return pj::write(kGroupProfileFormat, to_value(*this)); }

GroupProfile GroupProfile::parse(const std::string& text) {
  return pj::parse(kGroupProfileFormat, text, group_from_value);
}

std::optional<GroupProfile> GroupProfile::load(const std::filesystem::path& file, const DeviceGroup& group,
                                               std::string* why) {
  const auto ordered = [&](const std::string& text) { return in_order_of(group, parse(text)); };
  const auto of_others = [&](const GroupProfile& profile) {
    const std::string driver = pj::differ("the driver", profile.driver, group[0].info().driver);
    return !driver.empty() ? driver
                           : pj::differ("the processor", profile.processor, host_topology().processor);
  };
  return pj::load(kGroupProfileFormat, file, why, ordered, of_others);
}

void GroupProfile::save(const std::filesystem::path& file) const {
  pj::save(kGroupProfileFormat, file, to_json());
}

std::filesystem::path GroupProfile::file_for(const std::filesystem::path& cache_directory,
                                             const DeviceGroup& group) {
  std::vector<std::string> identities;
  for (std::size_t i = 0; i < group.size(); ++i) identities.push_back(link_identity(group[i].info()));
  std::ranges::sort(identities);
  return cache_directory / "penstock" / pj::file_name("group", fmt::format("{}", fmt::join(identities, "+")));
}

}  // namespace penstock
