#include "loader/device_ring.hpp"

#include "core/shared/report_wait.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/log.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace penstock {

namespace {

constexpr std::chrono::milliseconds kQuestionInterval{50};
constexpr std::chrono::milliseconds kHurry{100};

/// Events at the ends of batches, so many that none is made in the steady state: those of slots, of as many
/// staging slots, and of batches whose times are not read yet.
std::size_t events_for(std::size_t depth) { return Account::kRecords + 4 * (depth + 1); }

}  // namespace

void BatchSamples::fill(std::span<std::uint64_t> to, std::size_t begin) const {
  if (drawn.empty()) return run.part(begin, to.size()).fill(to);
  std::ranges::copy(std::span(drawn).subspan(begin, to.size()), to.begin());
}

void DeviceSlot::size_fields(const FeedPlan& plan) {
  for (std::size_t f = 0; f < fields.size(); ++f) {
    fields[f].shape[0] = static_cast<std::size_t>(run.count);
    fields[f].bytes = fields[f].shape[0] * plan.fields[f].delivered_bytes;
  }
}

DeviceRing::DeviceRing(Device device, std::shared_ptr<Pool> memory, const FeedPlan& plan,
                       const LoaderOptions& options, const SamplerState& position)
    : device_(std::move(device)),
      memory_(std::move(memory)),
      ends_(std::make_shared<EventPool>(device_, EventTiming::on, events_for(options.prefetch_depth))),
      slot_bytes_(plan.slot_bytes),
      depth_(options.prefetch_depth),
      patience_(options.when_full == WhenFull::wait ? options.full_patience : std::chrono::milliseconds(0)),
      position_(position) {
  for (const FieldPlan& planned : plan.delivered()) {
    DeviceField& field = fields_.emplace_back();
    field.name = planned.stored.name;
    field.dtype = planned.to;
    field.shape = planned.stored.shape;
    field.shape.insert(field.shape.begin(), plan.batch);
    offsets_.push_back(planned.slot_offset);
  }
  for (std::size_t i = 0; i <= depth_; ++i) {
    try {
      slots_.push_back(make_slot());
    } catch (const OutOfMemory& refused) {
      if (slots_.empty() || !options.ring_grows) throw;
      exhausted_ = refused.what();
      log_warning(fmt::format("device ring: {} slots instead of {}: {}", i, depth_ + 1, exhausted_));
      break;
    }
    free_.push_back(slots_.back().get());
  }
  if (!options.ring_grows) exhausted_ = "ring_grows is off";
  free_.reserve(2 * slots_.size());
  leased_.reserve(2 * slots_.size());
  published_.reserve(depth_ + 2);
}

// Leases share the ring, so none is left. Their streams may still work on a slot; the driver waits for that
// work before it frees the memory.
DeviceRing::~DeviceRing() = default;

std::unique_ptr<DeviceSlot> DeviceRing::make_slot() {
  auto slot = std::make_unique<DeviceSlot>();
  slot->memory = memory_->allocate(slot_bytes_);
  slot->fields = fields_;
  for (std::size_t f = 0; f < fields_.size(); ++f) slot->fields[f].data = slot->memory.data() + offsets_[f];
  slot->users.reserve(4);
  slot->done.push_back(device_.create_event());
  return slot;
}

void DeviceRing::grow(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  std::unique_ptr<DeviceSlot> slot;
  std::string refused;
  try {
    slot = make_slot();
  } catch (const OutOfMemory& error) {
    refused = error.what();
  }
  lock.lock();
  if (slot != nullptr) {
    free_.push_back(slot.get());
    slots_.push_back(std::move(slot));
  } else {
    exhausted_ = std::move(refused);
  }
}

