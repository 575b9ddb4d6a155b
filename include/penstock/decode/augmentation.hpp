#pragma once

#include <cstdint>
#include <variant>
#include <vector>

namespace penstock {

/// In pixels.
struct PictureSize {
  int width = 0;
  int height = 0;
  friend bool operator==(const PictureSize&, const PictureSize&) = default;
};

/// In pixels, from the upper left corner.
struct PictureRectangle {
  int left = 0;
  int top = 0;
  int width = 0;
  int height = 0;
  friend bool operator==(const PictureRectangle&, const PictureRectangle&) = default;
};

/// What becomes of one picture, in this order: `crop` is cut out, resized to `resized`, and `window` is cut
/// out of the result, which is then flipped. Pixels of the window that lie outside of the resized crop are
/// black.
struct PictureView {
  PictureRectangle crop;  ///< within the stored picture; pixels outside do not count
  PictureSize resized;
  PictureRectangle window;
  bool flip_horizontally = false;
  bool flip_vertically = false;
  friend bool operator==(const PictureView&, const PictureView&) = default;
};

/// The view that is the whole picture as it is.
[[nodiscard]] PictureView whole_picture(PictureSize stored);

/// The operations have the parameters, the order of draws and the rounding of torchvision.transforms.
struct RandomResizedCrop {
  PictureSize size;
  double scale_low = 0.08;  ///< of the picture's area
  double scale_high = 1.0;
  double ratio_low = 3.0 / 4.0;  ///< width to height
  double ratio_high = 4.0 / 3.0;
};

/// Resizes so that the shorter side has `shorter_side` pixels.
struct ResizeShorterSide {
  int shorter_side = 0;
};

struct Resize {
  PictureSize size;
};

struct CenterCrop {
  PictureSize size;
};

/// `padding` black pixels are put at each side first.
struct RandomCrop {
  PictureSize size;
  int padding = 0;
};

struct RandomHorizontalFlip {
  double probability = 0.5;
};

struct RandomVerticalFlip {
  double probability = 0.5;
};

using PictureOperation = std::variant<RandomResizedCrop, ResizeShorterSide, Resize, CenterCrop, RandomCrop,
                                      RandomHorizontalFlip, RandomVerticalFlip>;

/// Operations that make views of pictures, all of one size. A value. Threads may share it.
class Augmentation {
 public:
  /// Throws InvalidArgument for sides outside of 1 to 65,535, wrong parameters, a second operation that
  /// resizes, and operations whose results would differ in size.
  explicit Augmentation(std::vector<PictureOperation> operations);

  /// Of every view's window.
  [[nodiscard]] PictureSize size() const noexcept { return size_; }

  /// The view of one sample, whose picture is stored with `stored` pixels. It follows from the arguments
  /// alone: threads, ranks and resumes change nothing. Throws InvalidArgument for a size below 1, and if a
  /// RandomCrop is larger than its picture.
  [[nodiscard]] PictureView draw(std::uint64_t seed, std::uint64_t epoch, std::uint64_t sample,
                                 PictureSize stored) const;

 private:
  std::vector<PictureOperation> operations_;
  PictureSize size_;
};

}  // namespace penstock
