#ifdef PENSTOCK_HAS_PNG

#include "decode/format_decoder.hpp"

#include <fmt/format.h>
#include <spng.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace penstock {

namespace {

void check(int error) {
  if (error != 0 && error != SPNG_EOI)
    throw PictureError(fmt::format("The PNG is damaged: {}.", spng_strerror(error)));
}

/// Grey of 16 bits becomes colours as in Pillow, which has all from 255 on white.
void saturate(std::uint8_t* row, std::size_t width) {
  for (std::size_t x = width; x-- > 0;) {
    std::uint16_t grey = 0;
    std::memcpy(&grey, row + 2 * x, sizeof(grey));
    std::memset(row + 4 * x, std::min<int>(grey, 255), 4);
  }
}

constexpr std::size_t kMaximumChunkBytes = std::size_t{16} << 20;

class PngDecoder final : public FormatDecoder {
 public:
  PictureSize open(std::span<const std::byte> file) override {
    png_.reset(spng_ctx_new(0));
    if (!png_) throw OutOfMemory("host memory", sizeof(spng_ihdr), 0, 0);
    // Packed texts and profiles can be bombs: the library unpacks them, too.
    check(spng_set_chunk_limits(png_.get(), kMaximumChunkBytes, kMaximumChunkBytes));
    check(spng_set_png_buffer(png_.get(), file.data(), file.size()));
    check(spng_get_ihdr(png_.get(), &header_));
    if (text_of(file).rfind("IEND\xAE\x42\x60\x82") == std::string_view::npos) throw_truncated();
    return {static_cast<int>(header_.width), static_cast<int>(header_.height)};
  }

  void render(const PictureView& view, Resampler& resampler, std::span<std::byte> target) override {
    resampler.begin(view, 1, target);
    const PictureRectangle needed = resampler.needed();
    if (needed.height == 0) return;
    const std::size_t row_bytes = std::size_t{4} * header_.width;
    const bool is_deep_grey = header_.color_type == SPNG_COLOR_TYPE_GRAYSCALE && header_.bit_depth == 16;
    const std::size_t decoded_bytes = is_deep_grey ? row_bytes / 2 : row_bytes;
    const bool is_interlaced = header_.interlace_method != SPNG_INTERLACE_NONE;
    rows_.resize(row_bytes * (is_interlaced ? header_.height : 1) + Resampler::kSlack);
    check(spng_decode_image(png_.get(), nullptr, 0, is_deep_grey ? SPNG_FMT_PNG : SPNG_FMT_RGBA8,
                            SPNG_DECODE_PROGRESSIVE));
    if (is_interlaced) read_interlaced(row_bytes, decoded_bytes);
    for (int y = 0; y < needed.top + needed.height; ++y) {
      std::uint8_t* row = rows_.data() + (is_interlaced ? static_cast<std::size_t>(y) * row_bytes : 0);
      if (!is_interlaced) check(spng_decode_row(png_.get(), row, decoded_bytes));
      if (is_deep_grey) saturate(row, header_.width);
      if (y >= needed.top) resampler.add_row(row + 4 * needed.left);
    }
  }

 private:
  struct Free {
    void operator()(spng_ctx* png) const noexcept { spng_ctx_free(png); }
  };

  /// The rows of an interlaced picture come several times, with other pixels each.
  void read_interlaced(std::size_t row_bytes, std::size_t decoded_bytes) {
    for (;;) {
      spng_row_info row{};
      const int error = spng_get_row_info(png_.get(), &row);
      if (error == SPNG_EOI) return;
      check(error);
      check(spng_decode_row(png_.get(), rows_.data() + row.row_num * row_bytes, decoded_bytes));
    }
  }

  std::unique_ptr<spng_ctx, Free> png_;
  spng_ihdr header_{};
  std::vector<std::uint8_t> rows_;
};

}  // namespace

std::unique_ptr<FormatDecoder> make_png_decoder() { return std::make_unique<PngDecoder>(); }

}  // namespace penstock

#endif
