#include <penstock/core/error.hpp>
#include <penstock/decode/augmentation.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

namespace penstock {
namespace {

constexpr PictureSize kStored{500, 375};

PictureView draw(std::vector<PictureOperation> operations, PictureSize stored, std::uint64_t sample = 0) {
  return Augmentation(std::move(operations)).draw(1, 2, sample, stored);
}

TEST(Augmentation, DrawsTheSameAlways) {
  const Augmentation augmentation(
      {RandomResizedCrop{{224, 224}}, RandomHorizontalFlip{}, RandomVerticalFlip{}});
  EXPECT_EQ(augmentation.size(), (PictureSize{224, 224}));
  const PictureView view = augmentation.draw(1, 2, 3, kStored);
  EXPECT_EQ(view, augmentation.draw(1, 2, 3, kStored));
  EXPECT_NE(view, augmentation.draw(2, 2, 3, kStored));
  EXPECT_NE(view, augmentation.draw(1, 3, 3, kStored));
  EXPECT_NE(view, augmentation.draw(1, 2, 4, kStored));
  EXPECT_NE(view.crop, augmentation.draw(2, 1, 3, kStored).crop) << "seed and epoch are not their sum";
  // Runs that are resumed with another version go on with the same numbers.
  EXPECT_EQ(view.crop, (PictureRectangle{22, 17, 392, 342}));
}

TEST(Augmentation, CropsAsLargeAsTorchvision) {
  const Augmentation augmentation(
      {RandomResizedCrop{{224, 224}}, RandomHorizontalFlip{}, RandomVerticalFlip{0.25}});
  constexpr int kDraws = 20'000;
  double area = 0;
  double log_ratio = 0;
  double left = 0;
  int flips = 0;
  int vertical_flips = 0;
  for (int i = 0; i < kDraws; ++i) {
    const PictureView view = augmentation.draw(7, 0, static_cast<std::uint64_t>(i), kStored);
    const PictureRectangle& crop = view.crop;
    ASSERT_TRUE(crop.left >= 0 && crop.top >= 0 && crop.left + crop.width <= 500 &&
                crop.top + crop.height <= 375);
    const double ratio = static_cast<double>(crop.width) / crop.height;
    ASSERT_GT(ratio, 0.73);
    ASSERT_LT(ratio, 1.36);
    area += crop.width * crop.height / (500.0 * 375) / kDraws;
    log_ratio += std::log(ratio) / kDraws;
    left += (crop.left + crop.width / 2.0) / 500 / kDraws;
    flips += view.flip_horizontally ? 1 : 0;
    vertical_flips += view.flip_vertically ? 1 : 0;
  }
  // torchvision 0.29.1, 200,000 draws.
  EXPECT_NEAR(area, 0.4339, 0.008);
  EXPECT_NEAR(log_ratio, 0.0308, 0.008);
  EXPECT_NEAR(left, 0.5, 0.005);
  EXPECT_NEAR(flips, kDraws / 2, 300);
  EXPECT_NEAR(vertical_flips, kDraws / 4, 300);
}

TEST(Augmentation, CropsTheMiddleIfNoCropFits) {
  EXPECT_EQ(draw({RandomResizedCrop{{8, 8}, 1, 1}}, {1000, 10}).crop, (PictureRectangle{493, 0, 13, 10}));
  EXPECT_EQ(draw({RandomResizedCrop{{8, 8}, 1, 1}}, {10, 1000}).crop, (PictureRectangle{0, 493, 10, 13}));
  EXPECT_EQ(draw({RandomResizedCrop{{8, 8}, 1, 1, 0.5, 0.5}}, {1, 1}).crop, (PictureRectangle{0, 0, 1, 1}));
}

TEST(Augmentation, ResizesAndCropsAsTorchvision) {
  const PictureView view = draw({ResizeShorterSide{256}, CenterCrop{{224, 224}}}, kStored);
  EXPECT_EQ(view.crop, (PictureRectangle{0, 0, 500, 375}));
  EXPECT_EQ(view.resized, (PictureSize{341, 256}));
  EXPECT_EQ(view.window, (PictureRectangle{58, 16, 224, 224})) << "58.5 is rounded to the even number";
  EXPECT_EQ(draw({ResizeShorterSide{256}, CenterCrop{{224, 224}}}, {375, 500}).resized,
            (PictureSize{256, 341}));
  EXPECT_EQ(draw({CenterCrop{{10, 10}}, Resize{{5, 7}}}, kStored).crop, (PictureRectangle{245, 182, 10, 10}));
  EXPECT_EQ(draw({CenterCrop{{11, 5}}}, {8, 8}).window, (PictureRectangle{-1, 2, 11, 5})) << "padding";
}

TEST(Augmentation, CropsWithPadding) {
  int lowest = 100;
  int highest = -100;
  for (std::uint64_t i = 0; i < 500; ++i) {
    const PictureRectangle window = draw({RandomCrop{{32, 32}, 4}}, {32, 32}, i).window;
    lowest = std::min({lowest, window.left, window.top});
    highest = std::max({highest, window.left, window.top});
  }
  EXPECT_EQ(lowest, -4);
  EXPECT_EQ(highest, 4);
  EXPECT_THROW(static_cast<void>(draw({RandomCrop{{33, 32}}}, {32, 32})), InvalidArgument);
}

TEST(Augmentation, SeesFlippedPicturesInLaterOperations) {
  const std::vector<PictureOperation> crop = {CenterCrop{{100, 101}}, CenterCrop{{51, 51}}};
  auto flipped = crop;
  flipped.insert(flipped.begin(), {RandomHorizontalFlip{1}, RandomVerticalFlip{1}});
  const PictureRectangle window = draw(crop, kStored).window;
  const PictureView view = draw(flipped, kStored);
  EXPECT_TRUE(view.flip_horizontally && view.flip_vertically);
  EXPECT_EQ(view.window, (PictureRectangle{500 - window.left - 51, 375 - window.top - 51, 51, 51}));
  EXPECT_FALSE(draw({CenterCrop{{5, 5}}, RandomHorizontalFlip{1}, RandomHorizontalFlip{1}}, kStored)
                   .flip_horizontally);
}

TEST(Augmentation, ErasesAreasAsLargeAsTorchvision) {
  const Augmentation augmentation({CenterCrop{{200, 224}}, RandomErasing{.color = {1, 2, 3}}});
  constexpr int kDraws = 20'000;
  int count = 0;
  double area = 0;
  double log_ratio = 0;
  double middle = 0;
  for (int i = 0; i < kDraws; ++i) {
    const PictureView view = augmentation.draw(7, 0, static_cast<std::uint64_t>(i), kStored);
    if (view.changes.empty()) continue;
    const auto& [kind, amount, erased, color] = view.changes.at(0);
    ASSERT_EQ(kind, PixelChange::Kind::erase);
    ASSERT_TRUE(erased.left >= 0 && erased.top >= 0 && erased.left + erased.width <= 200 &&
                erased.top + erased.height <= 224);
    ASSERT_EQ(color, (std::array<std::uint8_t, 3>{1, 2, 3}));
    ++count;
    area += erased.width * erased.height / (200.0 * 224);
    log_ratio += std::log(static_cast<double>(erased.height) / erased.width);
    middle += (erased.top + erased.height / 2.0) / 224;
  }
  // torchvision 0.29.1, 30,000 draws.
  EXPECT_NEAR(count, kDraws / 2, 300);
  EXPECT_NEAR(area / count, 0.1744, 0.003);
  EXPECT_NEAR(log_ratio / count, 0.004, 0.02);
  EXPECT_NEAR(middle / count, 0.5, 0.01);
}

TEST(Augmentation, DrawsColorsWithinTheirRanges) {
  const ColorJitter jitter{{0.6, 1.4}, {1, 1}, {0, 0.5}, {-0.1, 0.1}};
  const Augmentation augmentation({CenterCrop{{8, 8}}, jitter, RandomGrayscale{0.25}});
  constexpr int kDraws = 8000;
  using Kind = PixelChange::Kind;
  std::map<Kind, double> sums;
  std::map<std::vector<Kind>, int> orders;
  int grey = 0;
  for (int i = 0; i < kDraws; ++i) {
    std::vector<Kind> order;
    for (const PixelChange& change :
         augmentation.draw(1, 2, static_cast<std::uint64_t>(i), kStored).changes) {
      const auto& [kind, amount, area, color] = change;
      if (order.size() == 3) {
        EXPECT_EQ(std::pair(kind, amount), std::pair(Kind::saturation, 0.0));
        ++grey;
        continue;
      }
      order.push_back(kind);
      sums[kind] += amount;
      const auto [low, high] = kind == Kind::hue          ? jitter.hue
                               : kind == Kind::saturation ? jitter.saturation
                                                          : jitter.brightness;
      ASSERT_TRUE(amount >= low && amount <= high);
    }
    ++orders[order];
  }
  EXPECT_EQ(orders.size(), 6u) << "a contrast of 1 changes nothing";
  for (const auto& [order, count] : orders) EXPECT_NEAR(count, kDraws / 6, 150);
  EXPECT_NEAR(sums[Kind::brightness] / kDraws, 1, 0.01);
  EXPECT_NEAR(sums[Kind::saturation] / kDraws, 0.25, 0.01);
  EXPECT_NEAR(sums[Kind::hue] / kDraws, 0, 0.003);
  EXPECT_NEAR(grey, kDraws / 4, 150);
}

TEST(Augmentation, RefusesWhatMakesNoBatch) {
  const std::vector<std::vector<PictureOperation>> wrong = {
      {},
      {ResizeShorterSide{256}},
      {CenterCrop{{5, 5}}, ResizeShorterSide{256}},
      {Resize{{5, 5}}, RandomResizedCrop{{5, 5}}},
      {Resize{{5, 0}}},
      {Resize{{65'536, 5}}},
      {RandomResizedCrop{{5, 5}, 0}},
      {RandomResizedCrop{{5, 5}, 0.5, 0.4}},
      {RandomResizedCrop{{5, 5}, 0.5, 1.1}},
      {RandomResizedCrop{{5, 5}, 0.5, 1, 2, 1}},
      {RandomCrop{{5, 5}, -1}},
      {Resize{{5, 5}}, RandomHorizontalFlip{1.5}},
      {Resize{{5, 5}}, RandomVerticalFlip{-0.1}},
      {ColorJitter{}, Resize{{5, 5}}},
      {RandomErasing{}, ResizeShorterSide{5}, CenterCrop{{5, 5}}},
      {Resize{{5, 5}}, RandomGrayscale{2}},
      {Resize{{5, 5}}, RandomErasing{0.5, -0.1}},
      {Resize{{5, 5}}, RandomErasing{0.5, 0, 0.3, 0}},
      {Resize{{5, 5}}, ColorJitter{{-0.1, 1}}},
      {Resize{{5, 5}}, ColorJitter{.saturation = {2, 1}}},
      {Resize{{5, 5}}, ColorJitter{.hue = {0, 0.6}}}};
  for (std::size_t i = 0; i < wrong.size(); ++i) EXPECT_THROW(Augmentation{wrong[i]}, InvalidArgument) << i;
  EXPECT_THROW(static_cast<void>(draw({CenterCrop{{9, 9}}, Resize{{5, 5}}}, {8, 8})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(draw({Resize{{5, 5}}}, {8, 0})), InvalidArgument);
}

}  // namespace
}  // namespace penstock
