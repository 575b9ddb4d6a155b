#include <penstock/transfer/account.hpp>

#include <algorithm>
#include <utility>

namespace penstock {

namespace {

constexpr std::size_t kRequests = 16;
constexpr std::size_t kEpochs = 64;

// If the host is the consumer, `asked` was never recorded and so counts as done.
bool is_over(const TimedBatch& timed) {
  if (!timed.asked.query()) return false;
  return timed.is_end || (timed.arrived ? timed.arrived->query() : timed.end->query());
}

}  // namespace

double Account::Sum::seconds() const noexcept { return statistics.batches > 0 ? last_seen - first_asked : 0; }

FeedStatistics Account::Sum::finished(double seconds, double link_ceiling) const noexcept {
  FeedStatistics figures = statistics;
  figures.seconds = seconds;
  figures.link_ceiling = link_ceiling;
  figures.transfer_seconds = std::max(figures.transfer_seconds, least_transfer);
  if (figures.batches > 0)
    figures.mean_ready = static_cast<double>(ready) / static_cast<double>(figures.batches);
  return figures;
}

Account::Account(const Device& device, const AccountOptions& options)
    : device_(device),
      options_(options),
      opened_(std::chrono::steady_clock::now()),
      origin_(device.create_event(EventTiming::on)) {
  records_.reserve(kRecords);
  free_.reserve(kRecords);
  // A wrapped loader has few batches in flight, and its feed may be made anew for each epoch.
  while (!options_.wraps_loader && records_.size() < kRecords) add_record();
  for (std::size_t i = 0; i < (options_.wraps_loader ? 2 : kRequests); ++i) {
    spare_.push_back(device_.create_event(EventTiming::on));
  }
  pending_.reserve(kRecords);
  epochs_.reserve(kEpochs + 1);
  timeline_.reserve(options_.timeline_batches);
  total_.statistics.wraps_loader = options_.wraps_loader;
  const Stream stream = device_.create_stream();
  origin_earliest_ = now();
  origin_.record(stream);
  origin_.synchronize();
  origin_latest_ = now();
}

void Account::add_record() {
  const auto event = [&] { return device_.create_event(EventTiming::on); };
  records_.push_back(std::make_unique<TimedBatch>(TimedBatch{.begin = event(), .asked = event()}));
  if (options_.wraps_loader) records_.back()->arrived.emplace(event());
  free_.push_back(records_.back().get());
}

double Account::now() const noexcept {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - opened_).count();
}

TimedBatch* Account::open() {
  const std::lock_guard lock(mutex_);
  try {
    if (free_.empty() && records_.size() < kRecords) add_record();
  } catch (...) {  // the batch is not timed
  }
  if (free_.empty()) return nullptr;
  TimedBatch* const timed = free_.back();
  free_.pop_back();
  return timed;
}

void Account::discard(TimedBatch* timed) noexcept {
  if (timed == nullptr) return;
  timed->transfers.clear();
  const std::lock_guard lock(mutex_);
  free_.push_back(timed);
}

Account::Request::Request(Account& account, const Stream* stream, bool is_first)
    : account_(account), stream_(stream), is_first_(is_first), asked_(account.now()) {
  const std::lock_guard lock(account_.mutex_);
  account_.harvest();
  if (stream_ == nullptr || account_.spare_.empty()) return;
  account_.spare_.back().record(*stream_);
  event_.emplace(std::move(account_.spare_.back()));
  account_.spare_.pop_back();
}

Account::Request::~Request() {
  if (!event_) return;
  const std::lock_guard lock(account_.mutex_);
  account_.spare_.push_back(std::move(*event_));
}

TimedBatch* Account::Request::mark(TimedBatch* timed, const BatchTimes& times, bool is_end) {
  if (timed == nullptr) return nullptr;
  timed->times = times;
  timed->times.asked = asked_;
  timed->is_end = is_end;
  timed->is_first = is_first_;
  timed->on_host = stream_ == nullptr;
  if (timed->on_host) {
    timed->times.arrived = account_.now();
    return timed;
  }
  try {
    if (event_ && !is_end && timed->arrived) timed->arrived->record(*stream_);
    if (event_) {
      std::swap(timed->asked, *event_);
      return timed;
    }
  } catch (...) {  // the consumer gets the batch all the same; it is not timed
  }
  account_.discard(timed);
  return nullptr;
}

