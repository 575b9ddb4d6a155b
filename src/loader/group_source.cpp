#include "loader/group_source.hpp"

#include "core/shared/wait_quietly.hpp"
#include "loader/whole_batches.hpp"

#include <penstock/core/bytes.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace penstock {

std::vector<std::shared_ptr<DeviceRing>> GroupSource::rings() const {
  std::vector<std::shared_ptr<DeviceRing>> rings;
  for (const std::size_t i : receivers_) rings.push_back(members_[i].ring);
  return rings;
}

/// Takes the parts of the next batch. A member without a part says so, since its loader's epoch ends. With a
/// batch sampler, each member's epoch also ends with the whole one.
bool GroupSource::come_to(const Turn& turn) {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    if (member.loader) parts_[i] = next_part(*member.loader, member.push, turn);
  }
  return true;
}

/// Enqueues the copies of all parts into a receiver's slot.
bool GroupSource::fill(const Turn& turn, std::size_t number, DeviceSlot& slot, PublishedItem& item) {
  const Member& receiver = members_[receivers_[number]];
  if (item.timed != nullptr) item.timed->begin.record(receiver.arrive);
  const Lane& lane = lanes_[receiver.lane];
  const BatchSplit& split = lane.shares->of(turn.number);
  for (const std::size_t sender : lane.carriers) {
    Member& from = members_[sender];
    const std::optional<DeviceBatch>& parts = parts_[sender];
    if (!parts) continue;
    const std::uint64_t begin = split.part(slot.run.count, from.number).begin;
    receiver.ring->wait_for_users(slot, from.push);
    if (from.watch) from.watch->push_begins(*parts, from.push);
    for (std::size_t f = 0; f < slot.fields.size(); ++f) {
      const DeviceField& part = parts->field(f);
      if (part.bytes == 0) continue;
      std::byte* const there = slot.fields[f].data + begin * plan_.fields[f].delivered_bytes;
      from.push.copy(there, part.data, part.bytes, CopyDirection::d2d);
    }
    if (from.watch) from.watch->push_ends(from.push);
    from.pushed.record(from.push);
    receiver.arrive.wait(from.pushed);
  }
  receiver.ring->mark_end(slot, receiver.arrive, item.timed);
  return true;
}

/// Blocks the host until no copy to a slot is under way. True if that cannot be known.
bool GroupSource::may_still_write() noexcept {
  bool done = true;
  for (const Member& member : members_) {
    for (const Stream* stream : {&member.push, &member.arrive}) {
      done = wait_quietly([&] { stream->synchronize(); }) && done;
    }
  }
  return !done;
}

/// Sees who gives way.
void GroupSource::go_on(const Turn& turn) {
  const std::uint64_t next = turn.number + 1;
  for (Lane& lane : lanes_) lane.shares->forget_before(next);
  if (draws_ != nullptr) draws_->forget_before(next);
  for (std::optional<DeviceBatch>& part : parts_) part.reset();
  if (relays_) own_link_.see(first_receiver().loader->timeline());
  for (Member& member : members_) {
    if (!member.watch) continue;
    Lane& lane = lanes_[member.lane];
    const std::vector<BatchTimes> pulled = member.loader->timeline();
    lane.shares->set_gives_way(member.number,
                               member.watch->is_busy(pulled, lane.carriers.size() - 1, own_link_.pace()));
  }
}

void GroupSource::fail(const std::exception_ptr& /*error*/) noexcept {
  for (std::optional<DeviceBatch>& part : parts_) part.reset();
}

void GroupSource::go_to(const Sampler& place) {
  for (std::optional<DeviceBatch>& part : parts_) part.reset();
  for (Lane& lane : lanes_) lane.shares->restart();
  for (Member& member : members_) {
    if (!member.loader) continue;
    member.sampler->go_to(place);
    restart_parts(*member.loader);
  }
}

void GroupSource::leave() {
  for (std::optional<DeviceBatch>& part : parts_) part.reset();
  for (Member& member : members_) {
    if (member.loader) restart_parts(*member.loader);
  }
}

void GroupSource::synchronize() {
  for (Member& member : members_) {
    if (member.loader) member.loader->synchronize();
  }
}

void GroupSource::close(std::uint64_t /*handed_out*/) {
  for (Member& member : members_) {
    if (member.loader) member.loader->close();
  }
  for (const Member& member : members_) member.arrive.synchronize();
}

void GroupSource::complete(FeedStatistics& statistics) const {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const FeedStatistics own = *member_stats(i);
    statistics.link_bytes += own.link_bytes;
    statistics.resident_bytes += own.resident_bytes;
    statistics.ring_bytes += own.ring_bytes;
  }
  count_copies_of_parts(statistics);
  statistics.link_ceiling = link_ceiling_;
}

std::optional<FeedStatistics> GroupSource::member_stats(std::size_t member) const {
  const std::optional<Loader>& loader = members_.at(member).loader;
  return loader ? loader->stats() : FeedStatistics{};
}

std::vector<std::string> GroupSource::describe() const {
  std::vector<std::string> lines = plan().describe();
  std::string links;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    fmt::format_to(std::back_inserter(links), "{} {} {}", i == 0 ? "" : ",", group_[i].info().spec,
                   format_bytes(member_stats(i)->link_bytes));
  }
  lines.push_back("links: carried so far by" + links);
  return lines;
}

}  // namespace penstock
