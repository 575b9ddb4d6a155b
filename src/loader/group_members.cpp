// How a group's loader is made: which members carry and receive, and the loader and ring of each.

#include "loader/gaps.hpp"
#include "loader/group_source.hpp"
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

std::vector<std::size_t> receivers_of(const Destination& destination) {
  if (destination.kind() == Destination::Kind::relayed) return {destination.receiver()};
  std::vector<std::size_t> all(destination.group().size());
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

GroupSource::GroupSource(Dataset dataset, const Destination& destination, const LoaderOptions& options,
                         BatchOrder& order)
    : options_(options),
      group_(destination.group()),
      dataset_(without_wide_gaps(std::move(dataset), options_, group_[0])),
      receivers_(receivers_of(destination)),
      relays_(destination.kind() == Destination::Kind::relayed),
      draws_(share_draws(order)),
      plan_(plan_of_whole(dataset_, options_, order.largest_batch())),
      parts_(group_.size()) {
  for (const std::string& pair : group_.unreached()) log_warning(pair);
  add_members(destination.links(), order);
}

std::vector<GroupSource::Lane> GroupSource::lanes_of(const GroupLinks& links) const {
  std::vector<Lane> lanes;
  if (relays_) {
    const std::size_t receiver = receivers_[0];
    const bool pays = !links.measured || links.measured->relay_pays(receiver);
    Lane& lane = lanes.emplace_back(Lane{.carriers = {}, .receivers = receivers_});
    for (std::size_t i = 0; i < group_.size(); ++i) {
      if (i == receiver || (pays && group_.reaches(i, receiver))) lane.carriers.push_back(i);
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
    if (relays_) {
      receiver =
          static_cast<std::size_t>(std::ranges::find(lane.carriers, receivers_[0]) - lane.carriers.begin());
    }
    lane.shares = std::make_shared<BatchShares>(std::move(weights), receiver);
  }
  return lanes;
}

void GroupSource::add_members(const GroupLinks& links, const BatchOrder& order) {
  const std::size_t count = group_.size();
  lanes_ = lanes_of(links);
  for (std::size_t i = 0; i < count; ++i) {
    const Device& device = group_[i];
    const bool receives = std::ranges::find(receivers_, i) != receivers_.end();
    const GroupBudget budget = group_budget(options_, device, receives, plan_.slot_bytes);
    members_.push_back({.push = device.create_stream(StreamPriority::high),
                        .arrive = device.create_stream(StreamPriority::high),
                        .pushed = device.create_event()});
    add_loader(i, links, order, budget.parts);
    if (receives) {
      members_[i].ring = make_group_ring(device, budget.ring, plan_, options_, order.first.state());
    }
  }
  if (links.measured) {
    link_ceiling_ = relays_ ? links.measured->members[receivers_[0]].relayed : links.measured->links_at_once;
  }
}

void GroupSource::add_loader(std::size_t self, const GroupLinks& links, const BatchOrder& order,
                             std::size_t budget) {
  Member& member = members_[self];
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    const std::vector<std::size_t>& carriers = lanes_[l].carriers;
    const auto found = std::ranges::find(carriers, self);
    if (found == carriers.end()) continue;
    member.lane = l;
    member.number = static_cast<std::size_t>(found - carriers.begin());
    member.sampler = std::make_shared<PartSampler>(order.first, draws_, lanes_[l].shares, member.number);
  }
  if (member.sampler == nullptr) return;
  const bool relays = relays_ && receivers_[0] != self;
  BatchShares& shares = *lanes_[member.lane].shares;

  LoaderOptions own = options_of_parts(options_, member.sampler, shares.largest(plan_.batch, member.number));
  if (!links.profiles.empty()) own.profile = links.profiles[self];
  own.device_budget_bytes = budget;
  if (relays_) own.timeline_batches = kWatchedBatches;
  try {
    member.loader.emplace(dataset_, group_[self], std::move(own));
  } catch (const OutOfMemory& error) {
    if (!relays) throw;
    shares.leave_out(member.number);
    log_warning(fmt::format("{} relays nothing: {}", group_[self].info().spec, error.what()));
    return;
  }
  if (relays) member.watch.emplace(group_[self], measured_way(links, self, receivers_[0]));
  const std::optional<LinkProfile>& profile = member.loader->options().profile;
  link_ceiling_ += profile && profile->measured ? profile->ceiling(CopyDirection::h2d) : 0;
}

}  // namespace penstock