void Account::Request::answer(const Delivery& delivery) {
  const BatchTimes& times = delivery.times;
  TimedBatch* const timed = mark(delivery.timed, times, false);
  const std::lock_guard lock(account_.mutex_);
  account_.add_pending(timed);
  const double seen = account_.now();
  account_.update(times.epoch, [&](Sum& sum) {
    FeedStatistics& s = sum.statistics;
    if (sum.last_seen == 0) sum.first_asked = asked_;
    sum.last_seen = std::max(sum.last_seen, seen);
    ++s.batches;
    s.samples += times.samples;
    s.delivered_bytes += delivery.delivered_bytes;
    s.link_bytes += times.link_bytes;
    s.gather_seconds += times.gather_end - times.gather_begin;
    s.slot_wait_seconds += delivery.slot_wait_seconds;
    sum.ready += delivery.ready;
  });
}

void Account::Request::end(std::uint64_t epoch) {
  TimedBatch* const timed = mark(account_.open(), {.epoch = epoch}, true);
  const std::lock_guard lock(account_.mutex_);
  account_.add_pending(timed);
  const double seen = account_.now();
  account_.update(epoch, [&](Sum& sum) {
    if (sum.last_seen == 0) sum.first_asked = asked_;
    sum.last_seen = std::max(sum.last_seen, seen);
  });
}

template <typename Update>
void Account::update(std::uint64_t epoch, Update&& update) {
  auto found = std::ranges::find(epochs_, epoch, &Sum::epoch);
  if (found == epochs_.end()) {
    if (epochs_.size() == kEpochs) epochs_.erase(epochs_.begin());
    epochs_.push_back({.epoch = epoch,
                       .is_first = total_.statistics.epochs == 0,
                       .statistics = {.wraps_loader = options_.wraps_loader, .epochs = 1}});
    found = std::prev(epochs_.end());
    ++total_.statistics.epochs;
  }
  const double before = found->seconds();
  update(*found);
  update(total_);
  fed_seconds_ += found->seconds() - before;
}

/// The work before a batch belongs to none if the batch before goes untimed.
void Account::add_pending(TimedBatch* timed) {
  if (timed != nullptr) {
    timed->is_first |= follows_untimed_;
    pending_.push_back(timed);
  }
  follows_untimed_ = timed == nullptr;
}

void Account::harvest() {
  while (!pending_.empty() && is_over(*pending_.front())) {
    TimedBatch* const timed = pending_.front();
    pending_.erase(pending_.begin());
    try {
      read(*timed);
    } catch (...) {
      free_.push_back(timed);
      (pending_.empty() ? follows_untimed_ : pending_.front()->is_first) = true;
      throw;
    }
  }
}

BatchTimes Account::device_times(const TimedBatch& timed, const Event& anchor) const {
  BatchTimes times;
  if (!timed.on_host) times.asked = timed.asked.seconds_since(anchor);
  if (!timed.is_end && !options_.wraps_loader) {
    times.transfer_begin = timed.begin.seconds_since(anchor);
    times.transfer_end = timed.end->seconds_since(anchor);
  }
  if (!timed.on_host && !timed.is_end) {
    times.arrived =
        timed.arrived ? timed.arrived->seconds_since(anchor) : std::max(times.asked, times.transfer_end);
  }
  bool is_first = true;
  for (const Transfer& transfer : timed.transfers) {
    const auto span = transfer.span_since(anchor);
    if (!span) continue;
    times.transfer_begin = is_first ? span->begin : std::min(times.transfer_begin, span->begin);
    times.transfer_end = is_first ? span->end : std::max(times.transfer_end, span->end);
    is_first = false;
  }
  return times;
}

