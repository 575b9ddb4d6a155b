#include "transfer/shared/copy_turns.hpp"

namespace penstock {

CopyTurns::CopyTurns(const Device& device)
    : done_{device.create_event(), device.create_event()}, joined_(device.create_event()) {}

void CopyTurns::begin(const Stream& first, const Stream& second) {
  sides_[0] = {.stream = &first};
  sides_[1] = {.stream = &second};
  turn_ = 0;
}

void CopyTurns::come_behind() { stream().wait(done_[(parts_ + 1) % done_.size()]); }

void CopyTurns::add(FunctionRef<void(const Stream&)> copies) {
  sides_[turn_].has_parts = true;
  copies(stream());
}

void CopyTurns::end_part() {
  const Side& side = sides_[turn_];
  turn_ = 1 - turn_;
  Event& done = done_[parts_++ % done_.size()];
  done.record(*side.stream);
}

void CopyTurns::join() {
  if (!sides_[1].has_parts) return;
  joined_.record(*sides_[1].stream);
  sides_[0].stream->wait(joined_);
  sides_[1].has_parts = false;
}

}  // namespace penstock
