#include "core/shared/splitmix.hpp"

#include <penstock/core/error.hpp>
#include <penstock/decode/augmentation.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace penstock {

namespace {

constexpr int kMaximumSide = 65'535;

/// Random numbers of one operation on one sample.
class Draws {
 public:
  Draws(std::uint64_t seed, std::uint64_t epoch, std::uint64_t sample, std::uint64_t operation)
      : state_(seed) {
    for (const std::uint64_t part : {epoch, sample, operation}) state_ = splitmix(state_) ^ part;
    state_ = splitmix(state_);
  }

  double uniform(double low, double high) {
    return low + (high - low) * static_cast<double>(splitmix(state_) >> 11) * 0x1p-53;
  }

  bool chance(double probability) { return uniform(0, 1) < probability; }

  /// One of 0 to `last`.
  int up_to(int last) {
    return static_cast<int>(((splitmix(state_) >> 32) * (std::uint64_t(last) + 1)) >> 32);
  }

 private:
  std::uint64_t state_;
};

/// As Python's round() does it.
int rounded(double value) { return static_cast<int>(std::nearbyint(value)); }

/// Makes `part` of the current window the window. Operations see pictures as flipped already.
void cut(PictureView& view, PictureRectangle part) {
  PictureRectangle& window = view.window;
  if (view.flip_horizontally) part.left = window.width - part.left - part.width;
  if (view.flip_vertically) part.top = window.height - part.top - part.height;
  window = {window.left + part.left, window.top + part.top, part.width, part.height};
}

/// The window becomes the crop.
void resize(PictureView& view, PictureSize size) {
  const PictureRectangle& window = view.window;
  if (window.left < 0 || window.top < 0 || window.left + window.width > view.crop.width ||
      window.top + window.height > view.crop.height) {
    throw InvalidArgument(fmt::format(
        "A picture of {}x{} is smaller than the crop of {}x{} that is then resized. Resize first.",
        view.crop.width, view.crop.height, window.width, window.height));
  }
  view.crop = window;
  view.resized = size;
  view.window = {0, 0, size.width, size.height};
}

PictureRectangle centered(PictureSize outer, PictureSize inner) {
  const auto begin = [](int whole, int part) {
    return part > whole ? -((part - whole) / 2) : rounded((whole - part) / 2.0);
  };
  return {begin(outer.width, inner.width), begin(outer.height, inner.height), inner.width, inner.height};
}

PictureSize size_of(const PictureRectangle& rectangle) { return {rectangle.width, rectangle.height}; }

/// The largest crop in the middle with a ratio that is allowed.
PictureRectangle fallback(const RandomResizedCrop& operation, PictureSize whole) {
  const double ratio = static_cast<double>(whole.width) / whole.height;
  PictureSize size = whole;
  if (ratio < operation.ratio_low) size.height = rounded(whole.width / operation.ratio_low);
  if (ratio > operation.ratio_high) size.width = rounded(whole.height * operation.ratio_high);
  size = {std::clamp(size.width, 1, whole.width), std::clamp(size.height, 1, whole.height)};
  return {(whole.width - size.width) / 2, (whole.height - size.height) / 2, size.width, size.height};
}

/// Two sides, the first of which is larger by the ratio.
template <typename Operation>
std::pair<double, double> random_sides(const Operation& operation, PictureSize whole, Draws& draws) {
  const double area = static_cast<double>(whole.width) * whole.height;
  const double target = area * draws.uniform(operation.scale_low, operation.scale_high);
  const double ratio = std::exp(draws.uniform(std::log(operation.ratio_low), std::log(operation.ratio_high)));
  return {std::nearbyint(std::sqrt(target * ratio)), std::nearbyint(std::sqrt(target / ratio))};
}

PictureRectangle random_crop(const RandomResizedCrop& operation, PictureSize whole, Draws& draws) {
  for (int attempt = 0; attempt < 10; ++attempt) {
    const auto [width, height] = random_sides(operation, whole, draws);
    if (width < 1 || height < 1 || width > whole.width || height > whole.height) continue;
    const PictureSize size{static_cast<int>(width), static_cast<int>(height)};
    const int top = draws.up_to(whole.height - size.height);
    return {draws.up_to(whole.width - size.width), top, size.width, size.height};
  }
  return fallback(operation, whole);
}

void apply(const RandomResizedCrop& operation, PictureView& view, Draws& draws) {
  cut(view, random_crop(operation, size_of(view.window), draws));
  resize(view, operation.size);
}

void apply(const ResizeShorterSide& operation, PictureView& view, Draws&) {
  const PictureSize size = size_of(view.window);
  const auto longer = [&](int whole, int shorter) {
    const double side = static_cast<double>(operation.shorter_side) * whole / shorter;
    return static_cast<int>(std::clamp(side, 1.0, 0x1p30));
  };
  resize(view, size.width <= size.height
                   ? PictureSize{operation.shorter_side, longer(size.height, size.width)}
                   : PictureSize{longer(size.width, size.height), operation.shorter_side});
}

void apply(const Resize& operation, PictureView& view, Draws&) { resize(view, operation.size); }

void apply(const CenterCrop& operation, PictureView& view, Draws&) {
  cut(view, centered(size_of(view.window), operation.size));
}

void apply(const RandomCrop& operation, PictureView& view, Draws& draws) {
  const PictureSize free{view.window.width + 2 * operation.padding - operation.size.width,
                         view.window.height + 2 * operation.padding - operation.size.height};
  if (free.width < 0 || free.height < 0) {
    throw InvalidArgument(
        fmt::format("A random crop of {}x{} is larger than a picture of {}x{} with {} pixels of padding. "
                    "Resize first, or give more padding.",
                    operation.size.width, operation.size.height, view.window.width, view.window.height,
                    operation.padding));
  }
  const int top = draws.up_to(free.height) - operation.padding;
  cut(view, {draws.up_to(free.width) - operation.padding, top, operation.size.width, operation.size.height});
}

void apply(const RandomHorizontalFlip& operation, PictureView& view, Draws& draws) {
  if (draws.chance(operation.probability)) view.flip_horizontally = !view.flip_horizontally;
}

void apply(const RandomVerticalFlip& operation, PictureView& view, Draws& draws) {
  if (draws.chance(operation.probability)) view.flip_vertically = !view.flip_vertically;
}

void apply(const ColorJitter& operation, PictureView& view, Draws& draws) {
  using enum PixelChange::Kind;
  std::array<PixelChange, 4> changes{{{brightness}, {contrast}, {saturation}, {hue}}};
  const std::array ranges{operation.brightness, operation.contrast, operation.saturation, operation.hue};
  for (std::size_t i = 0; i < changes.size(); ++i)
    changes[i].amount = draws.uniform(ranges[i][0], ranges[i][1]);
  for (int i = 3; i > 0; --i) std::iter_swap(changes.begin() + i, changes.begin() + draws.up_to(i));
  for (const PixelChange& change : changes) {
    if (change.amount != (change.kind == hue ? 0 : 1)) view.changes.push_back(change);
  }
}

void apply(const RandomGrayscale& operation, PictureView& view, Draws& draws) {
  if (draws.chance(operation.probability)) view.changes.push_back({PixelChange::Kind::saturation, 0});
}

void apply(const RandomErasing& operation, PictureView& view, Draws& draws) {
  if (!draws.chance(operation.probability)) return;
  const PictureSize whole = size_of(view.window);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const auto [height, width] = random_sides(operation, whole, draws);
    if (height >= whole.height || width >= whole.width) continue;
    const PictureSize size{static_cast<int>(width), static_cast<int>(height)};
    const int top = draws.up_to(whole.height - size.height);
    const PictureRectangle area{draws.up_to(whole.width - size.width), top, size.width, size.height};
    view.changes.push_back({.kind = PixelChange::Kind::erase, .area = area, .color = operation.color});
    return;
  }
}