void Account::read(TimedBatch& timed) {
  const bool is_chained = previous_ != nullptr && !previous_->on_host;
  const BatchTimes since = device_times(timed, is_chained ? previous_->asked : origin_);
  BatchTimes& times = timed.times;
  // The clocks of host and device drift apart, but the host sets bounds: the device came to a request after
  // the host had made it, and finished work before the host saw it done. So the next request on a stream puts
  // an early anchor right, and the next batch that the host waits for a late one.
  double anchor = is_chained ? previous_asked_ : timed.on_host ? origin_latest_ : origin_earliest_;
  if (timed.on_host) {
    anchor = origin_latest_ = std::min(anchor, times.arrived - since.transfer_end);
  } else {
    anchor = std::min(std::max(anchor, times.asked - since.asked),
                      now() - (timed.is_end ? since.asked : since.arrived));
    times.asked = anchor + since.asked;
    times.arrived = anchor + since.arrived;
  }
  times.transfer_begin = anchor + since.transfer_begin;
  // A batch arrives after its transfer, however the sums are rounded.
  times.transfer_end = std::min(anchor + since.transfer_end, times.arrived);
  timed.transfers.clear();
  // The consumer's work on a batch belongs to that batch's epoch, even if the next one has begun.
  if (previous_ != nullptr && !previous_->is_end && !timed.is_first) {
    const double computed = std::max(0.0, times.asked - previous_arrived_);
    update(previous_->times.epoch, [&](Sum& sum) { sum.statistics.compute_seconds += computed; });
  }
  if (timed.is_end) {
    update(times.epoch, [&](Sum& sum) { sum.last_seen = std::max(sum.last_seen, times.asked); });
  } else {
    add_times(times);
  }
  previous_asked_ = times.asked;
  previous_arrived_ = times.arrived;
  if (previous_ != nullptr) free_.push_back(previous_);
  previous_ = &timed;
}

void Account::add_times(BatchTimes& times) {
  // A driver may begin the copies of a batch before it notes the event in front of them (seen with many
  // copies in one call). The bytes still take at least their time at the link's ceiling.
  const double least =
      options_.link_ceiling > 0 ? static_cast<double>(times.link_bytes) / options_.link_ceiling : 0;
  times.transfer_begin = std::min(times.transfer_begin, times.transfer_end - least);
  const double busy = std::max(0.0, times.transfer_end - std::max(times.transfer_begin, busy_until_));
  busy_until_ = std::max(busy_until_, times.transfer_end);
  const double stall = std::max(0.0, times.arrived - times.asked);
  const StallParts parts = stall_parts(times);
  bool is_first = false;  // of its epoch, which is updated before the total
  update(times.epoch, [&](Sum& sum) {
    FeedStatistics& s = sum.statistics;
    is_first |= s.timed_batches == 0;
    if (is_first) s.first_stall_seconds += stall;
    ++s.timed_batches;
    sum.last_seen = std::max(sum.last_seen, times.arrived);
    sum.least_transfer += least;
    s.stall_seconds += stall;
    (times.link_bytes > 0 ? s.transfer_seconds : s.kernel_seconds) += busy;
    (times.link_bytes > 0 ? s.exposed_transfer_seconds : s.exposed_kernel_seconds) += parts.on_device;
    s.exposed_gather_seconds += parts.on_host;
    s.exposed_loader_seconds += parts.on_loader;
  });
  if (options_.timeline_batches == 0) return;
  if (timeline_.size() < options_.timeline_batches) {
    timeline_.push_back(times);
  } else {
    timeline_[timeline_next_] = times;
    timeline_next_ = (timeline_next_ + 1) % options_.timeline_batches;
  }
}

void Account::count_resident(std::size_t bytes, double seconds) {
  const std::lock_guard lock(mutex_);
  total_.statistics.resident_bytes = bytes;
  total_.statistics.resident_seconds = seconds;
}

FeedStatistics Account::total() {
  const std::lock_guard lock(mutex_);
  harvest();
  return total_.finished(fed_seconds_, options_.link_ceiling);
}

std::optional<FeedStatistics> Account::epoch(std::uint64_t epoch) {
  const std::lock_guard lock(mutex_);
  harvest();
  const auto found = std::ranges::find(epochs_, epoch, &Sum::epoch);
  if (found == epochs_.end()) return std::nullopt;
  FeedStatistics statistics = found->finished(found->seconds(), options_.link_ceiling);
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
