#include "loader/rank_source.hpp"

#include "core/shared/pause.hpp"
#include "core/shared/wait_quietly.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace penstock {

namespace {

constexpr std::chrono::milliseconds kLongestFarewell{60'000};

}  // namespace

RankSource::RankSource(std::shared_ptr<RankGroup> group, Dataset dataset, const Device& device,
                       const LoaderOptions& options, BatchOrder& order)
    : group_(std::move(group)),
      dataset_(std::move(dataset)),
      shares_(std::make_shared<BatchShares>(group_->weights())),
      draws_(share_draws(order)),
      sampler_of_parts_(std::make_shared<PartSampler>(order.first, draws_, shares_, group_->rank())),
      put_(device.create_stream(StreamPriority::high)),
      arrive_(device.create_stream(StreamPriority::high)),
      placed_(device.create_event()) {
  const FeedPlan& whole = group_->whole();
  LoaderOptions own =
      options_of_parts(options, sampler_of_parts_, group_->split().largest(whole.batch, group_->rank()));
  const GroupBudget budget = group_budget(options, device, /*receives=*/true, whole.slot_bytes);
  own.device_budget_bytes = budget.parts;
  ring_ = make_group_ring(device, budget.ring, whole, options, order.first.state());
  loader_.emplace(dataset_, device, std::move(own));
}

/// All processes come to an epoch's end together, too.
bool RankSource::come_to(const Turn& turn) {
  if (!offer(turn)) return false;
  if (turn.run.count > 0) return true;
  if (!group_->parts().wait_for_offers(turn.number, turn.stopped)) return false;
  group_->parts().taken(turn.number);
  return true;
}

/// Puts this process's part where the others find it. False if it is to stop.
bool RankSource::offer(const Turn& turn) {
  if (std::optional<DeviceBatch> part = next_part(*loader_, put_, turn)) {
    group_->parts().put(turn.number, *part, put_);
    part.reset();
    placed_.record(put_);
    if (!wait_for(placed_, turn)) return false;
  }
  shares_->forget_before(turn.number);
  if (draws_ != nullptr) draws_->forget_before(turn.number);
  group_->parts().offer(turn.number, number_of(turn.drawn));
  return true;
}

/// Brings the parts of all processes into a slot.
bool RankSource::fill(const Turn& turn, std::size_t /*receiver*/, DeviceSlot& slot, PublishedItem& item) {
  PeerParts& parts = group_->parts();
  if (!parts.wait_for_offers(turn.number, turn.stopped)) return false;
  ring_->wait_for_users(slot, arrive_);
  if (item.timed != nullptr) item.timed->begin.record(arrive_);
  // Each begins with its own part, so that not all read from the same device at once.
  for (std::size_t i = 0; i < group_->size(); ++i) {
    const std::size_t rank = (group_->rank() + i) % group_->size();
    parts.take(rank, turn.number, group_->split().part(slot.run.count, rank), slot.fields, arrive_);
  }
  ring_->mark_end(slot, arrive_, item.timed);
  if (!wait_for(*slot.ready, turn)) return false;
  parts.taken(turn.number);
  return true;
}

/// Blocks the host. False if it is to stop.
bool RankSource::wait_for(const Event& event, const Turn& turn) {
  bool done = false;
  nap_until([&] { return (done = event.query()) || turn.stopped(); });
  return done;
}

/// Blocks the host until no copy of parts is under way. False if that cannot be known.
bool RankSource::drain() const noexcept {
  const bool placed = wait_quietly([&] { put_.synchronize(); });
  return wait_quietly([&] { arrive_.synchronize(); }) && placed;
}

/// Also tells the other processes.
void RankSource::fail(const std::exception_ptr& error) noexcept {
  group_->complain(error);
  group_->parts().end_if_over();
}

void RankSource::go_to(const Sampler& place) {
  if (!drain()) {
    group_->parts().give_up();
    throw DeviceError("PENSTOCK_LOST_WORK", "synchronize", 0, "Copies of parts cannot be waited for.");
  }
  group_->go_to(place.state());
  shares_->restart();
  sampler_of_parts_->go_to(place);
  restart_parts(*loader_);
}

void RankSource::close(std::uint64_t handed_out) {
  static_cast<void>(drain());
  group_->leave(handed_out, std::min(group_->options().timeout, kLongestFarewell));
  loader_->close();  // the last: it throws if the device failed
}

void RankSource::complete(FeedStatistics& statistics) const {
  const FeedStatistics own = loader_->stats();
  statistics.link_bytes = own.link_bytes;
  statistics.link_ceiling = own.link_ceiling;
  statistics.resident_bytes = own.resident_bytes;
  statistics.ring_bytes += own.ring_bytes;
  count_copies_of_parts(statistics);
}

std::vector<std::string> RankSource::describe() const {
  std::vector<std::string> lines = plan().describe();
  lines.insert(lines.begin(), fmt::format("{} of each batch over this link, the rest from {} other processes",
                                          describe_part(), group_->size() - 1));
  return lines;
}

std::string RankSource::describe_part() const {
  if (group_->split().is_even()) return fmt::format("1/{}", group_->size());
  return fmt::format("by its measured rate, {}/{}",
                     group_->split().part(group_->whole().batch, group_->rank()).count,
                     group_->whole().batch);
}

}  // namespace penstock
