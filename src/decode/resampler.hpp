#pragma once

#include "decode/shared/picture_decoder.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

/// Resizing along one axis: output i is the sum of `count` inputs from first[i] on, times the weights from i
/// * count on. The last weights of an output may be 0, and their inputs past the end.
struct ResizeTaps {
  std::vector<int> first;
  std::vector<float> weights;
  int count = 0;
  int first_input = 0;
  int input_count = 0;
};

/// Renders a view from the rows of a picture, which come from above, with 4 bytes for each pixel: red, green,
/// blue, and one that does not count. Resizes as Pillow does: along the row, rounds to whole numbers, then
/// along the column. An output row is written as soon as its last input row is there.
class Resampler {
 public:
  explicit Resampler(PictureStyle style) : style_(style) {}
  [[nodiscard]] const PictureStyle& style() const noexcept { return style_; }

  /// The rows to come are of the picture with its sides divided by `shrink`. `target` is filled until the
  /// last row.
  void begin(const PictureView& view, int shrink, std::span<std::byte> target);

  /// The pixels that the view needs, in those of the rows to come. Without any, the view is black, and
  /// written.
  [[nodiscard]] const PictureRectangle& needed() const noexcept { return needed_; }

  /// The next needed row, from its first needed pixel on. kSlack bytes past the last needed pixel can be
  /// read.
  static constexpr std::size_t kSlack = 16;
  void add_row(const std::uint8_t* pixels) noexcept;

 private:
  void copy_row(const std::uint8_t* pixels) noexcept;
  void take_row(const std::uint8_t* pixels) noexcept;
  void take_row_avx2(const std::uint8_t* pixels) noexcept;
  void resize_row(const std::uint8_t* pixels) noexcept;
  void sum_column() noexcept;
  void write_row() noexcept;
  [[nodiscard]] float* ring_row(int row) noexcept;

  PictureStyle style_;
  PictureView view_;
  PictureRectangle visible_;  ///< the part of the target that shows the picture
  PictureRectangle needed_;
  ResizeTaps across_;
  ResizeTaps down_;
  bool copies_ = false;  ///< the view has pixels as they are
  int rows_in_ = 0;
  int rows_out_ = 0;
  std::vector<float> across_weights_;  ///< those of across_, four times each
  std::vector<float> row_;             ///< four for each pixel
  std::vector<float> ring_;            ///< the last rows, resized along the row
  std::vector<const float*> column_;   ///< the rows of the ring that make the next output row
  std::vector<std::uint8_t> packed_;   ///< an output row
  std::span<std::byte> target_;
};

}  // namespace penstock
