#include "loader/relay_watch.hpp"

#include <algorithm>
#include <utility>

namespace penstock {

namespace {

constexpr std::size_t kMostOverlapping = 6;
constexpr std::size_t kLeastJudged = std::size_t{1} << 20;

}  // namespace

double link_rate_of(std::span<const BatchTimes> transfers, std::size_t place) noexcept {
  const auto overlaps_before = [&](std::size_t at) {
    return at > 0 && transfers[at].transfer_begin < transfers[at - 1].transfer_end;
  };
  std::size_t first = place;
  while (place - first + 1 < kMostOverlapping && overlaps_before(first)) --first;
  const auto shared = transfers.subspan(first, place - first + 1);
  double bytes = 0;
  for (const BatchTimes& each : shared) bytes += static_cast<double>(each.link_bytes);
  // Of two on different streams, the second may come first.
  const double seconds = std::ranges::max(shared, {}, &BatchTimes::transfer_end).transfer_end -
                         std::ranges::min(shared, {}, &BatchTimes::transfer_begin).transfer_begin;
  return seconds > 0 ? bytes / seconds : ChunkRates::kUnknown;
}

void OwnLinkWatch::see(std::span<const BatchTimes> pulled) noexcept {
  for (std::size_t i = 0; i < pulled.size(); ++i) {
    if (std::pair(pulled[i].epoch, pulled[i].batch) < next_) continue;
    next_ = {pulled[i].epoch, pulled[i].batch + 1};
    if (pulled[i].link_bytes >= kLeastJudged) rates_.note(link_rate_of(pulled, i));
  }
}

void RelayWatch::drop_open() noexcept {
  if (std::exchange(is_open_, false)) pushes_.pop_back();
}

void RelayWatch::push_begins(const DeviceBatch& part, const Stream& stream) {
  drop_open();
  std::size_t bytes = 0;
  for (std::size_t f = 0; f < part.field_count(); ++f) bytes += part.field(f).bytes;
  if (bytes < kLeastJudged) return;
  if (!pace_) pace_.emplace(0, ChunkRates::expected(way_, bytes, part.field_count()));
  if (spare_.empty()) {
    spare_.push_back(
        {.begin = device_.create_event(EventTiming::on), .end = device_.create_event(EventTiming::on)});
  }
  Push push = std::move(spare_.back());
  spare_.pop_back();
  push.epoch = part.epoch();
  push.batch = part.index();
  push.bytes = bytes;
  push.begin.record(stream);
  pushes_.push_back(std::move(push));
  is_open_ = true;
}

void RelayWatch::push_ends(const Stream& stream) {
  if (std::exchange(is_open_, false)) pushes_.back().end.record(stream);
}

bool RelayWatch::is_busy(std::span<const BatchTimes> pulled, std::size_t relays, double own) {
  drop_open();
  while (!pushes_.empty() && pushes_.front().end.query()) {
    const Push& push = pushes_.front();
    const auto same = std::ranges::find_if(pulled, [&](const BatchTimes& times) {
      return times.epoch == push.epoch && times.batch == push.batch;
    });
    const double pull = same != pulled.end()
                            ? link_rate_of(pulled, static_cast<std::size_t>(same - pulled.begin()))
                            : ChunkRates::kUnknown;
    const double seconds = push.end.seconds_since(push.begin);
    pace_->note(pull, seconds > 0 ? static_cast<double>(push.bytes) / seconds : ChunkRates::kUnknown);
    spare_.push_back(std::move(pushes_.front()));
    pushes_.pop_front();
  }
  return pace_ && pace_->is_busy(relays, own);
}

}  // namespace penstock
