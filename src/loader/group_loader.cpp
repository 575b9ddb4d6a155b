#include "loader/group_loader_state.hpp"
#include "loader/loader_handle.hpp"

#include <penstock/loader/group_loader.hpp>

#include <utility>

namespace penstock {

GroupLoader::GroupLoader(Dataset dataset, DeviceGroup group, LoaderOptions options, GroupLinks links)
    : state_(std::make_shared<GroupLoaderState>(std::move(dataset), std::move(group), std::move(options),
                                                links, std::nullopt)) {}

GroupLoader::GroupLoader(std::shared_ptr<GroupLoaderState> state) : state_(std::move(state)) {}

GroupLoader GroupLoader::relay(std::size_t receiver, Dataset dataset, DeviceGroup group,
                               LoaderOptions options, GroupLinks links) {
  return GroupLoader(std::make_shared<GroupLoaderState>(std::move(dataset), std::move(group),
                                                        std::move(options), links, receiver));
}

GroupLoader::~GroupLoader() { let_go(std::move(state_)); }
GroupLoader::GroupLoader(GroupLoader&&) noexcept = default;
GroupLoader& GroupLoader::operator=(GroupLoader&& other) noexcept {
  GroupLoader old(std::move(*this));
  state_ = std::move(other.state_);
  return *this;
}

std::optional<std::vector<DeviceBatch>> GroupLoader::next(std::span<const Stream> streams) {
  const std::shared_ptr<GroupLoaderState> state = state_;
  return state->next(streams, nullptr);
}

std::optional<std::vector<DeviceBatch>> GroupLoader::next(std::span<const Stream> streams,
                                                          FunctionRef<void()> while_waiting) {
  const std::shared_ptr<GroupLoaderState> state = state_;
  return state->next(streams, &while_waiting);
}

void GroupLoader::start_epoch(std::uint64_t epoch) { state_->start_epoch(epoch); }
void GroupLoader::synchronize() { state_->synchronize(); }
SamplerState GroupLoader::state() const { return state_->state(); }
void GroupLoader::restore(const SamplerState& state) { state_->restore(state); }

std::uint64_t GroupLoader::batches_per_epoch() const noexcept {
  return options().batch_sampler ? 0 : state_->first_sampler().batches_per_epoch();
}
std::uint64_t GroupLoader::samples_per_epoch() const noexcept {
  return options().batch_sampler ? 0 : state_->first_sampler().samples_per_epoch();
}
std::uint64_t GroupLoader::batches_left() const { return state_->batches_left(); }

FeedStatistics GroupLoader::stats() const { return state_->stats(); }
FeedStatistics GroupLoader::member_stats(std::size_t member) const { return state_->member_stats(member); }
std::vector<BatchTimes> GroupLoader::timeline() const { return state_->account().timeline(); }

std::vector<std::string> GroupLoader::describe() const { return state_->describe(); }
const Dataset& GroupLoader::dataset() const noexcept { return state_->dataset(); }
const DeviceGroup& GroupLoader::group() const noexcept { return state_->group(); }
const LoaderOptions& GroupLoader::options() const noexcept { return state_->options(); }

void GroupLoader::close() { state_->close(); }

}  // namespace penstock
