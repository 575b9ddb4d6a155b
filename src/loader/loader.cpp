#include "core/shared/parse_number.hpp"
#include "loader/make_line.hpp"

#include <penstock/core/error.hpp>
#include <penstock/loader/loader.hpp>

#include <fmt/format.h>

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
  const double value = parse_number<double>(number).value_or(-1) / (percent ? 100 : 1);
  if (!(value >= 0 && value <= 1)) {
    throw InvalidArgument(
        fmt::format("unknown residency '{}'; use none, all, auto, or a fraction such as 0.25 or 25%.", text));
  }
  return {.kind = Kind::fraction, .fraction = value};
}

Loader::Loader(Dataset dataset, Destination destination, LoaderOptions options)
    : line_(make_line(std::move(dataset), std::move(destination), std::move(options))) {}

Loader::~Loader() {
  if (line_ == nullptr) return;  // it was moved from
  if (line_->is_forked()) {
    // A forked child has neither the threads nor the locks that closing needs, so the line is leaked.
    static_cast<void>(new std::shared_ptr<BatchLine>(std::move(line_)));
    return;
  }
  try {
    line_->close();
  } catch (...) {  // a failed device does no more work
  }
}

Loader::Loader(Loader&&) noexcept = default;
Loader& Loader::operator=(Loader&& other) noexcept {
  Loader old(std::move(*this));
  line_ = std::move(other.line_);
  return *this;
}

std::optional<DeviceBatch> Loader::next(const Stream& stream) {
  const std::shared_ptr<BatchLine> line = line_;
  return line->next(stream, nullptr);
}

std::optional<DeviceBatch> Loader::next(const Stream& stream, FunctionRef<void()> while_waiting) {
  const std::shared_ptr<BatchLine> line = line_;
  return line->next(stream, &while_waiting);
}

std::optional<std::vector<DeviceBatch>> Loader::next(std::span<const Stream> streams) {
  const std::shared_ptr<BatchLine> line = line_;
  return line->next(streams, nullptr);
}

std::optional<std::vector<DeviceBatch>> Loader::next(std::span<const Stream> streams,
                                                     FunctionRef<void()> while_waiting) {
  const std::shared_ptr<BatchLine> line = line_;
  return line->next(streams, &while_waiting);
}

void Loader::start_epoch(std::uint64_t epoch) { line_->start_epoch(epoch); }
void Loader::leave_epoch() { line_->leave_epoch(); }
void Loader::synchronize() { line_->synchronize(); }
SamplerState Loader::state() const { return line_->state(); }
void Loader::restore(const SamplerState& state) { line_->restore(state); }

std::uint64_t Loader::batches_per_epoch() const {
  return options().batch_sampler ? 0 : line_->whole_epoch().batches_per_epoch();
}
std::uint64_t Loader::samples_per_epoch() const {
  return options().batch_sampler ? 0 : line_->whole_epoch().samples_per_epoch();
}
std::uint64_t Loader::batches_left() const { return line_->batches_left(); }

FeedStatistics Loader::stats() const { return line_->stats(); }
std::optional<FeedStatistics> Loader::epoch_stats(std::uint64_t epoch) const {
  return line_->epoch_stats(epoch);
}
FeedStatistics Loader::member_stats(std::size_t member) const { return line_->member_stats(member); }
std::vector<BatchTimes> Loader::timeline() const { return line_->timeline(); }

const FeedPlan& Loader::plan() const noexcept { return line_->source().plan(); }
std::vector<std::string> Loader::describe() const { return line_->source().describe(); }
bool Loader::feeds_once() const noexcept { return line_->source().feeds_once(); }

const Dataset& Loader::dataset() const noexcept { return line_->source().dataset(); }
const Destination& Loader::destination() const noexcept { return line_->destination(); }
const Device& Loader::device() const noexcept { return destination().receivers()[0]; }
const LoaderOptions& Loader::options() const noexcept { return line_->options(); }

void Loader::close() { line_->close(); }

}  // namespace penstock
