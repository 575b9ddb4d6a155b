#include "transfer/group_member.hpp"

#include "core/shared/wait_quietly.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace penstock {

namespace {

// Chunks are large, so there is always more than one on the link while the host notices the end of the first.
constexpr EventWait kRoomWait = EventWait::sleep;
constexpr std::size_t kMemberSegment = std::size_t{1} << 20;  // larger requests take their exact size
// The gaps between more copies than these would show in a chunk's rate.
constexpr std::size_t kFewCopies = 8;

void note(ChunkRates& rates, ChunkSize size, double seconds) {
  rates.note(size.copies <= kFewCopies ? static_cast<double>(size.bytes) / seconds : ChunkRates::kUnknown,
             size);
}

bool others_relay_to(std::size_t self, const GroupJob& job) {
  const GroupJob::Lane& lane = job.lane_of(self);
  return lane.receivers.size() == 1 && lane.receivers.front() == self && lane.carriers.size() > 1;
}

}  // namespace

GroupMember::RelayBuffer::RelayBuffer(const Device& device, Buffer buffer)
    : memory(std::move(buffer)),
      pull_begins(device.create_event(EventTiming::on)),
      pulled(std::make_shared<Event>(device.create_event(EventTiming::on, kRoomWait))),
      push_begins(device.create_event(EventTiming::on)),
      pushed(device.create_event(EventTiming::on, kRoomWait)) {}

GroupMember::GroupMember(Device device, GroupMemberOptions options)
    : device_(std::move(device)),
      options_(options),
      workers_(device_.host_workers()),
      threads_(std::clamp(options.threads, 1u, static_cast<unsigned>(workers_->threads()))),
      events_(std::make_shared<EventPool>(device_)),
      pinned_(make_pinned_pool(device_, {.segment_bytes = kMemberSegment, .purpose = "relays"})),
      memory_(make_device_pool(device_, {.segment_bytes = kMemberSegment})),
      link_(device_.create_stream()),
      push_(device_.create_stream()),
      own_rates_(options_.link),
      filler_(workers_, threads_) {}

GroupMember::Room GroupMember::wait_for_room(const GroupJob& job, std::size_t self) {
  const bool in_place = job.locked[self];
  std::optional<PinnedRing>& ring = in_place ? in_place_ : staged_;
  if (!ring) ring.emplace(device_, pinned_, options_.slots, in_place ? 0 : options_.chunk_bytes, kRoomWait);
  const bool relays = job.destinations[self] == nullptr;
  while (relays && relays_.size() < options_.slots) {
    relays_.emplace_back(device_, memory_.allocate(options_.chunk_bytes));
  }
  const bool is_relayed_to = others_relay_to(self, job);
  while (is_relayed_to && own_.size() < options_.slots) {
    own_.push_back({.begins = device_.create_event(EventTiming::on),
                    .pulled = std::make_shared<Event>(device_.create_event(EventTiming::on, kRoomWait))});
  }
  const auto begin = std::chrono::steady_clock::now();
  if (relays && next_relay().chunk) next_relay().pushed.synchronize();
  const Room room = take_room(job, self);
  job.state->account(0, 0, seconds_since(begin));
  return room;
}

std::optional<GroupMember::Room> GroupMember::find_room(const GroupJob& job, std::size_t self) {
  if (!staged_->next_is_free()) return std::nullopt;
  const bool relays = job.destinations[self] == nullptr;
  if (relays && next_relay().chunk && !next_relay().pushed.query()) return std::nullopt;
  return take_room(job, self);
}

GroupMember::Room GroupMember::take_room(const GroupJob& job, std::size_t self) {
  Room room{.slot = &(job.locked[self] ? in_place_ : staged_)->next()};
  if (job.destinations[self] == nullptr) {
    read_times();
    room.relay = &relays_[relay_turn_++ % relays_.size()];
  }
  if (others_relay_to(self, job)) {
    room.own = &own_[own_turn_++ % own_.size()];
    read_own_times(*room.own);
  }
  return room;
}

void GroupMember::read_times() {
  for (std::size_t i = 0; i < relays_.size(); ++i) {
    RelayBuffer& relay = relays_[(relay_turn_ + i) % relays_.size()];
    if (!relay.chunk) continue;
    if (!relay.pushed.query()) return;
    const RelayedChunk chunk = *std::exchange(relay.chunk, std::nullopt);
    if (2 * chunk.bytes < options_.chunk_bytes) continue;  // its latency would show
    const double way = options_.peers.empty() ? 0 : options_.peers[chunk.receiver];
    const RelayPace measured = RelayPace::of(device_.info(), options_.link, way);
    RelayPace& pace = paces_.try_emplace(chunk.receiver, measured).first->second;
    note(pace.pull, {chunk.bytes, chunk.pulls}, relay.pulled->seconds_since(relay.pull_begins));
    note(pace.push, {chunk.bytes, chunk.pushes}, relay.pushed.seconds_since(relay.push_begins));
  }
}

void GroupMember::read_own_times(OwnChunk& chunk) {
  const std::size_t bytes = std::exchange(chunk.bytes, 0);
  if (2 * bytes < options_.chunk_bytes || !chunk.pulled->query()) return;
  note(own_rates_, {bytes, chunk.copies}, chunk.pulled->seconds_since(chunk.begins));
  link_pace_ = own_rates_.pace();
}

