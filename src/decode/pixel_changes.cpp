#include "decode/pixel_changes.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace penstock {

namespace {

using Kind = PixelChange::Kind;
using Floats [[gnu::vector_size(32), gnu::may_alias]] = float;
using Whole [[gnu::vector_size(32)]] = std::int32_t;

/// Pixels that are changed together, and vectors of them.
constexpr std::size_t kTogether = 64;
constexpr std::size_t kVectors = kTogether * sizeof(float) / sizeof(Floats);

/// Channel c of pixel i is data[c * plane + i * step].
struct ColorPixels {
  std::uint8_t* data;
  std::size_t count;
  std::size_t plane;
  std::size_t step;
};

/// Red, green and blue of kTogether pixels: whole numbers, 0 to 255.
struct Colors {
  alignas(Floats) float channel[3][kTogether];
  Floats& at(std::size_t c, std::size_t vector) noexcept {
    return reinterpret_cast<Floats*>(channel[c])[vector];
  }
};

/// The pixels from `first` on; 0 past the last one.
[[gnu::always_inline]] inline void load(const ColorPixels& pixels, std::size_t first, Colors& colors) {
  const std::size_t count = std::min(kTogether, pixels.count - first);
  for (std::size_t c = 0; c < 3; ++c) {
    const std::uint8_t* from = pixels.data + c * pixels.plane + first * pixels.step;
    std::uint8_t bytes[kTogether] = {};
    if (pixels.step == 1 && count == kTogether) {
      std::memcpy(bytes, from, kTogether);
    } else {
      for (std::size_t i = 0; i < count; ++i) bytes[i] = from[i * pixels.step];
    }
    for (std::size_t i = 0; i < kTogether; ++i) colors.channel[c][i] = bytes[i];
  }
}

[[gnu::always_inline]] inline void store(const ColorPixels& pixels, std::size_t first, const Colors& colors) {
  const std::size_t count = std::min(kTogether, pixels.count - first);
  for (std::size_t c = 0; c < 3; ++c) {
    std::uint8_t* to = pixels.data + c * pixels.plane + first * pixels.step;
    std::uint8_t bytes[kTogether];
    for (std::size_t i = 0; i < kTogether; ++i) bytes[i] = static_cast<std::uint8_t>(colors.channel[c][i]);
    if (pixels.step == 1 && count == kTogether) {
      std::memcpy(to, bytes, kTogether);
    } else {
      for (std::size_t i = 0; i < count; ++i) to[i * pixels.step] = bytes[i];
    }
  }
}

/// As torchvision converts floats to bytes.
[[gnu::always_inline]] inline void cut(const Floats& values, Floats& cut) {
  const Floats above = values > 0 ? values : Floats{};
  const Floats within = above < 255 ? above : Floats{} + 255;
  cut = __builtin_convertvector(__builtin_convertvector(within, Whole), Floats);
}

[[gnu::always_inline]] inline void find_grey(Colors& colors, std::size_t i, Floats& grey) {
  cut(0.2989f * colors.at(0, i) + 0.587f * colors.at(1, i) + 0.114f * colors.at(2, i), grey);
}

/// Turns the hue by `sixths` of the circle: -3 to 3.
[[gnu::always_inline]] inline void turn_hue(Colors& colors, std::size_t i, float sixths) {
  const Floats red = colors.at(0, i);
  const Floats green = colors.at(1, i);
  const Floats blue = colors.at(2, i);
  const Floats high = red > green ? red : green;
  const Floats most = high > blue ? high : blue;
  const Floats low = red < green ? red : green;
  const Floats range = most - (low < blue ? low : blue);
  const Floats red_less = most == green ? blue - red + 2 * range : red - green + 4 * range;
  const Floats part = most == red ? green - blue : red_less;
  const Floats hue = part / (range > 1 ? range : Floats{} + 1) + sixths;
  // A channel falls from `most` to the least, stays, and rises, each within a sixth or two of the circle.
  for (std::size_t c = 0; c < 3; ++c) {
    const Floats place = hue + static_cast<float>(11 - 2 * c);
    const Whole turns = __builtin_convertvector(place * (1.0f / 6), Whole);
    const Floats within = place - 6 * __builtin_convertvector(turns, Floats);
    const Floats near = within < 4 - within ? within : 4 - within;
    const Floats above = near > 0 ? near : Floats{};
    cut((most - range * (above < 1 ? above : Floats{} + 1)) * (255.999f / 255), colors.at(c, i));
  }
}

[[gnu::always_inline]] inline float mean_grey(const ColorPixels& pixels) {
  double sum = 0;
  for (std::size_t first = 0; first < pixels.count; first += kTogether) {
    Colors colors;
    load(pixels, first, colors);
    Floats part{};
    for (std::size_t i = 0; i < kVectors; ++i) {
      Floats grey;
      find_grey(colors, i, grey);
      part += grey;
    }
    for (std::size_t i = 0; i < kTogether / kVectors; ++i) sum += static_cast<double>(part[i]);
  }
  return static_cast<float>(sum / static_cast<double>(pixels.count));
}

[[gnu::always_inline]] inline void change(Colors& colors, const PixelChange& change, float mean) {
  const auto amount = static_cast<float>(change.amount);
  const auto rest = static_cast<float>(1 - change.amount);
  for (std::size_t i = 0; i < kVectors; ++i) {
    Floats other{};
    if (change.kind == Kind::contrast) other += mean;
    if (change.kind == Kind::saturation) find_grey(colors, i, other);
    if (change.kind == Kind::hue) {
      turn_hue(colors, i, 6 * amount);
    } else {
      for (std::size_t c = 0; c < 3; ++c) cut(amount * colors.at(c, i) + rest * other, colors.at(c, i));
    }
  }
}

/// Only the first change may be one of the contrast.
[[gnu::always_inline]] inline void change_colors(const ColorPixels& pixels,
                                                 std::span<const PixelChange> changes) {
  const float mean = changes.front().kind == Kind::contrast ? mean_grey(pixels) : 0;
  for (std::size_t first = 0; first < pixels.count; first += kTogether) {
    Colors colors;
    load(pixels, first, colors);
    for (const PixelChange& each : changes) change(colors, each, mean);
    store(pixels, first, colors);
  }
}

// Without fused multiplication, so that all processors give the same bytes.
#if defined(__x86_64__)
[[gnu::target("avx2")]] void change_colors_avx2(const ColorPixels& pixels,
                                                std::span<const PixelChange> changes) {
  change_colors(pixels, changes);
}
#endif

void erase(const ColorPixels& pixels, int width, const PixelChange& change) {
  const PictureRectangle& area = change.area;
  for (int y = area.top; y < area.top + area.height; ++y) {
    const auto first =
        static_cast<std::size_t>(y) * static_cast<std::size_t>(width) + static_cast<std::size_t>(area.left);
    for (std::size_t i = first; i < first + static_cast<std::size_t>(area.width); ++i) {
      for (std::size_t c = 0; c < 3; ++c) pixels.data[c * pixels.plane + i * pixels.step] = change.color[c];
    }
  }
}

}  // namespace

void change_pixels(const PictureView& view, PixelLayout layout, std::span<std::byte> bytes) noexcept {
  const std::size_t count = bytes.size() / 3;
  const bool planes = layout == PixelLayout::chw;
  const ColorPixels pixels{reinterpret_cast<std::uint8_t*>(bytes.data()), count, planes ? count : 1,
                           planes ? std::size_t{1} : 3};
  const auto ends = [](const PixelChange& change) {
    return change.kind == Kind::contrast || change.kind == Kind::erase;
  };
  for (auto first = view.changes.begin(); first != view.changes.end();) {
    const auto end = std::find_if(first + 1, view.changes.end(), ends);
    if (first->kind == Kind::erase) {
      erase(pixels, view.window.width, *first++);
      continue;
    }
#if defined(__x86_64__)
    static const bool has_avx2 = __builtin_cpu_supports("avx2");
    has_avx2 ? change_colors_avx2(pixels, {first, end}) : change_colors(pixels, {first, end});
#else
    change_colors(pixels, {first, end});
#endif
    first = end;
  }
}

}  // namespace penstock
