#include "transfer/copy_lane.hpp"

#include "core/shared/wait_quietly.hpp"

namespace penstock {

CopyLane::CopyLane(const Device& device)
    : streams_{device.create_stream(), device.create_stream()}, turns_(device), sizes_(device.info().tuning) {
  turns_.begin(streams_[0], streams_[1]);
}

void CopyLane::enqueue(std::size_t bytes, FunctionRef<void(const Stream&)> copies, bool whole) {
  const std::lock_guard lock(mutex_);
  if (!whole) take_turn(bytes);
  turns_.add(copies);
}

void CopyLane::take_turn(std::size_t bytes) {
  if (part_bytes_ > 0 && part_bytes_ + bytes > sizes_.most_alone()) end_part();
  if (part_bytes_ == 0) {
    if (turns_.are_done()) {
      sizes_.link_was_idle();
    } else {
      turns_.come_behind();
    }
  }
  part_bytes_ += bytes;
  sizes_.enqueued(bytes);
}

void CopyLane::end_part() {
  part_bytes_ = 0;
  turns_.end_part();
}

const Stream& CopyLane::joined() {
  const std::lock_guard lock(mutex_);
  if (part_bytes_ > 0) end_part();
  turns_.join();
  return turns_.first();
}

void CopyLane::drain() const noexcept {
  for (const Stream& stream : streams_) static_cast<void>(wait_quietly([&] { stream.synchronize(); }));
}

}  // namespace penstock
