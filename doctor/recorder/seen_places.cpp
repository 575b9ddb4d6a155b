#include "seen_places.hpp"

#include <algorithm>

namespace penstock::recorder {

bool SeenPlaces::is_due() noexcept {
  if (++skipped_ < std::size_t{1} << thinned_) return false;
  skipped_ = 0;
  return true;
}

void SeenPlaces::keep(std::span<const PythonFrame> frames, std::uint64_t time) noexcept {
  const std::size_t place = find_or_add(frames);
  if (look_count_ == kMostLooks) leave_out_every_second();
  looks_[look_count_++] = {time, place};
  has_looks_.store(true, std::memory_order_relaxed);
}

std::size_t SeenPlaces::find_or_add(std::span<const PythonFrame> frames) noexcept {
  for (std::size_t i = 0; i < place_count_; ++i) {
    if (std::equal(frames.begin(), frames.end(), places_[i].frames,
                   places_[i].frames + places_[i].frame_count))
      return i;
  }
  if (place_count_ == kMostPlaces) return kMostPlaces;
  std::copy(frames.begin(), frames.end(), places_[place_count_].frames);
  places_[place_count_].frame_count = frames.size();
  return place_count_++;
}

void SeenPlaces::leave_out_every_second() noexcept {
  for (std::size_t i = 0; i < kMostLooks / 2; ++i) looks_[i] = looks_[2 * i];
  look_count_ = kMostLooks / 2;
  ++thinned_;
}

void SeenPlaces::forget() noexcept {
  place_count_ = look_count_ = skipped_ = 0;
  thinned_ = 0;
  has_looks_.store(false, std::memory_order_relaxed);
}

}  // namespace penstock::recorder
