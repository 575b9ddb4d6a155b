#include "core/shared/pause.hpp"
#include "core/shared/wait_quietly.hpp"

#include <penstock/transfer/pinned_ring.hpp>

#include <utility>

namespace penstock {

PinnedRing::Slot::Slot(const Device& device, Buffer memory, EventWait wait)
    : device_(device), memory_(std::move(memory)), own_(device.create_event(EventTiming::off, wait)) {}

PinnedRing::Slot::~Slot() {
  if (!in_use_.load(std::memory_order_acquire)) return;
  const bool done = !unmarked_ && wait_quietly([&] { mark().synchronize(); });
  if (!done) static_cast<void>(new Buffer(std::move(memory_)));
}

bool PinnedRing::Slot::is_free() {
  if (!in_use_.load(std::memory_order_acquire)) return true;
  if (unmarked_ ? !unmarked_->query() : !mark().query()) return false;
  in_use_.store(false, std::memory_order_release);
  return true;
}

void PinnedRing::Slot::wait() {
  if (!in_use_.load(std::memory_order_acquire)) return;
  if (unmarked_) {
    unmarked_->synchronize();
  } else {
    mark().synchronize();
  }
  in_use_.store(false, std::memory_order_release);
}

void PinnedRing::Slot::wait_in_naps() {
  if (!unmarked_) nap_until([&] { return is_free(); });
  wait();
}

void PinnedRing::Slot::sent(const Stream& stream) {
  unmarked_.reset();
  marked_.reset();
  try {
    own_.record(stream);
  } catch (...) {
    try {
      stream.synchronize();
    } catch (...) {
      unmarked_.emplace(device_.wrap_stream(stream.native()));
      in_use_.store(true, std::memory_order_release);
    }
    throw;
  }
  in_use_.store(true, std::memory_order_release);
}

void PinnedRing::Slot::sent(std::shared_ptr<const Event> marked) noexcept {
  unmarked_.reset();
  marked_ = std::move(marked);
  in_use_.store(true, std::memory_order_release);
}

PinnedRing::PinnedRing(const Device& device, Pool& pinned, std::size_t slots, std::size_t slot_bytes,
                       EventWait wait) {
  for (std::size_t i = 0; i < slots; ++i) slots_.emplace_back(device, pinned.allocate(slot_bytes), wait);
}

PinnedRing::Slot& PinnedRing::next() {
  Slot& slot = slots_[turn_ % slots_.size()];
  slot.wait();
  ++turn_;
  return slot;
}

PinnedRing::Slot& PinnedRing::next_in_naps() {
  slots_[turn_ % slots_.size()].wait_in_naps();
  return next();
}

}  // namespace penstock
