#include "run/lanes.hpp"

#include <algorithm>

namespace penstock::run {

namespace {

constexpr std::size_t kMostLanes = 4;

bool is_idle(Lane& lane) {
  for (std::size_t i = 0; i < lane.slots.size(); ++i) {
    if (!lane.slots[i].is_free()) return false;
  }
  return true;
}

}  // namespace

Lanes::Lanes(const Device& device)
    : device_(device),
      pinned_(make_pinned_pool(device, {.segment_bytes = Lane::kSlots * Lane::kSlotBytes})) {}

Lanes::Use Lanes::take(Stream stream) {
  const std::thread::id thread = stream == kPerThreadStream ? std::this_thread::get_id() : std::thread::id();
  const std::pair user(stream, thread);
  const std::lock_guard lock(mutex_);
  const auto find = [this](auto&& fits) {
    const auto found = std::ranges::find_if(lanes_, [&](const auto& lane) { return !lane->taken && fits(*lane); });
    return found != lanes_.end() ? found->get() : nullptr;
  };
  Lane* lane = find([&user](const Lane& one) { return one.user == user; });
  if (lane == nullptr) lane = find(is_idle);
  if (lane == nullptr && lanes_.size() < kMostLanes)
    lane = lanes_.emplace_back(std::make_unique<Lane>(device_, pinned_)).get();
  if (lane == nullptr) return {};
  lane->user = user;
  lane->taken = true;
  return Use(lane, Return{this});
}

void Lanes::give_back(Lane& lane) noexcept {
  const std::lock_guard lock(mutex_);
  lane.taken = false;
}

}  // namespace penstock::run