void check(bool right, const char* what, double value) {
  if (!right) throw InvalidArgument(fmt::format("{}, not {}.", what, value));
}

void check_sides(PictureSize size) {
  for (const int side : {size.width, size.height}) {
    check(side >= 1 && side <= kMaximumSide, "The sides of an augmented picture are 1 to 65,535 pixels",
          side);
  }
}

template <typename Operation>
void check(const Operation& operation) {
  if constexpr (requires { operation.size; }) check_sides(operation.size);
  if constexpr (requires { operation.shorter_side; })
    check_sides({operation.shorter_side, operation.shorter_side});
  if constexpr (requires { operation.padding; }) {
    check(operation.padding >= 0 && operation.padding <= kMaximumSide, "Padding is 0 to 65,535 pixels",
          operation.padding);
  }
  if constexpr (requires { operation.probability; }) {
    check(operation.probability >= 0 && operation.probability <= 1,
          "The probability of an operation is 0 to 1", operation.probability);
  }
  if constexpr (requires { operation.scale_low; }) {
    const double lowest = std::is_same_v<Operation, RandomErasing> ? 0 : std::numeric_limits<double>::min();
    check(operation.scale_low >= lowest && operation.scale_low <= operation.scale_high,
          "The smallest part of a crop is above 0, that to erase may be 0, and it is at most the largest",
          operation.scale_low);
    check(operation.scale_high <= 1, "The largest part of a crop, or to erase, is at most 1",
          operation.scale_high);
    check(operation.ratio_low > 0 && operation.ratio_low <= operation.ratio_high &&
              std::isfinite(operation.ratio_high),
          "The smallest ratio of sides is above 0 and at most the largest", operation.ratio_low);
  }
  if constexpr (std::is_same_v<Operation, ColorJitter>) {
    for (const auto& [low, high] : {operation.brightness, operation.contrast, operation.saturation}) {
      check(low >= 0 && low <= high && std::isfinite(high),
            "The lowest factor of a ColorJitter is 0 or more and at most the highest", low);
    }
    const auto& [low, high] = operation.hue;
    check(low >= -0.5 && low <= high && high <= 0.5,
          "The hue of a ColorJitter turns by -0.5 to 0.5 of the circle, the lowest first", low);
  }
}

