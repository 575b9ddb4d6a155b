#include "decode/resampler.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace penstock {

namespace {

// Pixels that are packed together.
constexpr int kBlock = 4;

using Pixel [[gnu::vector_size(16), gnu::may_alias, gnu::aligned(4)]] = float;
using Pixels [[gnu::vector_size(32), gnu::may_alias, gnu::aligned(4)]] = float;
using Values [[gnu::vector_size(32)]] = std::int32_t;
using Bytes [[gnu::vector_size(16)]] = std::uint8_t;
using Ints [[gnu::vector_size(16)]] = std::int32_t;

double bilinear(double x) { return std::max(0.0, 1.0 - std::abs(x)); }

double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

double weight_at(ResizeFilter filter, double x) {
  return filter == ResizeFilter::bilinear ? bilinear(x) : bicubic(x);
}

/// A side of the crop, in input pixels that may be fractions of stored ones.
struct Side {
  double begin;
  double length;
  int resized;
};

/// The taps of the outputs `first` to first + count - 1, as Pillow computes them.
void fill_taps(ResizeTaps& taps, Side side, int first, int count, ResizeFilter filter) {
  const double scale = side.length / side.resized;
  const double stretch = std::max(scale, 1.0);
  const double support = stretch * (filter == ResizeFilter::bilinear ? 1 : 2);
  const auto lowest = static_cast<int>(side.begin);
  const auto highest = static_cast<int>(std::ceil(side.begin + side.length));
  taps.count = 2 * static_cast<int>(std::ceil(support));
  taps.first.clear();
  taps.weights.assign(static_cast<std::size_t>(count) * static_cast<std::size_t>(taps.count), 0);
  float* weights = taps.weights.data();
  for (int i = first; i < first + count; ++i, weights += taps.count) {
    const double center = side.begin + (i + 0.5) * scale;
    const int begin = std::max(static_cast<int>(center - support + 0.5), lowest);
    const int end = std::min(static_cast<int>(center + support + 0.5), highest);
    double sum = 0;
    for (int k = begin; k < end; ++k) sum += weight_at(filter, (k - center + 0.5) / stretch);
    for (int k = begin; k < end; ++k) {
      weights[k - begin] = static_cast<float>(weight_at(filter, (k - center + 0.5) / stretch) / sum);
    }
    taps.first.push_back(begin);
    taps.input_count = end - taps.first.front();
  }
  taps.first_input = taps.first.front();
  for (int& input : taps.first) input -= taps.first_input;
}

/// Turns the outputs around.
void mirror(ResizeTaps& taps) {
  std::reverse(taps.first.begin(), taps.first.end());
  auto low = taps.weights.begin();
  for (auto high = taps.weights.end() - taps.count; low < high; low += taps.count, high -= taps.count) {
    std::swap_ranges(low, low + taps.count, high);
  }
}

/// Four pixels as floats.
[[gnu::always_inline]] inline void widen(const std::uint8_t* bytes, float* floats) noexcept {
  Bytes block;
  std::memcpy(&block, bytes, sizeof(block));
  const Bytes zero{};
  const auto put = [&](int i, Bytes pixel) {
    reinterpret_cast<Pixel*>(floats)[i] = __builtin_convertvector(reinterpret_cast<Ints>(pixel), Pixel);
  };
  put(0, __builtin_shufflevector(block, zero, 0, 16, 16, 16, 1, 16, 16, 16, 2, 16, 16, 16, 3, 16, 16, 16));
  put(1, __builtin_shufflevector(block, zero, 4, 16, 16, 16, 5, 16, 16, 16, 6, 16, 16, 16, 7, 16, 16, 16));
  put(2, __builtin_shufflevector(block, zero, 8, 16, 16, 16, 9, 16, 16, 16, 10, 16, 16, 16, 11, 16, 16, 16));
  put(3,
      __builtin_shufflevector(block, zero, 12, 16, 16, 16, 13, 16, 16, 16, 14, 16, 16, 16, 15, 16, 16, 16));
}

/// A bicubic filter's sums can lie outside of the bytes' values.
template <typename Integers>
[[gnu::always_inline]] inline void clamp(Integers& values) noexcept {
  values = values > 0 ? values : Integers{};
  values = values > 255 ? Integers{} + 255 : values;
}

/// A row, resized. Each half of a vector sums every second input. kPairs is the number of vectors that make
/// an output of a bilinear filter; 0 is any filter.
template <int kPairs>
[[gnu::always_inline]] inline void sum_inputs(const ResizeTaps& taps, const float* weights, const float* row,
                                              float* resized) noexcept {
  const int pairs = kPairs > 0 ? kPairs : taps.count / 2;
  const Pixels* weight = reinterpret_cast<const Pixels*>(weights);
  for (const int first : taps.first) {
    const Pixels* input = reinterpret_cast<const Pixels*>(row + 4 * first);
    Pixels sums = weight[0] * input[0];
    for (int k = 1; k < pairs; ++k) sums += weight[k] * input[k];
    const Pixel even = __builtin_shufflevector(sums, sums, 0, 1, 2, 3);
    const Pixel odd = __builtin_shufflevector(sums, sums, 4, 5, 6, 7);
    const Pixel sum = even + odd + 0.5f;
    Ints value = __builtin_convertvector(sum, Ints);
    if constexpr (kPairs == 0) clamp(value);
    *reinterpret_cast<Pixel*>(resized) = __builtin_convertvector(value, Pixel);
    weight += pairs;
    resized += 4;
  }
}

/// Packs four pixels: 3 bytes for each, of 16 that are written, or in 3 planes of `plane` bytes.
[[gnu::always_inline]] inline void pack(const Values& low, const Values& high, std::size_t plane,
                                        PixelLayout layout, std::uint8_t* packed) noexcept {
  const Values both = low | high << 16;
  const Ints even = __builtin_shufflevector(both, both, 0, 1, 2, 3);
  const Ints odd = __builtin_shufflevector(both, both, 4, 5, 6, 7);
  const auto planes = reinterpret_cast<Bytes>(even | odd << 8);
  if (layout == PixelLayout::hwc) {
    const Bytes pixels =
        __builtin_shufflevector(planes, planes, 0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11, 12, 13, 14, 15);
    std::memcpy(packed, &pixels, sizeof(pixels));
    return;
  }
  for (std::size_t c = 0; c < 3; ++c) {
    std::memcpy(packed + c * plane, reinterpret_cast<const char*>(&planes) + 4 * c, 4);
  }
}

std::size_t padded(int pixels) noexcept {
  return (static_cast<std::size_t>(pixels) + kBlock - 1) / kBlock * kBlock;
}

}  // namespace

