#ifdef PENSTOCK_HAS_JPEG

#include "decode/format_decoder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

// clang-format off: each needs what is before it, <cstdio> first
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

namespace penstock {

namespace {

// A picture has some ten. A small file can hold thousands, each of which costs as much as the picture.
constexpr int kMaximumScans = 500;

struct Errors {
  jpeg_error_mgr manager;  // first, as libjpeg only knows it
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void jump(Errors& errors) { std::longjmp(errors.jump, 1); }

[[noreturn]] void fail(j_common_ptr jpeg) {
  auto& errors = *reinterpret_cast<Errors*>(jpeg->err);
  errors.manager.format_message(jpeg, errors.message);
  jump(errors);
}

/// After other warnings, libjpeg makes pixels up.
bool keeps_pixels(int warning) {
  switch (warning) {
    case JWRN_ADOBE_XFORM:
    case JWRN_BOGUS_PROGRESSION:
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_JFIF_MAJOR:
    case JWRN_TOO_MUCH_DATA:
      return true;
    default:
      return false;
  }
}

void take_message(j_common_ptr jpeg, int level) {
  if (level < 0 && !keeps_pixels(jpeg->err->msg_code)) fail(jpeg);
}

void count_scans(j_common_ptr jpeg) {
  if (reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number <= kMaximumScans) return;
  auto& errors = *reinterpret_cast<Errors*>(jpeg->err);
  std::strcpy(errors.message, "It has more than 500 scans");
  jump(errors);
}

/// How much smaller the picture is decoded. The decoder's way to shrink is coarse, so the resampler shrinks
/// by two or more after it.
int shrink_of(const PictureView& view) {
  int shrink = 1;
  while (shrink < 8 && view.crop.width >= 4 * shrink * view.resized.width &&
         view.crop.height >= 4 * shrink * view.resized.height) {
    shrink *= 2;
  }
  return shrink;
}

/// As Pillow converts the inverted CMYK that Adobe's programs write.
void cmyk_to_rgb(std::uint8_t* pixels, std::size_t count) {
  for (std::uint8_t* pixel = pixels; pixel != pixels + 4 * count; pixel += 4) {
    for (int c = 0; c < 3; ++c) {
      const unsigned product = (255u - pixel[c]) * pixel[3] + 128;
      pixel[c] = static_cast<std::uint8_t>(
          std::max(0, static_cast<int>(pixel[3] - (((product >> 8) + product) >> 8))));
    }
  }
}

class JpegDecoder final : public FormatDecoder {
 public:
  JpegDecoder() {
    jpeg_.err = jpeg_std_error(&errors_.manager);
    errors_.manager.error_exit = fail;
    errors_.manager.emit_message = take_message;
    progress_.progress_monitor = count_scans;
    guarded([this] { jpeg_create_decompress(&jpeg_); });
    jpeg_.progress = &progress_;
  }
  ~JpegDecoder() override { jpeg_destroy_decompress(&jpeg_); }

  PictureSize open(std::span<const std::byte> file) override {
    jpeg_abort_decompress(&jpeg_);
    guarded([this, file] {
      jpeg_mem_src(&jpeg_, reinterpret_cast<const unsigned char*>(file.data()), file.size());
      jpeg_read_header(&jpeg_, TRUE);
    });
    // The marker of the end cannot be part of compressed data.
    const auto scans = text_of(file.last(jpeg_.src->bytes_in_buffer));
    if (scans.rfind("\xFF\xD9") == std::string_view::npos) throw_truncated();
    return {static_cast<int>(jpeg_.image_width), static_cast<int>(jpeg_.image_height)};
  }

  // 4:1:1 and 4:1:0 are left out, which few decoders know.
  bool is_baseline_jpeg() const override {
    const bool is_grey = jpeg_.jpeg_color_space == JCS_GRAYSCALE;
    if (jpeg_.progressive_mode || jpeg_.arith_code || jpeg_.data_precision != 8) return false;
    if (jpeg_.comps_in_scan != jpeg_.num_components || !(is_grey || jpeg_.jpeg_color_space == JCS_YCbCr))
      return false;
    const jpeg_component_info* const parts = jpeg_.comp_info;
    const auto is_single = [&](int i) { return parts[i].h_samp_factor == 1 && parts[i].v_samp_factor == 1; };
    return is_grey ||
           (parts[0].h_samp_factor <= 2 && parts[0].v_samp_factor <= 2 && is_single(1) && is_single(2));
  }

  void render(const PictureView& view, Resampler& resampler, std::span<std::byte> target) override {
    const int shrink = shrink_of(view);
    resampler.begin(view, shrink, target);
    const PictureRectangle needed = resampler.needed();
    if (needed.height == 0) return;
    jpeg_.scale_num = 1;
    jpeg_.scale_denom = static_cast<unsigned>(shrink);
    const bool is_cmyk = jpeg_.num_components == 4;
    jpeg_.out_color_space = is_cmyk ? JCS_CMYK : JCS_EXT_RGBX;
    guarded([this] { jpeg_start_decompress(&jpeg_); });
    row_.resize(4 * jpeg_.output_width + Resampler::kSlack);
    guarded([&, this] { read_rows(needed, is_cmyk, resampler); });
    jpeg_abort_decompress(&jpeg_);
  }

 private:
  // Around the crop, so that chroma at its edges is upsampled from the same samples as in the whole picture.
  static constexpr int kMargin = 4;

  /// Nothing in `body` may need a destructor: libjpeg's errors jump over it.
  template <typename Body>
  void guarded(const Body& body) {
    if (setjmp(errors_.jump) != 0) {
      jpeg_abort_decompress(&jpeg_);
      throw PictureError(fmt::format("The JPEG is damaged: {}.", errors_.message));
    }
    body();
  }

  void read_rows(const PictureRectangle& needed, bool is_cmyk, Resampler& resampler) {
    const auto left = static_cast<JDIMENSION>(std::max(needed.left - kMargin, 0));
    const auto right = static_cast<JDIMENSION>(needed.left + needed.width + kMargin);
    JDIMENSION first = left;
    JDIMENSION width = std::min(right, jpeg_.output_width) - left;
    jpeg_crop_scanline(&jpeg_, &first, &width);
    const std::uint8_t* pixels = row_.data() + 4 * (static_cast<JDIMENSION>(needed.left) - first);
    if (needed.top > kMargin) jpeg_skip_scanlines(&jpeg_, static_cast<JDIMENSION>(needed.top - kMargin));
    JSAMPROW row = row_.data();
    while (static_cast<int>(jpeg_.output_scanline) < needed.top + needed.height) {
      const bool is_needed = static_cast<int>(jpeg_.output_scanline) >= needed.top;
      jpeg_read_scanlines(&jpeg_, &row, 1);
      if (is_needed && is_cmyk) cmyk_to_rgb(row, jpeg_.output_width);
      if (is_needed) resampler.add_row(pixels);
    }
  }

  jpeg_decompress_struct jpeg_{};
  jpeg_progress_mgr progress_{};
  Errors errors_{};
  std::vector<std::uint8_t> row_;
};

}  // namespace

std::unique_ptr<FormatDecoder> make_jpeg_decoder() { return std::make_unique<JpegDecoder>(); }

}  // namespace penstock

#endif
