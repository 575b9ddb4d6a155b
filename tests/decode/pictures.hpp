#pragma once

#include "decode/shared/picture_decoder.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::test {

/// Bytes of 3 channels, height x width x 3.
struct Image {
  PictureSize size;
  std::vector<std::uint8_t> pixels;

  [[nodiscard]] const std::uint8_t* at(int x, int y) const {
    return pixels.data() + 3 * (static_cast<std::size_t>(y) * static_cast<std::size_t>(size.width) +
                                static_cast<std::size_t>(x));
  }
  std::uint8_t* at(int x, int y) { return const_cast<std::uint8_t*>(std::as_const(*this).at(x, y)); }
};

/// A smooth picture with noise.
Image make_image(PictureSize size, unsigned seed);

struct JpegKind {
  int components = 3;  ///< 1: grey, 4: CMYK
  int across = 1;      ///< luma samples for a chroma sample
  int down = 1;
  bool is_progressive = false;
  unsigned restart_interval = 0;
  bool has_scans_for_channels = false;
};

std::vector<std::byte> jpeg_of(const Image& image, const JpegKind& kind = {});

/// `color_type` as in the header of PNG.
struct PngKind {
  int bits = 8;
  int color_type = 2;
  bool is_interlaced = false;
};

struct Sample {
  std::vector<std::byte> file;
  Image image;  ///< as its library decodes it the plain way; of a PNG, as it was drawn
};

/// Of random bits.
Sample png_of(PictureSize size, const PngKind& kind, unsigned seed);

std::vector<std::byte> webp_of(const Image& image, bool is_lossless);

/// The view by definition, in double precision. Differs by one at most where a sum lies between two bytes'
/// values.
Image plain_view(const Image& image, const PictureView& view, ResizeFilter filter = ResizeFilter::bilinear);

Image decode(PictureDecoder& decoder, std::span<const std::byte> file, const PictureView& view);

/// The largest difference of two images of one size, and the part of their bytes that differ.
struct Difference {
  int most = 0;
  double part = 0;
};
Difference difference(const Image& a, const Image& b);

/// A picture of each kind.
const std::map<std::string, Sample>& every_kind();

}  // namespace penstock::test
