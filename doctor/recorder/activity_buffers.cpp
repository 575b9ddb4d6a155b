#include "activity_buffers.hpp"

#include "recording_file.hpp"

#include <cstdlib>

namespace penstock::recorder {

std::uint8_t* ActivityBuffers::take() noexcept {
  {
    const Lock lock(mutex_);
    if (free_count_ > 0) return free_[--free_count_];
  }
  return static_cast<std::uint8_t*>(std::aligned_alloc(64, kBytes));
}

bool ActivityBuffers::keep(Full full) noexcept {
  const Lock lock(mutex_);
  if (full_count_ == kMostFull) return false;
  full_[(first_full_ + full_count_++) % kMostFull] = full;
  return true;
}

ActivityBuffers::Full ActivityBuffers::next() noexcept {
  const Lock lock(mutex_);
  if (full_count_ == 0) return {};
  const Full full = full_[first_full_];
  first_full_ = (first_full_ + 1) % kMostFull;
  --full_count_;
  return full;
}

void ActivityBuffers::give_back(std::uint8_t* buffer) noexcept {
  {
    const Lock lock(mutex_);
    if (free_count_ < kMostFree) {
      free_[free_count_++] = buffer;
      return;
    }
  }
  std::free(buffer);
}

}  // namespace penstock::recorder
