#include "loader/device_ring.hpp"

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

constexpr std::chrono::milliseconds kPatience{50};

}  // namespace

DeviceRing::DeviceRing(Device device, std::shared_ptr<Pool> memory, const FeedPlan& plan,
                       std::size_t prefetch_depth, const SamplerState& position)
    : device_(std::move(device)),
      memory_(std::move(memory)),
      slot_bytes_(plan.slot_bytes),
      indices_offset_(plan.slot_indices),
      depth_(prefetch_depth),
      position_(position) {
  for (const FieldPlan& planned : plan.fields) {
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
      if (slots_.empty()) throw;
      exhausted_ = refused.what();
      log_warning(fmt::format("device ring: {} slots instead of {}: {}", i, depth_ + 1, exhausted_));
      break;
    }
    free_.push_back(slots_.back().get());
  }
  free_.reserve(2 * slots_.size());
  leased_.reserve(2 * slots_.size());
  published_.reserve(depth_ + 2);
}

// Leases share the ring, so that none is left. What their streams still do with a slot ends before its memory
// goes back to the driver, which waits for it.
DeviceRing::~DeviceRing() = default;

std::unique_ptr<DeviceSlot> DeviceRing::make_slot() {
  auto slot = std::make_unique<DeviceSlot>(device_.create_event());
  slot->memory = memory_->allocate(slot_bytes_);
  slot->indices = reinterpret_cast<std::uint64_t*>(slot->memory.data() + indices_offset_);
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
    producer_waits_ = true;
    consumer_.notify_all();
    producer_.wait(lock);
    producer_waits_ = false;
  }
  return nullptr;
}

void DeviceRing::wait_for_users(const DeviceSlot& slot, const Stream& stream) const {
  stream.wait(slot.ready);
  for (std::size_t i = 0; i < slot.done_count; ++i) stream.wait(slot.done[i]);
}

void DeviceRing::publish(Arrival arrival) {
  {
    const std::lock_guard lock(mutex_);
    if (arrival.slot != nullptr) ++ready_;
    published_.push_back(std::move(arrival));
  }
  consumer_.notify_all();
}

void DeviceRing::put_back(DeviceSlot& slot, bool spoiled) noexcept {
  const std::lock_guard lock(mutex_);
  if (!spoiled) free_.insert(free_.begin(), &slot);
}

bool DeviceRing::is_stuck(std::thread::id me) const {
  if (exhausted_.empty() || !producer_waits_ || !free_.empty()) return false;
  // Who holds nothing goes on waiting: those who do are told, and then let go.
  return (leased_.empty() || std::ranges::find(leased_, me, &DeviceSlot::holder) != leased_.end()) &&
         std::ranges::all_of(leased_, [&](const DeviceSlot* slot) {
           return !slot->handed_over && std::ranges::find(waiting_, slot->holder) != waiting_.end();
         });
}

void DeviceRing::refuse_stuck() const {
  std::string held;
  for (const DeviceSlot* slot : leased_) {
    fmt::format_to(std::back_inserter(held), "{}{} of epoch {}", held.empty() ? "" : ", ", slot->index,
                   slot->epoch);
  }
  const std::size_t used = slots_.size() * slot_bytes_;
  throw OutOfMemory("the loader's device memory budget", slot_bytes_, used, 0,
                    fmt::format("no slot is free for the next batch: {} batches are held ({}), by threads "
                                "that wait for it. Let go of "
                                "some, copy what is to be kept, or raise the budget ({})",
                                leased_.size(), held, exhausted_));
}

void DeviceRing::wait_for_arrival(std::unique_lock<std::mutex>& lock, std::thread::id me,
                                  const FunctionRef<void()>* while_waiting) {
  for (;;) {
    bool over = true;
    waiting_.push_back(me);
    const auto arrived = [&] { return closed_ || !published_.empty() || is_stuck(me); };
    if (while_waiting == nullptr) {
      consumer_.wait(lock, arrived);
    } else {
      over = consumer_.wait_for(lock, kPatience, arrived);
    }
    waiting_.erase(std::ranges::find(waiting_, me));
    if (over) return;
    lock.unlock();
    (*while_waiting)();
    lock.lock();
  }
}

Arrival DeviceRing::take(const Stream& stream, const FunctionRef<void()>* while_waiting) {
  const std::thread::id me = std::this_thread::get_id();
  std::unique_lock lock(mutex_);
  const std::size_t ready = ready_;
  wait_for_arrival(lock, me, while_waiting);
  if (closed_) throw Closed("The loader was closed, and gives out no more batches.");
  if (published_.empty()) refuse_stuck();
  if (published_.front().error != nullptr) std::rethrow_exception(published_.front().error);
  if (published_.front().slot != nullptr) stream.wait(published_.front().slot->ready);
  Arrival arrival = std::move(published_.front());
  published_.erase(published_.begin());
  position_ = arrival.state;
  if (arrival.slot == nullptr) return arrival;
  arrival.slot->users.push_back(stream.native());
  --ready_;
  arrival.ready = ready;
  arrival.slot->holder = me;
  arrival.slot->handed_over = false;
  leased_.push_back(arrival.slot);
  lock.unlock();
  producer_.notify_one();
  return arrival;
}

void DeviceRing::give_back(DeviceSlot& slot) {
  std::exception_ptr failure;
  try {
    while (slot.done.size() < slot.users.size()) slot.done.push_back(device_.create_event());
    for (std::size_t i = 0; i < slot.users.size(); ++i) {
      device_.backend().event_record(slot.done[i].native(), slot.users[i]);
    }
    slot.done_count = slot.users.size();
  } catch (...) {
    failure = std::current_exception();
  }
  slot.users.clear();
  {
    const std::lock_guard lock(mutex_);
    leased_.erase(std::ranges::find(leased_, &slot));
    if (failure == nullptr) free_.push_back(&slot);
  }
  producer_.notify_one();
  if (failure != nullptr) std::rethrow_exception(failure);
}

void DeviceRing::hand_over(DeviceSlot& slot) noexcept {
  const std::lock_guard lock(mutex_);
  slot.handed_over = true;
}

void DeviceRing::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  producer_.notify_all();
}

std::vector<Arrival> DeviceRing::reset(const SamplerState& position) {
  std::vector<Arrival> dropped;
  dropped.reserve(depth_ + 2);
  const std::lock_guard lock(mutex_);
  published_.swap(dropped);
  for (const Arrival& arrival : dropped) {
    if (arrival.slot == nullptr) continue;
    arrival.slot->done_count = 0;
    free_.push_back(arrival.slot);
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
  return position_.epoch == epoch && position_.consumed == 0 && !has_failed;
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
