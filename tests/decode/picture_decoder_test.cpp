#include "decode/pictures.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

namespace penstock {
namespace {

using test::Image;

std::string error_of(std::span<const std::byte> file,
                     std::uint64_t maximum_pixels = PictureDecoder::kMaximumPixels) {
  PictureDecoder decoder({}, maximum_pixels);
  try {
    test::decode(decoder, file, whole_picture(decoder.size(file)));
    return "";
  } catch (const PictureError& error) {
    return error.what();
  }
}

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

PictureRectangle random_part(PictureSize size, std::mt19937& random) {
  const auto up_to = [&](int last) { return std::uniform_int_distribution(0, last)(random); };
  const int width = 1 + up_to(size.width - 1);
  const int height = 1 + up_to(size.height - 1);
  return {up_to(size.width - width), up_to(size.height - height), width, height};
}

class EveryKind : public ::testing::TestWithParam<std::string> {
 protected:
  const std::vector<std::byte>& file_ = test::every_kind().at(GetParam()).file;
  const Image& whole_ = test::every_kind().at(GetParam()).image;
  PictureDecoder decoder_;
};

TEST_P(EveryKind, HasTheColoursOfItsLibrary) {
  EXPECT_EQ(decoder_.size(file_), whole_.size);
  EXPECT_EQ(test::decode(decoder_, file_, whole_picture(whole_.size)).pixels, whole_.pixels);
}

TEST_P(EveryKind, IsDecodedInPartsAsInWhole) {
  std::mt19937 random(3);
  for (int i = 0; i < 100; ++i) {
    const PictureRectangle crop = random_part(whole_.size, random);
    const PictureView view{crop, {crop.width, crop.height}, {0, 0, crop.width, crop.height}};
    const Image part = test::decode(decoder_, file_, view);
    ASSERT_EQ(part.pixels, test::plain_view(whole_, view).pixels)
        << crop.width << "x" << crop.height << " at " << crop.left << ", " << crop.top;
  }
}

TEST_P(EveryKind, ResizesItsCrop) {
  std::mt19937 random(4);
  for (int i = 0; i < 6; ++i) {
    const PictureRectangle crop = random_part(whole_.size, random);
    const PictureSize resized{crop.width / 2 + 1 + i * 9, crop.height / 2 + 1 + i * 7};
    const PictureView view{crop, resized, {0, 0, resized.width, resized.height}, i % 2 == 0, i % 3 == 0};
    const test::Difference found =
        test::difference(test::decode(decoder_, file_, view), test::plain_view(whole_, view));
    EXPECT_LE(found.most, 1);
    EXPECT_LE(found.part, 0.05);
  }
}

TEST_P(EveryKind, IsRefusedIfItIsCutWhateverTheView) {
  std::vector<std::byte> target(3);
  const PictureView corner{{0, 0, 1, 1}, {1, 1}, {0, 0, 1, 1}};
  for (std::size_t i = 0; i < 100; ++i) {
    const auto cut = std::span(file_).first(file_.size() * i / 100);
    EXPECT_THROW(decoder_.decode(cut, corner, target), PictureError) << cut.size() << " of " << file_.size();
  }
  EXPECT_THROW(decoder_.decode(std::span(file_).first(file_.size() - 3), corner, target), PictureError);
  decoder_.decode(file_, corner, target);
}

TEST_P(EveryKind, EndsWithAnErrorOrAPictureIfBitsAreFlipped) {
  std::mt19937 random(6);
  for (int i = 0; i < 300; ++i) {
    std::vector<std::byte> file = file_;
    for (int flips = 1 + i % 3; flips > 0; --flips)
      file[random() % file.size()] ^= std::byte{1} << (random() % 8);
    const std::string error = error_of(file, 1 << 17);
    EXPECT_TRUE(error.empty() || error.ends_with(".")) << error;
  }
}

INSTANTIATE_TEST_SUITE_P(Pictures, EveryKind, ::testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const auto& [name, file] : test::every_kind()) names.push_back(name);
                           return names;
                         }()),
                         [](const auto& tested) { return tested.param; });

