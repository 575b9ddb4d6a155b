#include "loader/whole_rank_source.hpp"

#include <fmt/format.h>

#include <exception>
#include <utility>

namespace penstock {

WholeRankSource::WholeRankSource(std::shared_ptr<RankGroup> group, Dataset dataset, const Device& device,
                                 const LoaderOptions& options, const BatchOrder& order)
    : GatherSource(std::move(dataset), device, options, order), group_(std::move(group)) {}

bool WholeRankSource::come_to(const Turn& turn) { return turn.run.count > 0 || agree(turn); }

/// The others come to a batch once this process has a slot for it.
bool WholeRankSource::fill(const Turn& turn, std::size_t receiver, DeviceSlot& slot, PublishedItem& item) {
  return agree(turn) && GatherSource::fill(turn, receiver, slot, item);
}

/// False if it is to stop.
bool WholeRankSource::agree(const Turn& turn) {
  if (is_alone()) return true;
  group_->parts().offer(turn.number, number_of(turn.drawn));
  return group_->parts().wait_for_offers(turn.number, turn.stopped);
}

void WholeRankSource::fail(const std::exception_ptr& error) noexcept {
  if (is_alone()) return;
  group_->complain(error);
  group_->parts().end_if_over();
}

void WholeRankSource::go_to(const Sampler& place) {
  GatherSource::go_to(place);
  if (!is_alone()) group_->go_to(place.state());
}

void WholeRankSource::close(std::uint64_t handed_out) {
  std::exception_ptr failure;
  try {
    GatherSource::close(handed_out);
  } catch (...) {  // a failed device
    failure = std::current_exception();
  }
  group_->leave(0, {});
  if (failure != nullptr) std::rethrow_exception(failure);
}

std::vector<std::string> WholeRankSource::describe() const {
  std::vector<std::string> lines = plan().describe();
  lines.insert(lines.begin(), fmt::format("whole batches over this link: {}", group_->refusal()));
  return lines;
}

}  // namespace penstock
