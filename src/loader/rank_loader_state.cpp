#include "loader/rank_loader_state.hpp"

#include "loader/loader_handle.hpp"
#include "loader/rank_feed_once.hpp"
#include "loader/rank_feed_whole.hpp"
#include "loader/whole_batches.hpp"

#include <penstock/core/log.hpp>

#include <fmt/format.h>

#include <utility>

namespace penstock {

RankLoaderState::RankLoaderState(Dataset dataset, Device device, ProcessBoardOptions group,
                                 LoaderOptions options, bool only_once)
    : options_(checked_for_group(std::move(options))),
      device_(std::move(device)),
      dataset_(std::move(dataset)),
      first_sampler_(dataset_.sample_count(), sampler_options_of(options_)),
      plan_(plan_of_whole(dataset_, options_, largest_batch(options_, first_sampler_))),
      group_(std::move(group), dataset_, device_, options_, plan_) {
  if (only_once && !feeds_once()) return;
  try {
    feed_ = make_feed();
  } catch (...) {
    group_.complain(std::current_exception());
    throw;
  }
}

std::unique_ptr<RankFeed> RankLoaderState::make_feed() {
  if (feeds_once()) {
    return std::make_unique<RankFeedOnce>(group_, dataset_, device_, options_, first_sampler_, plan_);
  }
  if (group_.size() > 1) {
    log_warning(
        fmt::format("Each process of the group brings whole batches over its own link: they cannot read each "
                    "other's memory ({}). To use one link for each byte, feed shares and gather them with "
                    "torch.distributed.",
                    group_.refusal()));
  }
  return std::make_unique<RankFeedWhole>(group_, dataset_, device_, options_);
}

std::optional<DeviceBatch> RankLoaderState::next(const Stream& stream,
                                                 const FunctionRef<void()>* while_waiting) {
  refuse_fork();
  const auto since = PeerParts::Clock::now();
  const auto look = [&] {
    if (while_waiting != nullptr) (*while_waiting)();
    group_.refuse_late(since);
  };
  return feed_->next(stream, look);
}

void RankLoaderState::start_epoch(std::uint64_t epoch) {
  refuse_fork();
  feed_->start_epoch(epoch);
}

void RankLoaderState::restore(const SamplerState& state) {
  refuse_fork();
  if (options_.batch_sampler) refuse_place();
  feed_->restore(state);
}

void RankLoaderState::leave_epoch() {
  refuse_fork();
  feed_->leave_epoch();
}

void RankLoaderState::close() {
  if (is_forked()) return;
  const std::lock_guard closing(closing_mutex_);
  if (std::exchange(closed_, true)) return;
  if (feed_ != nullptr) return feed_->close();
  group_.leave(0, {});
}

SamplerState RankLoaderState::state() const {
  refuse_fork();
  return feed_->state();
}

FeedStatistics RankLoaderState::stats() const {
  refuse_fork();
  return feed_->stats();
}

std::vector<BatchTimes> RankLoaderState::timeline() const {
  refuse_fork();
  return feed_->timeline();
}

std::vector<std::string> RankLoaderState::describe() const { return feed_->describe(); }

void RankLoaderState::refuse_fork() const {
  if (is_forked()) refuse_forked_loader("RankLoader", "device");
}

}  // namespace penstock
