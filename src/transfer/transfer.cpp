#include "transfer/transfer_state.hpp"

#include <penstock/transfer/transfer.hpp>

#include <array>

namespace penstock {

std::string_view transfer_path_name(TransferPath path) noexcept {
  static constexpr std::array<std::string_view, 4> kNames{"automatic", "direct", "staged", "packed"};
  return kNames[static_cast<std::size_t>(path)];
}

Transfer::Transfer() noexcept = default;

Transfer::Transfer(std::shared_ptr<TransferState> state) noexcept : state_(std::move(state)) {}

bool Transfer::query() const { return !state_ || state_->query(); }

void Transfer::synchronize() const {
  if (state_) state_->synchronize();
}

void Transfer::synchronize_source() const {
  if (state_) state_->synchronize_source();
}

void Transfer::enqueue_wait(const Stream& stream) const {
  if (state_) state_->enqueue_wait(stream);
}

bool Transfer::cancel() const noexcept { return state_ && state_->on_cancel && state_->on_cancel(); }

std::size_t Transfer::bytes() const noexcept { return state_ ? state_->bytes : 0; }

TransferPath Transfer::path() const noexcept { return state_ ? state_->path : TransferPath::direct; }

TransferReport Transfer::report() const {
  return state_ ? state_->report() : TransferReport{.path = TransferPath::direct};
}

std::optional<TransferSpan> Transfer::span_since(const Event& origin) const {
  return state_ ? state_->span_since(origin) : std::nullopt;
}

}  // namespace penstock
