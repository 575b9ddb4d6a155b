#pragma once

#include <penstock/core/error.hpp>
#include <penstock/decode/augmentation.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

namespace penstock {

/// A picture cannot be decoded: it is damaged, truncated, too large, or of a format that this build lacks.
/// The message does not name the file, which the decoder does not know.
class PictureError : public Error {
 public:
  using Error::Error;
};

enum class PictureFormat { jpeg, png, webp, other };

/// By the first bytes.
[[nodiscard]] PictureFormat picture_format(std::span<const std::byte> file) noexcept;

/// Whether this build has the library for it.
[[nodiscard]] bool can_decode(PictureFormat format) noexcept;

enum class ResizeFilter { bilinear, bicubic };

/// Of the decoded bytes, uint8 red, green, blue: height x width x 3, or 3 x height x width.
enum class PixelLayout { hwc, chw };

/// How to render views.
struct PictureStyle {
  ResizeFilter filter = ResizeFilter::bilinear;  ///< antialiased, as Pillow resizes
  PixelLayout layout = PixelLayout::hwc;
};

/// Decodes views of JPEG, PNG and WebP pictures. What has one channel, a palette, alpha or CMYK becomes RGB
/// as Pillow's convert("RGB") has it. EXIF orientation is ignored. Of a JPEG, only the pixels of the view are
/// decoded. Bytes differ from Pillow's (up to version 12) by one at most. If a JPEG shrinks by four or more,
/// it is first decoded smaller: some of its bytes then differ by more. Keeps scratch memory for the largest
/// picture so far. For one thread at a time.
class PictureDecoder {
 public:
  /// As many as Pillow takes before it suspects a bomb.
  static constexpr std::uint64_t kMaximumPixels = 178'956'970;

  explicit PictureDecoder(PictureStyle style = {}, std::uint64_t maximum_pixels = kMaximumPixels);
  ~PictureDecoder();
  PictureDecoder(PictureDecoder&&) noexcept;
  PictureDecoder& operator=(PictureDecoder&&) noexcept;

  /// The stored size. Reads the header, and looks for the end. Throws PictureError.
  [[nodiscard]] PictureSize size(std::span<const std::byte> file);

  /// The stored size, if the file is a JPEG that every decoder of JPEGs takes: whole, baseline, of one scan
  /// and 8 bits, grey or YCbCr with common subsampling. Nullopt for other files, and for damaged ones.
  [[nodiscard]] std::optional<PictureSize> baseline_jpeg(std::span<const std::byte> file);

  /// Writes the view's window to `target`, which has 3 bytes for each of its pixels. Throws PictureError,
  /// whatever the view, if the file is truncated; if other bytes are damaged, only if the view needs them.
  /// `target` may then be written in part. Throws InvalidArgument if the view does not fit the picture, or
  /// `target` the view.
  void decode(std::span<const std::byte> file, const PictureView& view, std::span<std::byte> target);

  /// The same for a decoded picture: `pixels` has 3 bytes for each, height x width x 3.
  void render(std::span<const std::byte> pixels, PictureSize size, const PictureView& view,
              std::span<std::byte> target);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock
