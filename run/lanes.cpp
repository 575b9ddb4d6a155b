#include "run/lanes.hpp"

#include <penstock/core/error.hpp>

#include <algorithm>

namespace penstock::run {

namespace {

bool is_idle(Lane& lane) {
  for (std::size_t i = 0; i < lane.slots.size(); ++i) {
    if (!lane.slots[i].is_free()) return false;
  }
  return true;
}

}  // namespace

Lanes::Lanes(const Device& device)
    : device_(device),
      workers_(device.host_workers()),
      pinned_(make_pinned_pool(device, {.segment_bytes = Lane::kSlots * Lane::kSlotBytes})) {}

Lanes::Use Lanes::take(Stream stream) {
  const std::thread::id thread = stream == kPerThreadStream ? std::this_thread::get_id() : std::thread::id();
  const std::pair user(stream, thread);
  const std::lock_guard lock(mutex_);
  const auto find = [this](auto&& fits) {
    const auto found =
        std::ranges::find_if(lanes_, [&](const auto& lane) { return !lane->taken && fits(*lane); });
    return found != lanes_.end() ? found->get() : nullptr;
  };
  Lane* lane = find([&user](const Lane& one) { return one.user == user; });
  if (lane == nullptr) lane = find(is_idle);
  if (lane == nullptr) lane = add();
  if (lane == nullptr) return {};
  lane->user = user;
  lane->taken = true;
  return Use(lane, Return{this});
}

Lane* Lanes::add() {
  if (lanes_.size() == most_) return nullptr;
  try {
    return lanes_.emplace_back(std::make_unique<Lane>(device_, pinned_, workers_)).get();
  } catch (const OutOfMemory&) {
    most_ = lanes_.size();
    return nullptr;
  }
}

void Lanes::give_back(Lane& lane) noexcept {
  const std::lock_guard lock(mutex_);
  lane.taken = false;
}

}  // namespace penstock::run
