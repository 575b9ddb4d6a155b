#include "loader/rank_feed_whole.hpp"

#include <fmt/format.h>

namespace penstock {

RankFeedWhole::RankFeedWhole(RankGroup& group, const Dataset& dataset, const Device& device,
                             const LoaderOptions& options)
    : group_(group),
      is_drawn_(options.batch_sampler != nullptr),
      loader_(dataset, device, options, duties()) {}

RankDuties RankFeedWhole::duties() {
  RankDuties duties;
  if (group_.size() == 1) return duties;
  duties.agree = [this](const DeviceSlot& slot, FunctionRef<bool()> stopped) { return agree(slot, stopped); };
  duties.meet = [this](const SamplerState& place) {
    group_.go_to(place);
    turn_ = 0;
  };
  duties.fail = [this](const std::exception_ptr& error) {
    group_.complain(error);
    group_.parts().end_if_over();
  };
  return duties;
}

/// On the loader's thread. False if it is to stop.
bool RankFeedWhole::agree(const DeviceSlot& slot, FunctionRef<bool()> stopped) {
  if (slot.run.count == 0 && !is_drawn_) return true;
  group_.parts().offer(turn_, is_drawn_ ? number_of(slot.drawn) : 0);
  if (!group_.parts().wait_for_offers(turn_, stopped)) return false;
  ++turn_;
  return true;
}

std::optional<DeviceBatch> RankFeedWhole::next(const Stream& stream,
                                               const FunctionRef<void()>& while_waiting) {
  between_epochs_ = false;
  std::optional<DeviceBatch> batch = loader_.next(stream, &while_waiting);
  between_epochs_ = !batch && is_drawn_;
  return batch;
}

void RankFeedWhole::leave_epoch() {
  between_epochs_ ? loader_.synchronize() : loader_.leave_epoch(error_of_left_epoch());
}

void RankFeedWhole::close() {
  std::exception_ptr failure;
  try {
    loader_.close();
  } catch (...) {  // a failed device
    failure = std::current_exception();
  }
  group_.leave(0, {});
  if (failure != nullptr) std::rethrow_exception(failure);
}

std::vector<std::string> RankFeedWhole::describe() const {
  std::vector<std::string> lines = loader_.plan().describe();
  lines.insert(lines.begin(), fmt::format("whole batches over this link: {}", group_.refusal()));
  return lines;
}

}  // namespace penstock
