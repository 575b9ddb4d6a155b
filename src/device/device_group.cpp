#include "device/peer_trial.hpp"

#include <penstock/core/error.hpp>
#include <penstock/device/device_group.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace penstock {

struct DeviceGroup::State {
  std::vector<Device> members;
  std::vector<std::vector<bool>> reach;
  std::vector<std::vector<std::size_t>> cliques;
  std::vector<std::string> unreached;
};

namespace {

void check_members(const std::vector<Device>& members) {
  if (members.empty()) throw InvalidArgument("a group needs a device; none was given");
  const DeviceInfo& first = members.front().info();
  for (std::size_t i = 1; i < members.size(); ++i) {
    const DeviceInfo& info = members[i].info();
    if (info.backend != first.backend) {
      throw InvalidArgument(fmt::format(
          "{} and {} cannot be in one group: take GPUs only, or host devices only", first.spec, info.spec));
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (members[i].same_memory(members[j])) {
        throw InvalidArgument(fmt::format("{} is in the group twice; name each device once", info.spec));
      }
    }
  }
}

/// Empty if the streams of `device` can name the memory of `peer` from now on; otherwise why not.
std::string refusal_of_peer(const Device& device, const Device& peer) {
  if (!device.can_reach(peer)) return "no link between them is there, or the system does not allow its use";
  try {
    device.enable_peer(peer);
  } catch (const Error& error) {  // a limit on the number of peers, for example
    return error.what();
  }
  return {};
}

PeerRefusals refusals_of(const std::vector<Device>& members) {
  PeerRefusals refusals(members.size(), std::vector<PeerRefusal>(members.size()));
  const auto ask = [&](std::size_t from, std::size_t to) {
    refusals[from][to] = {refusal_of_peer(members[from], members[to]),
                          "Check `nvidia-smi topo -p2p rw`, and give a container all GPUs of the group"};
  };
  for (std::size_t i = 0; i < members.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      ask(i, j);
      ask(j, i);
    }
  }
  if (members.size() > 1) refuse_wrong_bytes(members, refusals);
  return refusals;
}

}  // namespace

DeviceGroup::DeviceGroup(std::vector<Device> members) {
  check_members(members);
  const auto state = std::make_shared<State>();
  const std::size_t count = members.size();
  state->reach.assign(count, std::vector<bool>(count, true));
  const PeerRefusals refusals = refusals_of(members);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const PeerRefusal& there = refusals[i][j];
      const PeerRefusal& back = refusals[j][i];
      state->reach[i][j] = there.why.empty();
      state->reach[j][i] = back.why.empty();
      if (there.why.empty() && back.why.empty()) continue;
      const PeerRefusal& refusal = there.why.empty() ? back : there;
      state->unreached.push_back(
          fmt::format("{} and {} do not reach each other's memory ({}). Each receives its bytes over its own "
                      "link. {}.",
                      members[j].info().spec, members[i].info().spec, refusal.why, refusal.advice));
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    const auto fits = [&](const std::vector<std::size_t>& clique) {
      return std::ranges::all_of(
          clique, [&](std::size_t other) { return state->reach[i][other] && state->reach[other][i]; });
    };
    const auto clique = std::ranges::find_if(state->cliques, fits);
    if (clique == state->cliques.end()) {
      state->cliques.push_back({i});
    } else {
      clique->push_back(i);
    }
  }
  state->members = std::move(members);
  state_ = state;
}

std::size_t DeviceGroup::size() const noexcept { return state_->members.size(); }

const Device& DeviceGroup::operator[](std::size_t member) const noexcept { return state_->members[member]; }

bool DeviceGroup::reaches(std::size_t member, std::size_t other) const noexcept {
  return state_->reach[member][other];
}

const std::vector<std::vector<std::size_t>>& DeviceGroup::cliques() const noexcept { return state_->cliques; }

const std::vector<std::string>& DeviceGroup::unreached() const noexcept { return state_->unreached; }

}  // namespace penstock
