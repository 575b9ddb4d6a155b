#pragma once

#include "device/cuda/kernel_arguments.hpp"

#include <math.h>

/// What a thread of penstock_render does. The fake driver of the tests does the same.
namespace penstock::cuda {

// The inputs of one output along an axis, as Pillow chooses them: `count` from `first` on. Input k weighs
// the filter's value at `at` + k * `step`, times `share`.
struct Taps {
  int first;
  int count;
  float at;
  float step;
  float share;
};

// The value of a filter at `x`.
extern "C" __device__ __noinline__ float penstock_filter(float x, bool bicubic) {
  x = fabsf(x);
  if (!bicubic) return x < 1 ? 1 - x : 0;
  if (x < 1) return __fadd_rn(__fmul_rn(__fmul_rn(__fadd_rn(__fmul_rn(1.5f, x), -2.5f), x), x), 1);
  if (x >= 2) return 0;
  return __fmul_rn(-0.5f, __fadd_rn(__fmul_rn(__fadd_rn(__fmul_rn(__fadd_rn(x, -5), x), 8), x), -4));
}

__device__ __forceinline__ float weight_of(const Taps& taps, int k, bool bicubic) {
  return __fmul_rn(penstock_filter(__fadd_rn(taps.at, __fmul_rn(static_cast<float>(k), taps.step)), bicubic),
                   taps.share);
}

// Those of output `i` of `resized` ones, made of the `length` inputs from `begin` on.
__device__ __forceinline__ Taps taps_of(int i, int begin, int length, int resized, bool bicubic) {
  const double scale = static_cast<double>(length) / resized;
  const double stretch = scale < 1 ? 1 : scale;
  const double support = bicubic ? 2 * stretch : stretch;
  const double center = __dadd_rn(begin, __dmul_rn(i + 0.5, scale));
  const int low = static_cast<int>(center - support + 0.5);
  const int high = static_cast<int>(center + support + 0.5);
  const int first = low < begin ? begin : low;
  const int end = high > begin + length ? begin + length : high;
  Taps taps{first, end - first, static_cast<float>((first - center + 0.5) / stretch),
            static_cast<float>(1 / stretch), 1};
  float sum = 0;
#pragma unroll 1
  for (int k = 0; k < taps.count; ++k) sum = __fadd_rn(sum, weight_of(taps, k, bicubic));
  taps.share = 1 / sum;
  return taps;
}

// As a byte. A bicubic filter's sums can lie outside of the bytes' values.
__device__ __forceinline__ int rounded(float sum) {
  const int value = static_cast<int>(__fadd_rn(sum, 0.5f));
  return value < 0 ? 0 : value > 255 ? 255 : value;
}

/// Makes the pixel with number `pixel`, of all windows: resizes the rows that it needs along the row, rounds
/// to bytes, and resizes along the column, as Pillow does.
__device__ __forceinline__ void render_pixel(const RenderArguments& a, uint64_t pixel) {
  const uint64_t plane = uint64_t{a.width} * a.height;
  const RenderedPicture& p = a.pictures[pixel / plane];
  const unsigned x = static_cast<unsigned>(pixel % plane % a.width);
  const unsigned y = static_cast<unsigned>(pixel % plane / a.width);
  const int resized_x = p.window_left + static_cast<int>(x);
  const int resized_y = p.window_top + static_cast<int>(y);
  const bool bicubic = a.bicubic != 0;

  float sums[3] = {0, 0, 0};
  if (resized_x >= 0 && resized_x < p.resized_width && resized_y >= 0 && resized_y < p.resized_height) {
    const Taps columns = taps_of(resized_x, p.crop_left, p.crop_width, p.resized_width, bicubic);
    const Taps rows = taps_of(resized_y, p.crop_top, p.crop_height, p.resized_height, bicubic);
    const uint8_t* row =
        p.pixels + static_cast<uint64_t>(rows.first) * p.pitch + 3 * static_cast<uint64_t>(columns.first);
#pragma unroll 1
    for (int i = 0; i < rows.count; ++i, row += p.pitch) {
      float inputs[3] = {0, 0, 0};
#pragma unroll 1
      for (int k = 0; k < columns.count; ++k) {
        const float weight = weight_of(columns, k, bicubic);
        for (int c = 0; c < 3; ++c) inputs[c] = __fadd_rn(inputs[c], __fmul_rn(weight, row[3 * k + c]));
      }
      const float weight = weight_of(rows, i, bicubic);
      for (int c = 0; c < 3; ++c) {
        sums[c] = __fadd_rn(sums[c], __fmul_rn(weight, static_cast<float>(rounded(inputs[c]))));
      }
    }
  }

  const unsigned to_x = p.flips & kFlipHorizontally ? a.width - 1 - x : x;
  const unsigned to_y = p.flips & kFlipVertically ? a.height - 1 - y : y;
  const uint64_t at = uint64_t{to_y} * a.width + to_x;
  uint8_t* const to = static_cast<uint8_t*>(p.destination) + (a.channels_first ? at : 3 * at);
  const uint64_t step = a.channels_first ? plane : 1;
  for (int c = 0; c < 3; ++c) to[static_cast<uint64_t>(c) * step] = static_cast<uint8_t>(rounded(sums[c]));
}

}  // namespace penstock::cuda
