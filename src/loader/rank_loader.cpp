#include "loader/loader_handle.hpp"
#include "loader/rank_loader_state.hpp"

#include <penstock/loader/rank_loader.hpp>

#include <utility>

namespace penstock {

RankLoader::RankLoader(Dataset dataset, Device device, ProcessBoardOptions group, LoaderOptions options)
    : state_(std::make_shared<RankLoaderState>(std::move(dataset), std::move(device), std::move(group),
                                               std::move(options), /*only_once=*/false)) {}

RankLoader::RankLoader(std::shared_ptr<RankLoaderState> state) noexcept : state_(std::move(state)) {}

std::optional<RankLoader> RankLoader::if_it_feeds_once(Dataset dataset, Device device,
                                                       ProcessBoardOptions group, LoaderOptions options,
                                                       std::string& why) {
  RankLoader loader(std::make_shared<RankLoaderState>(std::move(dataset), std::move(device), std::move(group),
                                                      std::move(options), /*only_once=*/true));
  if (loader.feeds_once()) return loader;
  why = loader.state_->refusal();
  return std::nullopt;
}

RankLoader::~RankLoader() { let_go(std::move(state_)); }
RankLoader::RankLoader(RankLoader&&) noexcept = default;
RankLoader& RankLoader::operator=(RankLoader&& other) noexcept {
  RankLoader old(std::move(*this));
  state_ = std::move(other.state_);
  return *this;
}

std::optional<DeviceBatch> RankLoader::next(const Stream& stream) {
  const std::shared_ptr<RankLoaderState> state = state_;
  return state->next(stream, nullptr);
}

std::optional<DeviceBatch> RankLoader::next(const Stream& stream, FunctionRef<void()> while_waiting) {
  const std::shared_ptr<RankLoaderState> state = state_;
  return state->next(stream, &while_waiting);
}

void RankLoader::start_epoch(std::uint64_t epoch) { state_->start_epoch(epoch); }
void RankLoader::leave_epoch() { state_->leave_epoch(); }
void RankLoader::restore(const SamplerState& state) { state_->restore(state); }
SamplerState RankLoader::state() const { return state_->state(); }

std::uint64_t RankLoader::batches_per_epoch() const noexcept {
  return options().batch_sampler ? 0 : state_->first_sampler().batches_per_epoch();
}
std::uint64_t RankLoader::samples_per_epoch() const noexcept {
  return options().batch_sampler ? 0 : state_->first_sampler().samples_per_epoch();
}
std::uint64_t RankLoader::batches_left() const {
  if (options().batch_sampler) return 0;
  Sampler sampler = state_->first_sampler();
  sampler.restore(state_->state());
  return sampler.batches_left();
}

bool RankLoader::feeds_once() const noexcept { return state_->feeds_once(); }
FeedStatistics RankLoader::stats() const { return state_->stats(); }
std::vector<BatchTimes> RankLoader::timeline() const { return state_->timeline(); }
std::vector<std::string> RankLoader::describe() const { return state_->describe(); }
const Dataset& RankLoader::dataset() const noexcept { return state_->dataset(); }
const Device& RankLoader::device() const noexcept { return state_->device(); }
const LoaderOptions& RankLoader::options() const noexcept { return state_->options(); }

void RankLoader::close() { state_->close(); }

}  // namespace penstock