DeviceSlot* DeviceRing::acquire() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    if (ready_ < depth_) {
      if (!free_.empty()) {
        DeviceSlot* const slot = free_.front();
        free_.erase(free_.begin());
        return slot;
      }
      if (exhausted_.empty()) {
        grow(lock);
        continue;
      }
    }
    if (ready_ < depth_) {
      full_since_ = Clock::now();
      consumer_.note_change();
      consumer_.notify_all();
    }
    producer_.wait(lock);
    full_since_.reset();
  }
  return nullptr;
}

void DeviceRing::wait_for_users(const DeviceSlot& slot, const Stream& stream) const {
  // Users have waited for the batch's end.
  if (slot.done_count == 0 && slot.ready != nullptr) stream.wait(*slot.ready);
  for (std::size_t i = 0; i < slot.done_count; ++i) stream.wait(slot.done[i]);
}

bool DeviceRing::is_unused(const DeviceSlot& slot) const {
  if (slot.done_count == 0) return slot.ready == nullptr || slot.ready->query();
  return std::ranges::all_of(std::span(slot.done).first(slot.done_count), &Event::query);
}

void DeviceRing::mark_end(DeviceSlot& slot, const Stream& stream, TimedBatch* timed) const {
  std::shared_ptr<Event> end = ends_->take();
  end->record(stream);
  if (timed != nullptr) timed->end = end;
  slot.ready = std::move(end);
  slot.done_count = 0;
}

void DeviceRing::publish(PublishedItem item) {
  {
    const std::lock_guard lock(mutex_);
    if (item.slot != nullptr) ++ready_;
    published_.push_back(std::move(item));
    waiting_since_ = Clock::now();
    consumer_.note_change();
  }
  consumer_.notify_all();
}

void DeviceRing::put_back(DeviceSlot& slot, bool may_be_written) noexcept {
  const std::lock_guard lock(mutex_);
  if (!may_be_written) free_.insert(free_.begin(), &slot);
}

std::optional<DeviceRing::Clock::time_point> DeviceRing::gives_up_at(Clock::time_point asked) const {
  if (!full_since_ || !free_.empty()) return std::nullopt;
  if (leased_.empty()) return Clock::time_point::min();  // all slots are lost, and none will come back
  return std::max(asked, *full_since_) + patience_;
}

void DeviceRing::refuse_full() const {
  std::string held;
  for (const DeviceSlot* slot : leased_) {
    fmt::format_to(std::back_inserter(held), "{}{} of epoch {}", held.empty() ? "" : ", ", slot->index,
                   slot->epoch);
  }
  const std::size_t used = slots_.size() * slot_bytes_;
  throw OutOfMemory(
      "the loader's device memory budget", slot_bytes_, used, 0,
      fmt::format("no slot is free for the next batch: {} batches are held ({}){}. Release "
                  "some, copy those to keep, or raise the budget ({})",
                  leased_.size(), held,
                  patience_.count() > 0 ? ", and none was released while next() waited" : "", exhausted_));
}

