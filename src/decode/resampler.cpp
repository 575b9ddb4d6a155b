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

/// Rounds sums that are larger by a half. The sums of a bilinear filter lie between its inputs.
template <ResizeFilter kFilter>
[[gnu::always_inline]] inline void round_sums(const Pixels& sums, Values& values) noexcept {
  values = __builtin_convertvector(sums, Values);
  if constexpr (kFilter == ResizeFilter::bicubic) {
    values = values > 0 ? values : Values{};
    values = values > 255 ? Values{} + 255 : values;
  }
}

/// A picture's row, resized: its outputs two by two, of which each lane sums every second input.
template <ResizeFilter kFilter, int kPairs>
[[gnu::always_inline]] inline void resize_row(const ResizeTaps& taps, const float* weights, const float* row,
                                              float* resized) noexcept {
  const int pairs = kPairs > 0 ? kPairs : taps.count / 2;
  const Pixels* weight = reinterpret_cast<const Pixels*>(weights);
  for (const int first : taps.first) {
    const Pixels* input = reinterpret_cast<const Pixels*>(row + 4 * first);
    Pixels sums = weight[0] * input[0];
    for (int k = 1; k < pairs; ++k) sums += weight[k] * input[k];
    const Pixel sum = __builtin_shufflevector(sums, sums, 0, 1, 2, 3) +
                      __builtin_shufflevector(sums, sums, 4, 5, 6, 7) + 0.5f;
    Ints value = __builtin_convertvector(sum, Ints);
    if constexpr (kFilter == ResizeFilter::bicubic) {
      value = value > 0 ? value : Ints{};
      value = value > 255 ? Ints{} + 255 : value;
    }
    *reinterpret_cast<Pixel*>(resized) = __builtin_convertvector(value, Pixel);
    weight += pairs;
    resized += 4;
  }
}

[[gnu::always_inline]] inline void resize_bytes(ResizeFilter filter, const ResizeTaps& taps,
                                                const float* weights, const std::uint8_t* bytes, float* row,
                                                float* resized) noexcept {
  for (int x = 0; x < taps.input_count; x += kBlock) widen(bytes + 4 * x, row + 4 * x);
  if (filter == ResizeFilter::bicubic)
    return resize_row<ResizeFilter::bicubic, 0>(taps, weights, row, resized);
  if (taps.count == 2) return resize_row<ResizeFilter::bilinear, 1>(taps, weights, row, resized);
  if (taps.count == 4) return resize_row<ResizeFilter::bilinear, 2>(taps, weights, row, resized);
  resize_row<ResizeFilter::bilinear, 0>(taps, weights, row, resized);
}

/// Packs four pixels: 3 bytes for each, or in 3 planes of `plane` bytes. 16 bytes can be written at packed +
/// 3 * x.
[[gnu::always_inline]] inline void pack(const Values& low, const Values& high, std::size_t x,
                                        std::size_t plane, PixelLayout layout,
                                        std::uint8_t* packed) noexcept {
  const Values both = low | high << 16;
  const Ints even = __builtin_shufflevector(both, both, 0, 1, 2, 3);
  const Ints odd = __builtin_shufflevector(both, both, 4, 5, 6, 7);
  const auto planes = reinterpret_cast<Bytes>(even | odd << 8);
  if (layout == PixelLayout::hwc) {
    const Bytes pixels =
        __builtin_shufflevector(planes, planes, 0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11, 12, 13, 14, 15);
    std::memcpy(packed + 3 * x, &pixels, sizeof(pixels));
    return;
  }
  for (std::size_t c = 0; c < 3; ++c) {
    std::memcpy(packed + c * plane + x, reinterpret_cast<const char*>(&planes) + 4 * c, 4);
  }
}

