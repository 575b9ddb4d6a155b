#pragma once

#include <array>
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

/// A change of pixels. One of colors is as torchvision makes it of uint8 tensors. It blends each pixel with
/// another: amount * pixel + (1 - amount) * other.
struct PixelChange {
  enum class Kind : std::uint8_t {
    brightness,  ///< with black
    contrast,    ///< with the mean of the grey picture
    saturation,  ///< with the pixel of the grey picture
    hue,         ///< turns the hue by `amount` of the circle instead: -0.5 to 0.5
    erase,       ///< gives `area`, which lies within the window, the color: red, green and blue
  };
  Kind kind = Kind::brightness;
  double amount = 1;
  PictureRectangle area{};
  std::array<std::uint8_t, 3> color{};
  friend bool operator==(const PixelChange&, const PixelChange&) = default;
};

/// What becomes of one picture, in this order: `crop` is cut out, resized to `resized`, and `window` is cut
/// out of the result, which is then flipped, and whose pixels are changed. Pixels of the window that lie
/// outside of the resized crop are black before.
struct PictureView {
  PictureRectangle crop;  ///< within the stored picture; pixels outside do not count
  PictureSize resized;
  PictureRectangle window;
  bool flip_horizontally = false;
  bool flip_vertically = false;
  std::vector<PixelChange> changes{};
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

/// The lowest and the highest amount of each change. They are made in a random order.
struct ColorJitter {
  using Range = std::array<double, 2>;
  Range brightness{1, 1};
  Range contrast{1, 1};
  Range saturation{1, 1};
  Range hue{0, 0};
};

struct RandomGrayscale {
  double probability = 0.1;
};

struct RandomErasing {
  double probability = 0.5;
  double scale_low = 0.02;  ///< of the picture's area
  double scale_high = 0.33;
  double ratio_low = 0.3;  ///< height to width
  double ratio_high = 3.3;
  std::array<std::uint8_t, 3> color{};
};

using PictureOperation =
    std::variant<RandomResizedCrop, ResizeShorterSide, Resize, CenterCrop, RandomCrop, RandomHorizontalFlip,
                 RandomVerticalFlip, ColorJitter, RandomGrayscale, RandomErasing>;

/// Operations that make views of pictures, all of one size. A value. Threads may share it.
class Augmentation {
 public:
  /// Throws InvalidArgument for sides outside of 1 to 65,535, wrong parameters, a second operation that
  /// resizes, one that crops or resizes after one that changes pixels, and operations whose results would
  /// differ in size.
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