/// Counts a consumer that waits for a batch. Under the mutex at its beginning and at its end, unless
/// `while_waiting` throws.
class DeviceRing::Waiting {
 public:
  Waiting(DeviceRing& ring, std::unique_lock<std::mutex>& lock, Clock::time_point since)
      : ring_(ring), lock_(lock) {
    ++ring_.waiting_;
    ring_.waiting_since_ = since;
  }
  ~Waiting() {
    if (!lock_.owns_lock()) lock_.lock();
    --ring_.waiting_;
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  DeviceRing& ring_;
  std::unique_lock<std::mutex>& lock_;
};

bool DeviceRing::is_in_a_hurry() const {
  const std::lock_guard lock(mutex_);
  return stopped_ || (waiting_ > 0 && Clock::now() - waiting_since_ >= kHurry);
}

bool DeviceRing::is_awaited() const {
  const std::lock_guard lock(mutex_);
  return waiting_ > 0;
}

DeviceRing::Clock::duration DeviceRing::wait_for_item(std::unique_lock<std::mutex>& lock,
                                                      const FunctionRef<void()>* while_waiting) {
  if (closed_ || !published_.empty()) return {};
  const auto asked = Clock::now();
  auto question = asked + kQuestionInterval;
  const Waiting waiting(*this, lock, asked);
  while (!closed_ && published_.empty()) {
    const auto end = gives_up_at(asked);
    const auto now = Clock::now();
    if (end && *end <= now) break;
    if (while_waiting != nullptr && question <= now) {
      lock.unlock();
      (*while_waiting)();
      lock.lock();
      question = Clock::now() + kQuestionInterval;
    } else if (end || while_waiting != nullptr) {
      consumer_.wait_until(lock,
                           while_waiting == nullptr ? *end : std::min(question, end.value_or(question)));
    } else {
      consumer_.wait(lock);
    }
  }
  return Clock::now() - asked;
}

PublishedItem DeviceRing::take(const Stream& stream, const FunctionRef<void()>* while_waiting) {
  std::unique_lock lock(mutex_);
  const std::size_t ready = ready_;
  const Clock::duration waited = wait_for_item(lock, while_waiting);
  if (closed_) throw Closed("The loader was closed. Make a new one to get more batches.");
  if (published_.empty()) refuse_full();
  if (published_.front().error != nullptr) std::rethrow_exception(published_.front().error);
  if (published_.front().slot != nullptr) stream.wait(*published_.front().slot->ready);
  PublishedItem item = std::move(published_.front());
  published_.erase(published_.begin());
  position_ = item.state;
  if (item.slot == nullptr) return item;
  item.slot->users.push_back(stream.native());
  --ready_;
  item.ready = ready;
  leased_.push_back(item.slot);
  producer_.note_change();
  lock.unlock();
  producer_.notify_one();
  if (waited.count() > 0) report_wait(waited);
  return item;
}

void DeviceRing::give_back(DeviceSlot& slot) {
  std::exception_ptr failure;
  try {
    while (slot.done.size() < slot.users.size()) slot.done.push_back(device_.create_event());
    for (std::size_t i = 0; i < slot.users.size(); ++i) {
      slot.done[i].record(device_.wrap_stream(slot.users[i]));
    }
    slot.done_count = slot.users.size();
  } catch (...) {
    failure = std::current_exception();
  }
  slot.users.clear();
  bool may_be_awaited = false;
  {
    const std::lock_guard lock(mutex_);
    leased_.erase(std::ranges::find(leased_, &slot));
    if (failure == nullptr) free_.push_back(&slot);
    may_be_awaited = ready_ < depth_;  // otherwise the producer waits for a batch to be taken
    if (may_be_awaited) producer_.note_change();
  }
  if (may_be_awaited) producer_.notify_one();
  if (failure != nullptr) std::rethrow_exception(failure);
}

void DeviceRing::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    producer_.note_change();
  }
  producer_.notify_all();
}

std::vector<PublishedItem> DeviceRing::reset(const SamplerState& position) {
  std::vector<PublishedItem> dropped;
  dropped.reserve(depth_ + 2);
  const std::lock_guard lock(mutex_);
  published_.swap(dropped);
  for (const PublishedItem& item : dropped) {
    if (item.slot != nullptr) free_.push_back(item.slot);
  }
  ready_ = 0;
  position_ = position;
  stopped_ = false;
  return dropped;
}

void DeviceRing::close() noexcept {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    consumer_.note_change();
  }
  consumer_.notify_all();
}

SamplerState DeviceRing::position() const {
  const std::lock_guard lock(mutex_);
  return position_;
}

bool DeviceRing::is_at_start_of(std::uint64_t epoch) const {
  const std::lock_guard lock(mutex_);
  const bool has_failed = !published_.empty() && published_.front().error != nullptr;
  return !closed_ && position_.epoch == epoch && position_.consumed == 0 && !has_failed;
}

bool DeviceRing::is_closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

RingSize DeviceRing::size() const {
  const std::lock_guard lock(mutex_);
  return {slots_.size(), slots_.size() * slot_bytes_};
}

}  // namespace penstock
