#pragma once

#include <penstock/device/device_tuning.hpp>

#include <algorithm>
#include <cstddef>

namespace penstock {

/// How large the parts of copies are. They are small after the link was idle, and grow while it has no rest:
/// then it sets the pace, and each part costs it some time. One thread at a time.
class PartSizes {
 public:
  explicit PartSizes(const DeviceTuning& tuning) noexcept
      : small_(tuning.small_part_bytes), large_(std::max(small_, tuning.large_part_bytes)) {}

  void link_was_idle() noexcept { since_idle_ = 0; }
  void enqueued(std::size_t bytes) noexcept { since_idle_ += bytes; }
  /// The bytes of the next part, at most, if two are under way at a time.
  [[nodiscard]] std::size_t most() const noexcept {
    return std::clamp(since_idle_ / kGrowth / small_ * small_, small_, large_);
  }
  /// The same if one part is under way at a time. It may be as large as two.
  [[nodiscard]] std::size_t most_alone() const noexcept { return 2 * most(); }

 private:
  /// A part has at most this share of the bytes since the link was idle, unless it is a small part.
  static constexpr std::size_t kGrowth = 8;

  const std::size_t small_;
  const std::size_t large_;
  std::size_t since_idle_ = 0;  ///< bytes enqueued since the link was idle
};

}  // namespace penstock