bool GroupMember::should_give_way(const GroupJob& job, std::size_t self, double own) const {
  const GroupJob::Lane& lane = job.lane_of(self);
  const auto pace = paces_.find(lane.receivers.front());
  return job.destinations[self] == nullptr && pace != paces_.end() &&
         pace->second.is_busy(lane.carriers.size() - 1, own);
}

void GroupMember::begin(GroupJob& job, std::size_t self, ImageRange range, const Room& room) {
  if (job.locked[self]) return;
  const auto fill = [&job, range, slot = room.slot->data(), stores = options_.stores](std::size_t from,
                                                                                      std::size_t bytes) {
    if (job.fill_failed) return;
    const auto begin = std::chrono::steady_clock::now();
    const ImageRange part{range.begin + from, range.begin + from + bytes};
    try {
      if (job.image.sources) {
        job.image.sources->pack(part, slot + from, stores);
      } else {
        job.image.fill(part.begin, {slot + from, bytes});
      }
    } catch (...) {
      job.fill_failed = true;
      throw;
    }
    job.state->account(0, seconds_since(begin), 0);
  };
  filler_.open(range.bytes(), fill);
}

void GroupMember::finish(GroupJob& job, std::size_t self, ImageRange range, const Room& room,
                         FunctionRef<void()> begin_next) {
  if (!job.locked[self]) filler_.finish_first(begin_next);
  if (job.fill_failed) return;  // parts may be missing; the job fails by who noticed
  try {
    enqueue(job, self, range, room);
  } catch (...) {
    drain();
    throw;
  }
}

void GroupMember::enqueue(GroupJob& job, std::size_t self, ImageRange range, const Room& room) {
  std::byte* const here = job.destinations[self];
  PinnedRing::Slot& slot = *room.slot;
  RelayBuffer* const relay = room.relay;
  const std::byte* const first = job.image.base;
  const auto place = [&](std::size_t offset, std::size_t in_range) {
    return here != nullptr ? here + offset : relay->memory.data() + in_range;
  };
  std::size_t copies = 0;

  if (job.after[self]) link_.wait(*job.after[self]);
  OwnChunk* const own = room.own;
  if (relay != nullptr) relay->pull_begins.record(link_);
  if (own != nullptr) own->begins.record(link_);
  if (job.locked[self]) {
    job.image.sources->for_each_part(
        range, [&](const TransferPiece& piece, std::size_t from, std::size_t in_range, std::size_t bytes) {
          const auto offset = static_cast<std::size_t>(piece.destination - first) + from;
          link_.copy(place(offset, in_range), piece.source + from, bytes, CopyDirection::h2d);
          ++copies;
        });
  } else {
    for_each_run(job.image.runs, range, [&](const std::byte* run, std::size_t image, std::size_t bytes) {
      const std::size_t in_range = image - range.begin;
      link_.copy(place(static_cast<std::size_t>(run - first), in_range), slot.data() + in_range, bytes,
                 CopyDirection::h2d);
      ++copies;
    });
  }
  mark_pulled(slot, relay != nullptr ? relay->pulled : own != nullptr ? own->pulled : nullptr);
  const std::size_t pulls = copies;

  push_.wait(slot.mark());
  if (own != nullptr) {
    own->bytes = range.bytes();
    own->copies = pulls;
  }
  const std::vector<std::size_t>& receivers = job.lane_of(self).receivers;
  // Each begins with the one after itself, so that not all push to the same one.
  const auto next = std::ranges::upper_bound(receivers, self);
  const auto push_to = [&](std::size_t receiver) {
    if (receiver == self) return;
    if (job.after[receiver]) push_.wait(*job.after[receiver]);
    if (relay != nullptr) relay->push_begins.record(push_);
    for_each_run(job.image.runs, range, [&](const std::byte* run, std::size_t image, std::size_t bytes) {
      const auto offset = static_cast<std::size_t>(run - first);
      push_.copy(job.destinations[receiver] + offset, place(offset, image - range.begin), bytes,
                 CopyDirection::d2d);
      ++copies;
    });
  };
  std::for_each(next, receivers.end(), push_to);
  std::for_each(receivers.begin(), next, push_to);
  if (relay != nullptr) {
    relay->pushed.record(push_);
    relay->chunk = {receivers.front(), range.bytes(), pulls, copies - pulls};
  }
  // Not once at the end: by then, chunks of later transfers may be on the stream.
  EventPool::Handle& end = job.ends[self];
  if (!end) end = events_->take();
  end->record(push_);
  job.state->account(copies, 0, 0);
}

void GroupMember::mark_pulled(PinnedRing::Slot& slot, const std::shared_ptr<Event>& timed) {
  if (timed == nullptr) return slot.sent(link_);
  try {
    timed->record(link_);
  } catch (...) {
    slot.sent(link_);
    throw;
  }
  slot.sent(timed);
}

void GroupMember::drain() noexcept {
  for (const Stream* stream : {&link_, &push_}) {
    static_cast<void>(wait_quietly([&] { stream->synchronize(); }));
  }
}

}  // namespace penstock