TEST(PictureDecoder, RendersWindowsAndLayoutsAndFilters) {
  const Image image = test::make_image({90, 70}, 1);
  const auto pixels = std::as_bytes(std::span(image.pixels));
  std::mt19937 random(2);
  for (int i = 0; i < 40; ++i) {
    const ResizeFilter filter = i % 2 == 0 ? ResizeFilter::bilinear : ResizeFilter::bicubic;
    const PictureRectangle crop = random_part(image.size, random);
    const PictureSize resized{1 + static_cast<int>(random() % 120), 1 + static_cast<int>(random() % 120)};
    const auto place = [&] { return static_cast<int>(random() % 60) - 20; };
    const PictureView view{crop, resized, {place(), place(), 1 + i, 41 - i}, i % 4 < 2, i % 8 < 4};
    const Image expected = test::plain_view(image, view, filter);
    Image rows = expected;
    PictureDecoder({filter, PixelLayout::hwc})
        .render(pixels, image.size, view, std::as_writable_bytes(std::span(rows.pixels)));
    EXPECT_LE(test::difference(rows, expected).most, 1);
    EXPECT_LE(test::difference(rows, expected).part, 0.03);
    std::vector<std::uint8_t> planes(rows.pixels.size(), 0xA5);
    PictureDecoder({filter, PixelLayout::chw})
        .render(pixels, image.size, view, std::as_writable_bytes(std::span(planes)));
    for (std::size_t p = 0; p < planes.size(); ++p) {
      ASSERT_EQ(planes[p], rows.pixels[p % (planes.size() / 3) * 3 + p / (planes.size() / 3)]) << p;
    }
  }
}

TEST(PictureDecoder, DecodesAJpegThatShrinksSmaller) {
  const Image stored = test::make_image({640, 480}, 3);
  PictureDecoder decoder;
  for (const int across : {1, 2}) {
    const auto file = test::jpeg_of(stored, {.across = across, .down = across});
    const Image whole = test::decode(decoder, file, whole_picture(stored.size));
    for (const int by : {4, 5, 9, 17}) {
      const PictureSize size{501 / by, 401 / by};
      const PictureView view{{77, 33, 501, 401}, size, {0, 0, size.width, size.height}};
      const test::Difference found =
          test::difference(test::decode(decoder, file, view), test::plain_view(whole, view));
      EXPECT_LE(found.most, 16) << by;
      EXPECT_GT(found.most, 1) << "it was decoded as a whole";
    }
  }
}

TEST(PictureDecoder, NamesWhatItDoesNotDecode) {
  const std::pair<std::string, std::string> refused[] = {
      {"", "empty"},
      {"GIF89a...", "a GIF"},
      {"BM......", "a BMP"},
      {std::string("II*\0....", 8), "a TIFF"},
      {std::string("\0\0\0\x20"
                   "ftypavif",
                   12),
       "an AVIF"},
      {"<!DOCTYPE html>", "a web page"},
      {"This is text.", "no picture"},
      {"\xFF\xD8", "no picture"},
      {"version https://git-lfs.github.com/spec/v1", "git lfs pull"}};
  for (const auto& [content, reason] : refused)
    EXPECT_THAT(error_of(bytes_of(content)), ::testing::HasSubstr(reason));
  EXPECT_EQ(picture_format(bytes_of("GIF89a")), PictureFormat::other);
  EXPECT_EQ(picture_format(test::every_kind().at("jpeg_22").file), PictureFormat::jpeg);
  EXPECT_EQ(picture_format(test::every_kind().at("webp").file), PictureFormat::webp);
}

