#include <penstock/transfer/copy_turns.hpp>

namespace penstock {

CopyTurns::CopyTurns(const Device& device)
    : done_{device.create_event(), device.create_event()}, joined_(device.create_event()) {}

void CopyTurns::begin(const Stream& first, const Stream& second) {
  sides_[0] = {.stream = &first};
  sides_[1] = {.stream = &second};
  turn_ = 0;
}

void CopyTurns::enqueue(FunctionRef<void(const Stream&)> copies) {
  Side& side = sides_[turn_];
  turn_ = 1 - turn_;
  Event& done = done_[parts_++ % done_.size()];
  side.has_parts = true;
  copies(*side.stream);
  done.record(*side.stream);
}

void CopyTurns::enqueue_behind(FunctionRef<void(const Stream&)> copies) {
  sides_[turn_].stream->wait(done_[(parts_ + 1) % done_.size()]);
  enqueue(copies);
}

void CopyTurns::join() {
  if (!sides_[1].has_parts) return;
  joined_.record(*sides_[1].stream);
  sides_[0].stream->wait(joined_);
  sides_[1].has_parts = false;
}

}  // namespace penstock