template <typename Operation>
constexpr bool kFlips =
    std::is_same_v<Operation, RandomHorizontalFlip> || std::is_same_v<Operation, RandomVerticalFlip>;

template <typename Operation>
constexpr bool kResizes = std::is_same_v<Operation, RandomResizedCrop> ||
                          std::is_same_v<Operation, ResizeShorterSide> || std::is_same_v<Operation, Resize>;

}  // namespace

PictureView whole_picture(PictureSize stored) {
  const PictureRectangle whole{0, 0, stored.width, stored.height};
  return {.crop = whole, .resized = stored, .window = whole};
}

Augmentation::Augmentation(std::vector<PictureOperation> operations) : operations_(std::move(operations)) {
  int resizing = 0;
  bool changes = false;
  const auto add = [&]<typename Operation>(const Operation& operation) {
    check(operation);
    constexpr bool cuts = kResizes<Operation> || requires { operation.size; };
    if (changes && cuts) {
      throw InvalidArgument(
          "Colors are changed, and areas erased, in pictures of the final size: put what crops or resizes "
          "before them.");
    }
    changes = changes || !(cuts || kFlips<Operation>);
    resizing += kResizes<Operation> ? 1 : 0;
    if constexpr (std::is_same_v<Operation, ResizeShorterSide>) size_ = {};
    if constexpr (requires { operation.size; }) size_ = operation.size;
  };
  for (const PictureOperation& operation : operations_) std::visit(add, operation);
  if (resizing > 1) {
    throw InvalidArgument("An augmentation resizes once: leave all but one resizing operation out.");
  }
  if (size_ == PictureSize{}) {
    throw InvalidArgument(
        "The augmented pictures would differ in size, and a batch needs one size: add a CenterCrop.");
  }
}

PictureView Augmentation::draw(std::uint64_t seed, std::uint64_t epoch, std::uint64_t sample,
                               PictureSize stored) const {
  check(stored.width >= 1, "A picture has a width of 1 or more", stored.width);
  check(stored.height >= 1, "A picture has a height of 1 or more", stored.height);
  PictureView view = whole_picture(stored);
  for (std::size_t i = 0; i < operations_.size(); ++i) {
    Draws draws(seed, epoch, sample, i);
    std::visit([&](const auto& operation) { apply(operation, view, draws); }, operations_[i]);
  }
  return view;
}

}  // namespace penstock