void Resampler::begin(const PictureView& view, int shrink, std::span<std::byte> target) {
  view_ = view;
  target_ = target;
  rows_in_ = rows_out_ = 0;
  const PictureRectangle& window = view.window;
  const int left = std::max(window.left, 0);
  const int top = std::max(window.top, 0);
  visible_ = {left - window.left, top - window.top,
              std::min(window.left + window.width, view.resized.width) - left,
              std::min(window.top + window.height, view.resized.height) - top};
  if (visible_.width < window.width || visible_.height < window.height) {
    std::fill(target.begin(), target.end(), std::byte{});
  }
  needed_ = {};
  if (visible_.width <= 0 || visible_.height <= 0) return;

  const auto side = [&](int begin, int length, int resized) {
    return Side{static_cast<double>(begin) / shrink, static_cast<double>(length) / shrink, resized};
  };
  fill_taps(across_, side(view.crop.left, view.crop.width, view.resized.width), left, visible_.width,
            style_.filter);
  fill_taps(down_, side(view.crop.top, view.crop.height, view.resized.height), top, visible_.height,
            style_.filter);
  needed_ = {across_.first_input, down_.first_input, across_.input_count, down_.input_count};
  copies_ = style_.filter == ResizeFilter::bilinear && style_.layout == PixelLayout::hwc && shrink == 1 &&
            view.resized == PictureSize{view.crop.width, view.crop.height} && !view.flip_horizontally;
  if (view.flip_horizontally) {
    mirror(across_);
    visible_.left = window.width - visible_.left - visible_.width;
  }
  const std::size_t width = padded(visible_.width);
  row_.resize(4 * padded(needed_.width + across_.count));
  ring_.resize(4 * width * static_cast<std::size_t>(down_.count));
  packed_.resize(3 * width + sizeof(Bytes));
  across_weights_.clear();
  for (const float weight : across_.weights) across_weights_.insert(across_weights_.end(), 4, weight);
  column_.reserve(static_cast<std::size_t>(down_.count));
}