/// The weighed sum of `rows`, packed.
template <ResizeFilter kFilter>
[[gnu::always_inline]] inline void sum_rows(const float* weights, std::span<const float* const> rows,
                                            std::size_t plane, PixelLayout layout,
                                            std::uint8_t* packed) noexcept {
  for (std::size_t x = 0; x < plane; x += kBlock) {
    Pixels low = Pixels{} + 0.5f;
    Pixels high = low;
    for (std::size_t k = 0; k < rows.size(); ++k) {
      const Pixels* pixels = reinterpret_cast<const Pixels*>(rows[k] + 4 * x);
      low += weights[k] * pixels[0];
      high += weights[k] * pixels[1];
    }
    Values low_values;
    Values high_values;
    round_sums<kFilter>(low, low_values);
    round_sums<kFilter>(high, high_values);
    pack(low_values, high_values, x, plane, layout, packed);
  }
}

[[gnu::always_inline]] inline void sum_rows(ResizeFilter filter, const float* weights,
                                            std::span<const float* const> rows, std::size_t plane,
                                            PixelLayout layout, std::uint8_t* packed) noexcept {
  if (filter == ResizeFilter::bicubic)
    return sum_rows<ResizeFilter::bicubic>(weights, rows, plane, layout, packed);
  sum_rows<ResizeFilter::bilinear>(weights, rows, plane, layout, packed);
}

struct Kernels {
  void (*resize_bytes)(ResizeFilter, const ResizeTaps&, const float*, const std::uint8_t*, float*,
                       float*) noexcept;
  void (*sum_rows)(ResizeFilter, const float*, std::span<const float* const>, std::size_t, PixelLayout,
                   std::uint8_t*) noexcept;
};

void resize_bytes_generic(ResizeFilter filter, const ResizeTaps& taps, const float* weights,
                          const std::uint8_t* bytes, float* row, float* resized) noexcept {
  resize_bytes(filter, taps, weights, bytes, row, resized);
}

void sum_rows_generic(ResizeFilter filter, const float* weights, std::span<const float* const> rows,
                      std::size_t plane, PixelLayout layout, std::uint8_t* packed) noexcept {
  sum_rows(filter, weights, rows, plane, layout, packed);
}

// Without fused multiplication, so that all processors give the same bytes.
#if defined(__x86_64__)
[[gnu::target("avx2")]] void resize_bytes_avx2(ResizeFilter filter, const ResizeTaps& taps,
                                               const float* weights, const std::uint8_t* bytes, float* row,
                                               float* resized) noexcept {
  resize_bytes(filter, taps, weights, bytes, row, resized);
}

[[gnu::target("avx2")]] void sum_rows_avx2(ResizeFilter filter, const float* weights,
                                           std::span<const float* const> rows, std::size_t plane,
                                           PixelLayout layout, std::uint8_t* packed) noexcept {
  sum_rows(filter, weights, rows, plane, layout, packed);
}
#endif

const Kernels& kernels() noexcept {
  static constexpr Kernels generic{resize_bytes_generic, sum_rows_generic};
#if defined(__x86_64__)
  static constexpr Kernels avx2{resize_bytes_avx2, sum_rows_avx2};
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  return has_avx2 ? avx2 : generic;
#else
  return generic;
#endif
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

void Resampler::add_row(const std::uint8_t* pixels) noexcept {
  const std::size_t row_floats = 4 * padded(visible_.width);
  const auto row_at = [&](int row) {
    return ring_.data() + static_cast<std::size_t>(row % down_.count) * row_floats;
  };
  kernels().resize_bytes(style_.filter, across_, across_weights_.data(), pixels, row_.data(),
                         row_at(rows_in_++));
  while (rows_out_ < visible_.height) {
    const int first = down_.first[static_cast<std::size_t>(rows_out_)];
    if (std::min(first + down_.count, needed_.height) > rows_in_) return;
    column_.clear();
    for (int k = 0; k < down_.count; ++k) column_.push_back(row_at(first + k));
    write_row();
    ++rows_out_;
  }
}

void Resampler::write_row() noexcept {
  const std::size_t plane = padded(visible_.width);
  const float* weights = down_.weights.data() + static_cast<std::size_t>(rows_out_ * down_.count);
  kernels().sum_rows(style_.filter, weights, column_, plane, style_.layout, packed_.data());
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
    std::memcpy(target_.data() + c * target_plane + at, packed_.data() + c * plane, width);
}

}  // namespace penstock
