#ifdef PENSTOCK_HAS_WEBP

#include "decode/format_decoder.hpp"

#include <fmt/format.h>
#include <webp/decode.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace penstock {

namespace {

void check(VP8StatusCode status) {
  if (status == VP8_STATUS_OK) return;
  throw PictureError(fmt::format("The WebP is damaged: libwebp's status is {}.", static_cast<int>(status)));
}

/// What the file says of its length.
std::size_t stated_bytes(std::span<const std::byte> file) {
  std::uint32_t bytes = 0;
  std::memcpy(&bytes, file.data() + 4, sizeof(bytes));
  return std::size_t{bytes} + 8;
}

class WebpDecoder final : public FormatDecoder {
 public:
  PictureSize open(std::span<const std::byte> file) override {
    file_ = file;
    WebPBitstreamFeatures features;
    check(WebPGetFeatures(data(), file.size(), &features));
    if (features.has_animation != 0) {
      throw PictureError("The WebP is an animation. Save its first picture as a file of its own.");
    }
    if (stated_bytes(file) > file.size()) throw_truncated();
    return size_ = {features.width, features.height};
  }

  void render(const PictureView& view, Resampler& resampler, std::span<std::byte> target) override {
    resampler.begin(view, 1, target);
    const PictureRectangle needed = resampler.needed();
    if (needed.height == 0) return;
    const int left = std::max(needed.left - kMargin, 0) & ~1;  // libwebp crops at even places
    const int top = std::max(needed.top - kMargin, 0) & ~1;
    WebPDecoderConfig config;
    WebPInitDecoderConfig(&config);
    config.options.use_cropping = 1;
    config.options.crop_left = left;
    config.options.crop_top = top;
    config.options.crop_width = std::min(needed.left + needed.width + kMargin, size_.width) - left;
    config.options.crop_height = std::min(needed.top + needed.height + kMargin, size_.height) - top;
    const std::size_t row_bytes = 4 * static_cast<std::size_t>(config.options.crop_width);
    const std::size_t bytes = row_bytes * static_cast<std::size_t>(config.options.crop_height);
    pixels_.resize(bytes + Resampler::kSlack);
    config.output.colorspace = MODE_RGBA;
    config.output.is_external_memory = 1;
    config.output.u.RGBA = {pixels_.data(), static_cast<int>(row_bytes), bytes};
    check(WebPDecode(data(), file_.size(), &config));
    const std::uint8_t* first =
        pixels_.data() + static_cast<std::size_t>(needed.top - top) * row_bytes + 4 * (needed.left - left);
    for (int y = 0; y < needed.height; ++y)
      resampler.add_row(first + static_cast<std::size_t>(y) * row_bytes);
  }

 private:
  // Around the crop, so that chroma at its edges is upsampled from the same samples as in the whole picture.
  static constexpr int kMargin = 2;

  [[nodiscard]] const std::uint8_t* data() const {
    return reinterpret_cast<const std::uint8_t*>(file_.data());
  }

  std::span<const std::byte> file_;
  PictureSize size_;
  std::vector<std::uint8_t> pixels_;
};

}  // namespace

std::unique_ptr<FormatDecoder> make_webp_decoder() { return std::make_unique<WebpDecoder>(); }

}  // namespace penstock

#endif
