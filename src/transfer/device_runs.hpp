#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace penstock {

/// A range of a transfer's *image*: the bytes that cross the link, side by side.
struct ImageRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  [[nodiscard]] std::size_t bytes() const noexcept { return end - begin; }
};

/// A part of the image that lies side by side on the device.
struct DeviceRun {
  std::byte* device = nullptr;
  ImageRange image;
};

/// Calls `copy(device_address, image_offset, bytes)` for what each of the ascending runs has of `range`.
template <typename Copy>
void for_each_run(std::span<const DeviceRun> runs, ImageRange range, Copy&& copy) {
  auto run =
      std::ranges::partition_point(runs, [&](const DeviceRun& one) { return one.image.end <= range.begin; });
  for (; run != runs.end() && run->image.begin < range.end; ++run) {
    const std::size_t begin = std::max(run->image.begin, range.begin);
    const std::size_t end = std::min(run->image.end, range.end);
    copy(run->device + (begin - run->image.begin), begin, end - begin);
  }
}

}  // namespace penstock