float* Resampler::ring_row(int row) noexcept {
  return ring_.data() + static_cast<std::size_t>(row % down_.count) * 4 * padded(visible_.width);
}

void Resampler::add_row(const std::uint8_t* pixels) noexcept {
  if (copies_) return copy_row(pixels);
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return take_row_avx2(pixels);
#endif
  take_row(pixels);
}

void Resampler::copy_row(const std::uint8_t* pixels) noexcept {
  if (rows_out_ == visible_.height) return;
  for (int x = 0; x < visible_.width; x += kBlock) {
    Bytes block;
    std::memcpy(&block, pixels + 4 * x, sizeof(block));
    block = __builtin_shufflevector(block, block, 0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 15, 15, 15, 15);
    std::memcpy(packed_.data() + 3 * x, &block, sizeof(block));
  }
  write_row();
  ++rows_out_;
}

// Without fused multiplication, so that all processors give the same bytes.
#if defined(__x86_64__)
[[gnu::target("avx2")]] void Resampler::take_row_avx2(const std::uint8_t* pixels) noexcept {
  take_row(pixels);
}
#endif

[[gnu::always_inline]] inline void Resampler::take_row(const std::uint8_t* pixels) noexcept {
  resize_row(pixels);
  while (rows_out_ < visible_.height) {
    const int first = down_.first[static_cast<std::size_t>(rows_out_)];
    if (std::min(first + down_.count, needed_.height) > rows_in_) return;
    column_.clear();
    for (int k = 0; k < down_.count; ++k) column_.push_back(ring_row(first + k));
    sum_column();
    write_row();
    ++rows_out_;
  }
}

[[gnu::always_inline]] inline void Resampler::resize_row(const std::uint8_t* pixels) noexcept {
  for (int x = 0; x < needed_.width; x += kBlock) widen(pixels + 4 * x, row_.data() + 4 * x);
  float* resized = ring_row(rows_in_++);
  const int pairs = style_.filter == ResizeFilter::bilinear ? across_.count / 2 : 0;
  if (pairs == 1) return sum_inputs<1>(across_, across_weights_.data(), row_.data(), resized);
  if (pairs == 2) return sum_inputs<2>(across_, across_weights_.data(), row_.data(), resized);
  sum_inputs<0>(across_, across_weights_.data(), row_.data(), resized);
}

/// Packs the weighed sum of the rows in column_.
[[gnu::always_inline]] inline void Resampler::sum_column() noexcept {
  const float* weights = down_.weights.data() + static_cast<std::size_t>(rows_out_ * down_.count);
  const std::size_t plane = padded(visible_.width);
  std::uint8_t* packed = packed_.data();
  const PixelLayout layout = style_.layout;
  const std::size_t step = layout == PixelLayout::hwc ? 3 * kBlock : kBlock;
  const std::span<const float* const> rows = column_;
  for (std::size_t x = 0; x < plane; x += kBlock, packed += step) {
    Pixels low = Pixels{} + 0.5f;
    Pixels high = low;
    for (std::size_t k = 0; k < rows.size(); ++k) {
      const Pixels* pixels = reinterpret_cast<const Pixels*>(rows[k] + 4 * x);
      low += weights[k] * pixels[0];
      high += weights[k] * pixels[1];
    }
    Values low_values = __builtin_convertvector(low, Values);
    Values high_values = __builtin_convertvector(high, Values);
    clamp(low_values);
    clamp(high_values);
    pack(low_values, high_values, plane, layout, packed);
  }
}

void Resampler::write_row() noexcept {
  const PictureRectangle& window = view_.window;
  const int y = visible_.top + rows_out_;
  const int row = view_.flip_vertically ? window.height - 1 - y : y;
  const auto at = static_cast<std::size_t>(row) * static_cast<std::size_t>(window.width) +
                  static_cast<std::size_t>(visible_.left);
  const auto width = static_cast<std::size_t>(visible_.width);
  if (style_.layout == PixelLayout::hwc) {
    std::memcpy(target_.data() + 3 * at, packed_.data(), 3 * width);
    return;
  }
  const std::size_t target_plane =
      static_cast<std::size_t>(window.width) * static_cast<std::size_t>(window.height);
  for (std::size_t c = 0; c < 3; ++c)
    std::memcpy(target_.data() + c * target_plane + at, packed_.data() + c * padded(visible_.width), width);
}

}  // namespace penstock