TEST(PictureDecoder, ReadsOverWhatIsNoneOfAJpegsPixels) {
  const auto& [jpeg, image] = test::every_kind().at("jpeg_22");
  std::string segments =
      std::string("\xFF\xE1\0\x10", 4) + "Exif broken\xFF\xD9.";  // with the end of a thumbnail
  for (int i = 0; i < 300; ++i) segments += "\xFF\xFE\xFF\xFF" + std::string(65'533, 'c');
  auto file = jpeg;
  const auto inserted = bytes_of(segments);
  file.insert(file.begin() + 2, inserted.begin(), inserted.end());
  PictureDecoder decoder;
  std::vector<std::byte> cut(file.begin(), file.end() - 100);
  EXPECT_THROW(static_cast<void>(decoder.size(cut)), PictureError)
      << "the thumbnail's end is not the picture's";
  file.insert(file.end(), 1000, std::byte{0x20});
  EXPECT_EQ(test::decode(decoder, file, whole_picture(image.size)).pixels, image.pixels);
}

/// With another size in its header.
std::vector<std::byte> with_size(std::vector<std::byte> jpeg, unsigned height, unsigned width) {
  for (std::size_t i = 0; i + 9 < jpeg.size(); ++i) {
    if (jpeg[i] != std::byte{0xFF} || jpeg[i + 1] != std::byte{0xC0}) continue;
    for (const auto& [at, side] : {std::pair{i + 5, height}, {i + 7, width}}) {
      jpeg[at] = static_cast<std::byte>(side >> 8);
      jpeg[at + 1] = static_cast<std::byte>(side);
    }
    return jpeg;
  }
  throw std::invalid_argument("no frame");
}

TEST(PictureDecoder, RefusesSizesThatLie) {
  const auto& jpeg = test::every_kind().at("jpeg_22").file;
  EXPECT_THAT(error_of(with_size(jpeg, 65'500, 65'500)),
              ::testing::HasSubstr("65500x65500 has more than 178956970 pixels"));
  EXPECT_THAT(error_of(with_size(jpeg, 0, 131)), ::testing::HasSubstr("The JPEG is damaged"));
  EXPECT_THAT(error_of(with_size(jpeg, 940, 131)), ::testing::HasSubstr("The JPEG is damaged"))
      << "fewer rows than stated";
  PictureDecoder small({}, 131 * 94 - 1);
  EXPECT_THROW(static_cast<void>(small.size(jpeg)), PictureError);
  PictureDecoder exact({}, 131 * 94);
  EXPECT_EQ(exact.size(jpeg), (PictureSize{131, 94}));
}

TEST(PictureDecoder, RefusesAJpegWithThousandsOfScans) {
  const auto& file = test::every_kind().at("jpeg_three_scans").file;
  std::vector<std::size_t> scans;
  for (std::size_t i = 0; i + 1 < file.size(); ++i) {
    if (file[i] == std::byte{0xFF} && file[i + 1] == std::byte{0xDA}) scans.push_back(i);
  }
  ASSERT_EQ(scans.size(), 3u);
  const std::vector<std::byte> scan(file.begin() + static_cast<std::ptrdiff_t>(scans[0]),
                                    file.begin() + static_cast<std::ptrdiff_t>(scans[1]));
  auto bomb = file;
  for (int i = 0; i < 600; ++i)
    bomb.insert(bomb.begin() + static_cast<std::ptrdiff_t>(scans[0]), scan.begin(), scan.end());
  EXPECT_THAT(error_of(bomb), ::testing::HasSubstr("more than 500 scans"));
}

TEST(PictureDecoder, RefusesViewsThatDoNotFit) {
  const auto& file = test::every_kind().at("jpeg_22").file;
  PictureDecoder decoder;
  std::vector<std::byte> target(12);
  const PictureView right{{0, 0, 131, 94}, {2, 2}, {0, 0, 2, 2}};
  const auto refuse = [&](auto change, std::size_t bytes) {
    PictureView view = right;
    change(view);
    EXPECT_THROW(decoder.decode(file, view, std::span(target).first(bytes)), InvalidArgument);
  };
  decoder.decode(file, right, target);
  refuse([](PictureView&) {}, 11);
  refuse([](PictureView& view) { view.crop.left = 1; }, 12);
  refuse([](PictureView& view) { view.crop.top = -1; }, 12);
  refuse([](PictureView& view) { view.crop.height = 95; }, 12);
  refuse([](PictureView& view) { view.crop.width = 0; }, 12);
  refuse([](PictureView& view) { view.resized.width = 0; }, 12);
  refuse([](PictureView& view) { view.window.height = 0; }, 0);
  const std::vector<std::byte> pixels(11);
  EXPECT_THROW(decoder.render(pixels, {2, 2}, right, target), InvalidArgument);
}

TEST(PictureDecoder, KnowsTheJpegsThatEveryDecoderTakes) {
  PictureDecoder decoder;
  std::vector<std::string> baseline;
  for (const auto& [name, sample] : test::every_kind()) {
    if (decoder.baseline_jpeg(sample.file)) baseline.push_back(name);
  }
  EXPECT_EQ(baseline, (std::vector<std::string>{"jpeg_11", "jpeg_12", "jpeg_21", "jpeg_22", "jpeg_grey",
                                                "jpeg_restarts"}));
  const std::vector<std::byte> whole = test::jpeg_of(test::make_image({40, 30}, 1));
  EXPECT_EQ(decoder.baseline_jpeg(whole), (PictureSize{40, 30}));
  EXPECT_FALSE(decoder.baseline_jpeg(std::span(whole).first(whole.size() - 40)));
}

}  // namespace
}  // namespace penstock
