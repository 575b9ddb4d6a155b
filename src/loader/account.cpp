#include "loader/account.hpp"

#include "loader/device_ring.hpp"

#include <penstock/core/error.hpp>

#include <algorithm>
#include <utility>

namespace penstock {

namespace {

constexpr std::size_t kRecords = 128;
constexpr std::size_t kQuestions = 16;
constexpr std::size_t kEpochs = 64;

}  // namespace

StallParts stall_parts(const BatchTimes& times) noexcept {
  const auto within_stall = [&](double begin, double end) {
    return std::max(0.0, std::min(end, times.arrived) - std::max(begin, times.asked));
  };
  // The gather may go on while the first bytes travel already; it never begins after them.
  return {.on_device = within_stall(times.transfer_begin, times.transfer_end),
          .on_host = within_stall(times.gather_begin, std::min(times.gather_end, times.transfer_begin))};
}

Account::Account(const Device& device, std::size_t timeline_batches)
    : device_(device),
      timeline_batches_(timeline_batches),
      opened_(std::chrono::steady_clock::now()),
      origin_(device.create_event(EventTiming::on)) {
  const auto event = [&] { return device_.create_event(EventTiming::on); };
  for (std::size_t i = 0; i < kRecords; ++i) {
    records_.push_back(
        std::make_unique<TimedBatch>(TimedBatch{event(), event(), event(), event(), {}, false}));
    free_.push_back(records_.back().get());
  }
  for (std::size_t i = 0; i < kQuestions; ++i) spare_.push_back(event());
  pending_.reserve(kRecords);
  epochs_.reserve(kEpochs + 1);
  timeline_.reserve(timeline_batches_);
  const Stream stream = device_.create_stream();
  origin_.record(stream);
  origin_.synchronize();
  previous_seconds_ = now();
}

double Account::now() const noexcept {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - opened_).count();
}

TimedBatch* Account::open() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return nullptr;
  TimedBatch* const timed = free_.back();
  free_.pop_back();
  timed->is_end = false;
  return timed;
}

void Account::discard(TimedBatch* timed) noexcept {
  if (timed == nullptr) return;
  const std::lock_guard lock(mutex_);
  free_.push_back(timed);
}

Account::Question::Question(Account& account, const Stream& stream)
    : account_(account), stream_(stream), asked_(account.now()) {
  const std::lock_guard lock(account_.mutex_);
  account_.harvest();
  if (account_.spare_.empty()) return;
  account_.spare_.back().record(stream_);
  event_.emplace(std::move(account_.spare_.back()));
  account_.spare_.pop_back();
}

Account::Question::~Question() {
  if (!event_) return;
  const std::lock_guard lock(account_.mutex_);
  account_.spare_.push_back(std::move(*event_));
}

void Account::Question::answer(const Arrival& arrival, std::size_t delivered_bytes) {
  const bool is_end = arrival.slot == nullptr;
  const BatchTimes& times = arrival.times;
  TimedBatch* timed = is_end ? account_.open() : arrival.timed;
  if (timed != nullptr && !event_) account_.discard(std::exchange(timed, nullptr));
  if (timed != nullptr) {
    timed->is_end = is_end;
    timed->times = times;
    std::swap(timed->asked, *event_);
    try {
      if (!is_end) timed->arrived.record(stream_);
    } catch (...) {  // the batch is the consumer's all the same, and goes untimed
      account_.discard(std::exchange(timed, nullptr));
    }
  }
  const std::lock_guard lock(account_.mutex_);
  if (timed != nullptr) account_.pending_.push_back(timed);
  const double seen = account_.now();
  account_.update(times.epoch, [&](Sum& sum) {
    FeedStatistics& s = sum.statistics;
    if (s.batches == 0) sum.first_asked = asked_;
    sum.last_seen = std::max(sum.last_seen, seen);
    if (is_end) return;
    ++s.batches;
    s.samples += times.samples;
    s.delivered_bytes += delivered_bytes;
    s.link_bytes += times.link_bytes;
    s.gather_seconds += times.gather_end - times.gather_begin;
    s.slot_wait_seconds += arrival.slot_wait_seconds;
    sum.ready += arrival.ready;
  });
}

template <typename Update>
void Account::update(std::uint64_t epoch, Update&& update) {
  auto found = std::ranges::find(epochs_, epoch, &Sum::epoch);
  if (found == epochs_.end()) {
    if (epochs_.size() == kEpochs) epochs_.erase(epochs_.begin());
    epochs_.push_back(
        {.epoch = epoch, .is_first = total_.statistics.epochs == 0, .statistics = {.epochs = 1}});
    found = std::prev(epochs_.end());
    ++total_.statistics.epochs;
  }
  update(*found);
  update(total_);
}

