#pragma once

#include "decode/resampler.hpp"
#include "decode/shared/picture_decoder.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

namespace penstock {

/// The pictures of one format, one after the other.
class FormatDecoder {
 public:
  FormatDecoder() = default;
  virtual ~FormatDecoder() = default;
  FormatDecoder(const FormatDecoder&) = delete;
  FormatDecoder& operator=(const FormatDecoder&) = delete;

  /// Reads the header of `file`, which lives until the next call or this one's end. Throws PictureError.
  virtual PictureSize open(std::span<const std::byte> file) = 0;

  /// Whether the opened picture is one of PictureDecoder::baseline_jpeg.
  [[nodiscard]] virtual bool is_baseline_jpeg() const { return false; }

  /// Renders a view of the opened picture, which it fits, once. Throws PictureError.
  virtual void render(const PictureView& view, Resampler& resampler, std::span<std::byte> target) = 0;
};

/// If the library is not there, they throw a PictureError that says what to install.
[[nodiscard]] std::unique_ptr<FormatDecoder> make_jpeg_decoder();
[[nodiscard]] std::unique_ptr<FormatDecoder> make_png_decoder();
[[nodiscard]] std::unique_ptr<FormatDecoder> make_webp_decoder();

[[noreturn]] void throw_truncated();

[[nodiscard]] inline std::string_view text_of(std::span<const std::byte> file) noexcept {
  return {reinterpret_cast<const char*>(file.data()), file.size()};
}

}  // namespace penstock
