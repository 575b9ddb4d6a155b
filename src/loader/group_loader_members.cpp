// How a group's loader is made: which members carry and receive, and what each of them gets.

#include "loader/group_loader_state.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/log.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace penstock {

namespace {

// The next part crosses the link while the one before it is copied on.
constexpr std::size_t kPartsAhead = 2;
// Of a member that relays: more than are under way and overlap.
constexpr std::size_t kWatchedBatches = 16;

LoaderOptions checked_for_group(LoaderOptions options, bool relays) {
  if (relays && options.residency.kind != Residency::Kind::none) {
    throw InvalidArgument(
        "Samples that stay on a device cross no link again, and a relay would send them each time: leave out "
        "the residency or the relay.");
  }
  if (options.batch_sampler) {
    throw InvalidArgument(
        "A loader over several links draws its batches by itself: leave out the sampler, or use a Loader for "
        "each device.");
  }
  if (options.data_may_change) {
    throw InvalidArgument(
        "A loader over several links reads ahead from epoch to epoch: its data must not change.");
  }
  return options;
}

SamplerOptions sampler_options_of(const LoaderOptions& options) {
  return {.shuffle = options.shuffle,
          .seed = options.seed,
          .batch_size = options.batch_size,
          .drop_last = options.drop_last,
          .shard = options.shard};
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

/// How a whole batch lies in a slot. Nothing travels by this plan.
FeedPlan plan_of_whole(const Dataset& dataset, const LoaderOptions& options, std::uint64_t batch) {
  FeedPlan plan;
  plan.batch = static_cast<std::size_t>(batch);
  for (std::size_t f = 0; f < dataset.field_count(); ++f) {
    FieldPlan field;
    field.stored = dataset.field(f);
    field.to = field.stored.narrowed_from.value_or(field.stored.dtype);
    for (const FieldOptions& asked : options.fields) {
      if (asked.name == field.stored.name && asked.to) field.to = *asked.to;
    }
    field.delivered_bytes = element_count(field.stored.shape) * dtype_bytes(field.to);
    field.slot_offset = plan.slot_bytes;
    plan.slot_bytes += align_up(plan.batch * field.delivered_bytes, kSlotAlignment);
    plan.fields.push_back(std::move(field));
  }
  // Nobody reads indices there.
  plan.slot_bytes = std::max(plan.slot_bytes, kSlotAlignment);
  return plan;
}

}  // namespace

GroupLoaderState::GroupLoaderState(Dataset dataset, DeviceGroup group, LoaderOptions options,
                                   const GroupLinks& links, std::optional<std::size_t> receiver)
    : options_(checked_for_group(std::move(options), receiver.has_value())),
      group_(std::move(group)),
      dataset_(std::move(dataset)),
      receiver_(receiver),
      receivers_(receivers_of(group_, receiver)),
      first_sampler_(dataset_.sample_count(), sampler_options_of(options_)),
      plan_(plan_of_whole(dataset_, options_,
                          std::min(options_.batch_size, first_sampler_.samples_per_epoch()))),
      account_(std::make_unique<Account>(group_[receivers_[0]],
                                         AccountOptions{.timeline_batches = options_.timeline_batches})),
      sampler_(first_sampler_),
      taken_(receivers_.size()),
      position_(sampler_.state()) {
  for (const std::string& pair : group_.unreached()) log_warning(pair);
  try {
    add_members(links);
    begin_production();
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
    const std::size_t budget =
        options_.device_budget_bytes != 0 ? options_.device_budget_bytes : device.memory().free / 2;
    // Parts take little if nothing is resident. Otherwise the ring has room for as many slots again as it
    // begins with.
    std::size_t ring_budget = 0;
    if (receives) {
      ring_budget = options_.residency.kind == Residency::Kind::none
                        ? budget / 2
                        : std::min(budget / 2, 2 * (options_.prefetch_depth + 1) * plan_.slot_bytes);
    }
    members_.push_back({.push = device.create_stream(StreamPriority::high),
                        .arrive = device.create_stream(StreamPriority::high),
                        .pushed = device.create_event()});
    add_loader(i, links, budget - ring_budget);
    if (receives) add_ring(i, ring_budget);
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
    member.sampler = std::make_shared<PartSampler>(first_sampler_, lanes_[l].shares, member.number);
  }
  if (member.sampler == nullptr) return;
  const bool relays = receiver_ && *receiver_ != self;
  BatchShares& shares = *lanes_[member.lane].shares;

  LoaderOptions own = options_;
  own.batch_sampler = member.sampler;
  own.batch_size = std::max<std::uint64_t>(shares.largest(plan_.batch, member.number), 1);
  own.shuffle = own.drop_last = false;
  own.seed = 0;
  own.shard = {};
  own.prefetch_depth = std::min(kPartsAhead, options_.prefetch_depth);
  own.ring_grows = true;
  if (!links.profiles.empty()) own.profile = links.profiles[self];
  own.device_budget_bytes = std::max<std::size_t>(budget, 1);
  if (relays) own.timeline_batches = kWatchedBatches;
  try {
    member.loader.emplace(dataset_, group_[self], std::move(own));
  } catch (const OutOfMemory& error) {
    if (!relays) throw;
    shares.leave_out(member.number);
    log_warning(fmt::format("{} relays nothing: {}", group_[self].info().spec, error.what()));
    return;
  }
  if (relays) member.watch.emplace(group_[self]);
  const std::optional<LinkProfile>& profile = member.loader->options().profile;
  link_ceiling_ += profile && profile->measured ? profile->ceiling(CopyDirection::h2d) : 0;
}

void GroupLoaderState::add_ring(std::size_t self, std::size_t budget) {
  const auto memory = std::make_shared<Pool>(
      make_device_pool(group_[self], {.budget_bytes = std::max<std::size_t>(budget, 1),
                                      .segment_bytes = std::max(plan_.slot_bytes, std::size_t{1} << 20)}));
  members_[self].ring = std::make_shared<DeviceRing>(group_[self], memory, plan_, options_, sampler_.state());
}

}  // namespace penstock
