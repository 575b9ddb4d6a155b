// How a group's loader is made: which members carry and receive, and the loader and ring of each.

#include "loader/gaps.hpp"
#include "loader/group_loader_state.hpp"
#include "loader/plan_rows.hpp"
#include "loader/whole_batches.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/log.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace penstock {

namespace {

// Of a relay and its receiver: more than are under way and overlap.
constexpr std::size_t kWatchedBatches = 16;

LoaderOptions checked(LoaderOptions options, bool relays) {
  if (relays && options.residency.kind != Residency::Kind::none) {
    throw InvalidArgument(
        "Samples that stay on a device cross no link again, and a relay would send them each time: leave out "
        "the residency or the relay.");
  }
  return checked_for_group(std::move(options));
}

std::vector<std::size_t> receivers_of(const DeviceGroup& group, std::optional<std::size_t> receiver) {
  if (receiver && *receiver >= group.size()) {
    throw InvalidArgument(
        fmt::format("member {} is not in a group of {}; members count from 0", *receiver, group.size()));
  }
  if (receiver) return {*receiver};
  std::vector<std::size_t> all(group.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

/// Members copy fields with gaps between their samples each for itself, but for columns. So the wide ones are
/// copied here, once.
Dataset without_wide_gaps(Dataset dataset, const LoaderOptions& options, const Device& device) {
  if (options.data_may_change) return dataset;
  std::vector<std::size_t> narrow;
  for (std::size_t f = 0; f < dataset.field_count(); ++f) {
    if (dataset.sample_bytes(f) <= kMostColumnBytes) narrow.push_back(f);
  }
  const std::vector<std::size_t> wide = fields_with_gaps(dataset, narrow);
  return wide.empty() ? std::move(dataset) : with_copies(dataset, wide, *device.host_workers());
}

/// The rate of large copies between two members; 0 if it was not measured.
double measured_way(const GroupLinks& links, std::size_t from, std::size_t to) {
  if (!links.measured || links.measured->members[from].peers.empty()) return 0;
  return links.measured->members[from].peers[to];
}

}  // namespace

GroupLoaderState::GroupLoaderState(Dataset dataset, DeviceGroup group, LoaderOptions options,
                                   const GroupLinks& links, std::optional<std::size_t> receiver)
    : options_(checked(std::move(options), receiver.has_value())),
      group_(std::move(group)),
      dataset_(without_wide_gaps(std::move(dataset), options_, group_[0])),
      receiver_(receiver),
      receivers_(receivers_of(group_, receiver)),
      first_sampler_(dataset_.sample_count(), sampler_options_of(options_)),
      drawn_(draws_of_whole(options_, dataset_.sample_count())),
      draws_(drawn_ ? std::make_shared<SharedDraws>(*drawn_) : nullptr),
      plan_(plan_of_whole(dataset_, options_, largest_batch(options_, first_sampler_))),
      account_(std::make_unique<Account>(group_[receivers_[0]],
                                         AccountOptions{.timeline_batches = options_.timeline_batches})),
      sampler_(first_sampler_),
      taken_(receivers_.size()),
      position_(sampler_.state()) {
  for (const std::string& pair : group_.unreached()) log_warning(pair);
  try {
    add_members(links);
    thread_.begin();
  } catch (...) {
    end_members();
    throw;
  }
}

std::vector<GroupLoaderState::Lane> GroupLoaderState::lanes_of(const GroupLinks& links) const {
  std::vector<Lane> lanes;
  if (receiver_) {
    const bool pays = !links.measured || links.measured->relay_pays(*receiver_);
    Lane& lane = lanes.emplace_back(Lane{.carriers = {}, .receivers = {*receiver_}});
    for (std::size_t i = 0; i < group_.size(); ++i) {
      if (i == *receiver_ || (pays && group_.reaches(i, *receiver_))) lane.carriers.push_back(i);
    }
  } else if (links.measured && !links.measured->feeding_once_pays()) {
    for (const std::size_t i : receivers_) lanes.push_back({.carriers = {i}, .receivers = {i}});
  } else {
    for (const auto& clique : group_.cliques()) lanes.push_back({.carriers = clique, .receivers = clique});
  }
  for (Lane& lane : lanes) {
    std::vector<double> weights;
    weights.reserve(lane.carriers.size());
    for (const std::size_t member : lane.carriers) {
      weights.push_back(links.measured ? std::max(links.measured->members[member].link, 1.0) : 1.0);
    }
    std::optional<std::size_t> receiver;
    if (receiver_) {
      receiver =
          static_cast<std::size_t>(std::ranges::find(lane.carriers, *receiver_) - lane.carriers.begin());
    }
    lane.shares = std::make_shared<BatchShares>(std::move(weights), receiver);
  }
  return lanes;
}

void GroupLoaderState::add_members(const GroupLinks& links) {
  const std::size_t count = group_.size();
  if (!links.profiles.empty() && links.profiles.size() != count) {
    throw InvalidArgument(fmt::format("{} profiles were given for a group of {}; give one for each or none",
                                      links.profiles.size(), count));
  }
  if (links.measured && links.measured->members.size() != count) {
    throw InvalidArgument(
        fmt::format("the measured profile has {} devices, and the group {}; measure this one",
                    links.measured->members.size(), count));
  }
  lanes_ = lanes_of(links);
  for (std::size_t i = 0; i < count; ++i) {
    const Device& device = group_[i];
    const bool receives = std::ranges::find(receivers_, i) != receivers_.end();
    const GroupBudget budget = group_budget(options_, device, receives, plan_.slot_bytes);
    members_.push_back({.push = device.create_stream(StreamPriority::high),
                        .arrive = device.create_stream(StreamPriority::high),
                        .pushed = device.create_event()});
    add_loader(i, links, budget.parts);
    if (receives) {
      members_[i].ring = make_group_ring(device, budget.ring, plan_, options_, sampler_.state());
    }
  }
  if (links.measured) {
    link_ceiling_ = receiver_ ? links.measured->members[*receiver_].relayed : links.measured->links_at_once;
  }
}

void GroupLoaderState::add_loader(std::size_t self, const GroupLinks& links, std::size_t budget) {
  Member& member = members_[self];
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    const std::vector<std::size_t>& carriers = lanes_[l].carriers;
    const auto found = std::ranges::find(carriers, self);
    if (found == carriers.end()) continue;
    member.lane = l;
    member.number = static_cast<std::size_t>(found - carriers.begin());
    member.sampler = std::make_shared<PartSampler>(first_sampler_, draws_, lanes_[l].shares, member.number);
  }
  if (member.sampler == nullptr) return;
  const bool relays = receiver_ && *receiver_ != self;
  BatchShares& shares = *lanes_[member.lane].shares;

  LoaderOptions own = options_of_parts(options_, member.sampler, shares.largest(plan_.batch, member.number));
  if (!links.profiles.empty()) own.profile = links.profiles[self];
  own.device_budget_bytes = budget;
  if (receiver_) own.timeline_batches = kWatchedBatches;
  try {
    member.loader.emplace(dataset_, group_[self], std::move(own));
  } catch (const OutOfMemory& error) {
    if (!relays) throw;
    shares.leave_out(member.number);
    log_warning(fmt::format("{} relays nothing: {}", group_[self].info().spec, error.what()));
    return;
  }
  if (relays) member.watch.emplace(group_[self], measured_way(links, self, *receiver_));
  const std::optional<LinkProfile>& profile = member.loader->options().profile;
  link_ceiling_ += profile && profile->measured ? profile->ceiling(CopyDirection::h2d) : 0;
}

}  // namespace penstock
