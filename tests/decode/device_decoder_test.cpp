#include "decode/pictures.hpp"

#include <penstock/core/error.hpp>
#include <penstock/device/device.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <random>

/// What the kernel makes of JPEGs that the device has decoded, beside what the host makes of them.
namespace penstock::test {
namespace {

std::string library(const std::string& name) {
  return std::filesystem::path(PENSTOCK_FAKE_DRIVER).replace_filename("lib" + name + ".so");
}

/// A view with a window of 33 x 21, within the resized crop or in part beside it.
PictureView random_view(PictureSize stored, std::mt19937& random) {
  const auto within = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  PictureView view;
  view.crop.width = within(1, stored.width);
  view.crop.height = within(1, stored.height);
  view.crop.left = within(0, stored.width - view.crop.width);
  view.crop.top = within(0, stored.height - view.crop.height);
  // The host decodes smaller what shrinks by four, and its bytes then differ by more.
  view.resized = {within(view.crop.width / 3 + 1, 90), within(view.crop.height / 3 + 1, 90)};
  view.window = {within(-10, 20), within(-10, 20), 33, 21};
  view.flip_horizontally = within(0, 1) == 1;
  view.flip_vertically = within(0, 1) == 1;
  return view;
}

JpegToRender request(const std::vector<std::byte>& file, PictureSize stored, const PictureView& view,
                     std::byte* destination) {
  return {file,
          stored.width,
          stored.height,
          view.crop.left,
          view.crop.top,
          view.crop.width,
          view.crop.height,
          view.resized.width,
          view.resized.height,
          view.window.left,
          view.window.top,
          view.flip_horizontally,
          view.flip_vertically,
          destination};
}

struct Style {
  std::string driver;
  bool channels_first = true;
  bool bicubic = false;
};

class DeviceDecoder : public ::testing::TestWithParam<Style> {};

TEST_P(DeviceDecoder, RendersAsTheHostDoes) {
  const auto& [driver, channels_first, bicubic] = GetParam();
#if defined(__SANITIZE_THREAD__)
  if (driver == "fake_cuda_own_kernels") GTEST_SKIP() << "waived: the thread sanitizer cannot follow fibers";
#endif
  constexpr std::size_t kBytes = 3 * 33 * 21;
  const Device device = Device::open("cuda:0", {.driver_library = library(driver)});
  std::string nvjpeg = driver;
  nvjpeg.replace(nvjpeg.find("cuda"), 4, "nvjpeg");
  const std::shared_ptr<JpegDecoder> decoder = device.make_jpeg_decoder({.pictures = 5,
                                                                         .lanes = 2,
                                                                         .width = 33,
                                                                         .height = 21,
                                                                         .channels_first = channels_first,
                                                                         .bicubic = bicubic,
                                                                         .libraries = {library(nvjpeg)}});
  EXPECT_EQ(decoder->name(), "nvJPEG 13.0, by its hardware engines");
  const Stream stream = device.create_stream();
  PictureDecoder host({.filter = bicubic ? ResizeFilter::bicubic : ResizeFilter::bilinear,
                       .layout = channels_first ? PixelLayout::chw : PixelLayout::hwc});
  auto* const to = static_cast<std::byte*>(device.allocate(5 * kBytes));
  auto* const back = static_cast<std::byte*>(device.allocate_host(5 * kBytes));
  std::mt19937 random(7);
  for (const std::size_t count : {5, 1, 3, 5}) {
    std::vector<std::vector<std::byte>> files;
    std::vector<PictureView> views;
    std::vector<JpegToRender> pictures;
    for (std::size_t i = 0; i < count; ++i) {
      const PictureSize size{40 + static_cast<int>(random() % 60), 30 + static_cast<int>(random() % 60)};
      files.push_back(
          jpeg_of(make_image(size, static_cast<unsigned>(i)),
                  {.components = i == 1 ? 1 : 3, .across = i == 2 ? 2 : 1, .down = i == 2 ? 2 : 1}));
      EXPECT_EQ(host.baseline_jpeg(files.back()), size);
      views.push_back(random_view(size, random));
    }
    for (std::size_t i = 0; i < count; ++i) {
      pictures.push_back(request(files[i], host.size(files[i]), views[i], to + i * kBytes));
    }
    EXPECT_TRUE(decoder->render(count % 2, pictures, stream).empty());
    stream.copy(back, to, count * kBytes, CopyDirection::d2h);
    stream.synchronize();
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<std::byte> expected(kBytes);
      host.decode(files[i], views[i], expected);
      int most = 0;
      for (std::size_t k = 0; k < kBytes; ++k) {
        most =
            std::max(most, std::abs(static_cast<int>(back[i * kBytes + k]) - static_cast<int>(expected[k])));
      }
      EXPECT_LE(most, 1) << "picture " << i << " of " << count;
    }
  }
  device.deallocate(to);
  device.deallocate_host(back);
}

INSTANTIATE_TEST_SUITE_P(Styles, DeviceDecoder,
                         ::testing::Values(Style{"fake_cuda"}, Style{"fake_cuda_own_kernels"},
                                           Style{"fake_cuda_own_kernels", false, true}));

TEST(BaselineJpegs, AreThoseOfOneScan) {
  PictureDecoder decoder;
  std::vector<std::string> baseline;
  for (const auto& [name, sample] : every_kind()) {
    if (decoder.baseline_jpeg(sample.file)) baseline.push_back(name);
  }
  EXPECT_EQ(baseline, (std::vector<std::string>{"jpeg_11", "jpeg_12", "jpeg_21", "jpeg_22", "jpeg_grey",
                                                "jpeg_restarts"}));
  const std::vector<std::byte> whole = jpeg_of(make_image({40, 30}, 1));
  EXPECT_FALSE(decoder.baseline_jpeg(std::span(whole).first(whole.size() - 40)));
}

}  // namespace
}  // namespace penstock::test
