#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace penstock {

class Stream;

/// How a device renders JPEGs. All that one decoder renders have the same size.
struct JpegDecoderOptions {
  std::size_t pictures = 1;  ///< of one call, at most
  std::size_t lanes = 1;     ///< calls whose work may be under way at a time
  std::uint32_t width = 0;   ///< of each window, in pixels
  std::uint32_t height = 0;
  bool channels_first = true;  ///< writes 3 x height x width; otherwise height x width x 3
  bool bicubic = false;        ///< resizes so; otherwise bilinear
  /// Paths at which the library that decodes may be. They are tried before those that the system knows.
  std::vector<std::string> libraries{};
};

/// A JPEG, and what becomes of it, in this order: its crop is cut out, resized, a window is cut out of the
/// result, and flipped. What of the window lies outside of the resized crop is black. All in pixels.
struct JpegToRender {
  std::span<const std::byte> file;  ///< memory of the host: baseline, 8 bits, YCbCr or grey
  std::int32_t width = 0;           ///< as stored
  std::int32_t height = 0;
  std::int32_t crop_left = 0;  ///< the crop lies within the picture
  std::int32_t crop_top = 0;
  std::int32_t crop_width = 0;
  std::int32_t crop_height = 0;
  std::int32_t resized_width = 0;  ///< antialiased, as Pillow resizes
  std::int32_t resized_height = 0;
  std::int32_t window_left = 0;
  std::int32_t window_top = 0;
  bool flip_horizontally = false;
  bool flip_vertically = false;
  std::byte* destination = nullptr;  ///< device memory, 3 bytes for each pixel of the window
};

/// Decodes JPEGs on a device, made by Device::make_jpeg_decoder. It takes device and pinned memory as the
/// pictures need it, and keeps it. For one thread at a time.
class JpegDecoder {
 public:
  JpegDecoder() = default;
  virtual ~JpegDecoder() = default;
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  /// What decodes: "nvJPEG 13.0, hardware".
  [[nodiscard]] virtual const std::string& name() const noexcept = 0;

  /// Enqueues the decoding and rendering of `pictures`. The work of the lane's last call is done, and the
  /// caller keeps the files until that of this call is. Returns the numbers of the pictures that the library
  /// refuses, whose destinations are not written. Bytes that are damaged within a picture may be decoded to
  /// anything. Blocks the host while the library reads the files. Throws OutOfMemory and DeviceError.
  [[nodiscard]] virtual std::vector<std::size_t> render(std::size_t lane,
                                                        std::span<const JpegToRender> pictures,
                                                        const Stream& stream) = 0;
};

}  // namespace penstock