void Account::harvest() {
  while (!pending_.empty() && pending_.front()->last().query()) {
    TimedBatch* const timed = pending_.front();
    pending_.erase(pending_.begin());
    try {
      read(*timed);
    } catch (...) {
      free_.push_back(timed);
      throw;
    }
  }
}

void Account::read(TimedBatch& timed) {
  const Event& anchor = previous_ != nullptr ? previous_->last() : origin_;
  const auto seconds = [&](const Event& event) { return previous_seconds_ + event.seconds_since(anchor); };
  BatchTimes& times = timed.times;
  times.asked = seconds(timed.asked);
  const double since = previous_seconds_;
  const bool after_batch = previous_ != nullptr && !previous_->is_end;
  if (!timed.is_end) {
    times.transfer_begin = seconds(timed.begin);
    times.transfer_end = seconds(timed.end);
    times.arrived = seconds(timed.arrived);
  }
  const double computed = after_batch ? std::max(0.0, times.asked - since) : 0;
  // What the consumer did with a batch belongs to that batch's epoch, also where the next one has begun.
  if (after_batch) {
    update(previous_->times.epoch, [&](Sum& sum) { sum.statistics.compute_seconds += computed; });
  }
  add_times(times, timed.is_end);
  previous_seconds_ = timed.is_end ? times.asked : times.arrived;
  if (previous_ != nullptr) free_.push_back(previous_);
  previous_ = &timed;
}

void Account::add_times(const BatchTimes& times, bool is_end) {
  if (is_end) {
    return update(times.epoch, [&](Sum& sum) { sum.last_seen = std::max(sum.last_seen, times.asked); });
  }
  const double busy = std::max(0.0, times.transfer_end - std::max(times.transfer_begin, busy_until_));
  busy_until_ = std::max(busy_until_, times.transfer_end);
  const double stall = std::max(0.0, times.arrived - times.asked);
  const StallParts parts = stall_parts(times);
  update(times.epoch, [&](Sum& sum) {
    FeedStatistics& s = sum.statistics;
    ++s.timed_batches;
    sum.last_seen = std::max(sum.last_seen, times.arrived);
    s.stall_seconds += stall;
    (times.link_bytes > 0 ? s.transfer_seconds : s.kernel_seconds) += busy;
    (times.link_bytes > 0 ? s.exposed_transfer_seconds : s.exposed_kernel_seconds) += parts.on_device;
    s.exposed_gather_seconds += parts.on_host;
  });
  if (timeline_batches_ == 0) return;
  if (timeline_.size() < timeline_batches_) {
    timeline_.push_back(times);
  } else {
    timeline_[timeline_next_] = times;
    timeline_next_ = (timeline_next_ + 1) % timeline_batches_;
  }
}

void Account::count_resident(std::size_t bytes, double seconds) {
  const std::lock_guard lock(mutex_);
  total_.statistics.resident_bytes = bytes;
  total_.statistics.resident_seconds = seconds;
}

FeedStatistics Account::finish(const Sum& sum) {
  FeedStatistics statistics = sum.statistics;
  statistics.seconds = statistics.batches > 0 ? sum.last_seen - sum.first_asked : 0;
  statistics.mean_ready =
      statistics.batches > 0 ? static_cast<double>(sum.ready) / static_cast<double>(statistics.batches) : 0;
  return statistics;
}

FeedStatistics Account::total() {
  const std::lock_guard lock(mutex_);
  harvest();
  return finish(total_);
}

std::optional<FeedStatistics> Account::epoch(std::uint64_t epoch) {
  const std::lock_guard lock(mutex_);
  harvest();
  const auto found = std::ranges::find(epochs_, epoch, &Sum::epoch);
  if (found == epochs_.end()) return std::nullopt;
  FeedStatistics statistics = finish(*found);
  statistics.resident_bytes = total_.statistics.resident_bytes;
  if (found->is_first) statistics.resident_seconds = total_.statistics.resident_seconds;
  return statistics;
}

std::vector<BatchTimes> Account::timeline() {
  const std::lock_guard lock(mutex_);
  harvest();
  std::vector<BatchTimes> ordered;
  ordered.reserve(timeline_.size());
  for (std::size_t i = 0; i < timeline_.size(); ++i) {
    ordered.push_back(timeline_[(timeline_next_ + i) % timeline_.size()]);
  }
  return ordered;
}

}  // namespace penstock
