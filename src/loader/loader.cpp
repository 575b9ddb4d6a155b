#include "loader/loader_handle.hpp"
#include "loader/loader_state.hpp"

#include <penstock/core/error.hpp>
#include <penstock/loader/loader.hpp>

#include <fmt/format.h>

#include <charconv>
#include <utility>

namespace penstock {

WhenFull parse_when_full(std::string_view name) {
  if (name == "wait") return WhenFull::wait;
  if (name == "fail") return WhenFull::fail;
  throw InvalidArgument(fmt::format("unknown value '{}' for when_full; use wait or fail.", name));
}

Residency Residency::parse(std::string_view text) {
  if (text == "none") return {};
  if (text == "all") return {.kind = Kind::all};
  if (text == "auto" || text == "automatic") return {.kind = Kind::automatic};
  const bool percent = text.ends_with('%');
  const std::string_view number = text.substr(0, text.size() - (percent ? 1 : 0));
  double value = 0;
  const auto [end, code] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (percent) value /= 100;
  if (code != std::errc() || end != number.data() + number.size() || !(value >= 0 && value <= 1)) {
    throw InvalidArgument(
        fmt::format("unknown residency '{}'; use none, all, auto, or a fraction such as 0.25 or 25%.", text));
  }
  return {.kind = Kind::fraction, .fraction = value};
}

Loader::Loader(Dataset dataset, Device device, LoaderOptions options)
    : state_(std::make_shared<LoaderState>(std::move(dataset), std::move(device), std::move(options))) {}

Loader::~Loader() { let_go(std::move(state_)); }
Loader::Loader(Loader&&) noexcept = default;
Loader& Loader::operator=(Loader&& other) noexcept {
  Loader old(std::move(*this));
  state_ = std::move(other.state_);
  return *this;
}

std::optional<DeviceBatch> Loader::next(const Stream& stream) {
  const std::shared_ptr<LoaderState> state = state_;
  return state->next(stream, nullptr);
}

std::optional<DeviceBatch> Loader::next(const Stream& stream, FunctionRef<void()> while_waiting) {
  const std::shared_ptr<LoaderState> state = state_;
  return state->next(stream, &while_waiting);
}

void Loader::start_epoch(std::uint64_t epoch) { state_->start_epoch(epoch); }
void Loader::synchronize() { state_->synchronize(); }
SamplerState Loader::state() const { return state_->state(); }
void Loader::restore(const SamplerState& state) { state_->restore(state); }

std::uint64_t Loader::batches_per_epoch() const noexcept {
  return options().batch_sampler ? 0 : state_->first_sampler().batches_per_epoch();
}
std::uint64_t Loader::samples_per_epoch() const noexcept {
  return options().batch_sampler ? 0 : state_->first_sampler().samples_per_epoch();
}
std::uint64_t Loader::batches_left() const { return state_->batches_left(); }

FeedStatistics Loader::stats() const { return state_->stats(); }
std::optional<FeedStatistics> Loader::epoch_stats(std::uint64_t epoch) const {
  return state_->epoch_stats(epoch);
}
std::vector<BatchTimes> Loader::timeline() const { return state_->timeline(); }

const FeedPlan& Loader::plan() const noexcept { return state_->plan(); }
std::vector<std::string> Loader::describe() const { return plan().describe(); }

const Dataset& Loader::dataset() const noexcept { return state_->dataset(); }
const Device& Loader::device() const noexcept { return state_->device(); }
const LoaderOptions& Loader::options() const noexcept { return state_->options(); }

void Loader::close() { state_->close(); }

}  // namespace penstock
