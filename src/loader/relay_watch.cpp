#include "loader/relay_watch.hpp"

#include <algorithm>
#include <utility>

namespace penstock {

namespace {

constexpr std::size_t kMostOverlapping = 6;
constexpr std::size_t kLeastJudged = std::size_t{1} << 20;

}  // namespace

LinkRate link_rate_of(std::span<const BatchTimes> transfers, std::size_t place) noexcept {
  const auto overlaps_before = [&](std::size_t at) {
    return at > 0 && transfers[at].transfer_begin < transfers[at - 1].transfer_end;
  };
  std::size_t first = place;
  std::size_t end = place + 1;
  while (end - first < kMostOverlapping && overlaps_before(first)) --first;
  while (end - first < kMostOverlapping && end < transfers.size() && overlaps_before(end)) ++end;
  const auto shared = transfers.subspan(first, end - first);
  LinkRate rate{.size = {.bytes = 0, .copies = shared.size()},
                .is_final = shared.size() == kMostOverlapping || end < transfers.size()};
  for (const BatchTimes& each : shared) rate.size.bytes += each.link_bytes;
  // Of two on different streams, the second may come first.
  const double seconds = std::ranges::max(shared, {}, &BatchTimes::transfer_end).transfer_end -
                         std::ranges::min(shared, {}, &BatchTimes::transfer_begin).transfer_begin;
  if (seconds > 0) rate.rate = static_cast<double>(rate.size.bytes) / seconds;
  return rate;
}

void LinkWatch::see(std::span<const BatchTimes> pulled, ChunkRates& rates) noexcept {
  for (std::size_t i = 0; i < pulled.size(); ++i) {
    if (std::pair(pulled[i].epoch, pulled[i].batch) < next_) continue;
    if (pulled[i].link_bytes >= kLeastJudged) {
      const LinkRate pull = link_rate_of(pulled, i);
      if (!pull.is_final && !(notes_fast_at_once_ && rates.is_fast(pull.rate, pull.size))) return;
      rates.note(pull.rate, pull.size);
    }
    next_ = {pulled[i].epoch, pulled[i].batch + 1};
  }
}

void RelayWatch::drop_open() noexcept {
  if (std::exchange(is_open_, false)) pushes_.pop_back();
}

void RelayWatch::push_begins(const DeviceBatch& part, const Stream& stream) {
  drop_open();
  ChunkSize size{.bytes = 0, .copies = part.field_count()};
  for (std::size_t f = 0; f < part.field_count(); ++f) size.bytes += part.field(f).bytes;
  if (size.bytes < kLeastJudged) return;
  if (spare_.empty()) {
    spare_.push_back({.size = {},
                      .begin = device_.create_event(EventTiming::on),
                      .end = device_.create_event(EventTiming::on)});
  }
  Push push = std::move(spare_.back());
  spare_.pop_back();
  push.size = size;
  push.begin.record(stream);
  pushes_.push_back(std::move(push));
  is_open_ = true;
}

void RelayWatch::push_ends(const Stream& stream) {
  if (std::exchange(is_open_, false)) pushes_.back().end.record(stream);
}

bool RelayWatch::is_busy(std::span<const BatchTimes> pulled, std::size_t relays, double own) {
  drop_open();
  pulls_.see(pulled, pace_.pull);
  while (!pushes_.empty() && pushes_.front().end.query()) {
    const Push& push = pushes_.front();
    const double seconds = push.end.seconds_since(push.begin);
    pace_.push.note(seconds > 0 ? static_cast<double>(push.size.bytes) / seconds : ChunkRates::kUnknown,
                    push.size);
    spare_.push_back(std::move(pushes_.front()));
    pushes_.pop_front();
  }
  return pace_.is_busy(relays, own);
}

}  // namespace penstock
