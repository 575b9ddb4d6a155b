#include "decode/shared/picture_decoder.hpp"

#include "decode/format_decoder.hpp"
#include "decode/pixel_changes.hpp"
#include "decode/resampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock {

namespace {

using namespace std::string_view_literals;

/// How files of a format begin: `bytes`, at `offset`.
struct Signature {
  std::size_t offset;
  std::string_view bytes;
  const char* name;
  PictureFormat format = PictureFormat::other;
};

constexpr Signature kSignatures[] = {
    {0, "\xFF\xD8\xFF"sv, "a JPEG", PictureFormat::jpeg},
    {0, "\x89PNG\r\n\x1A\n"sv, "a PNG", PictureFormat::png},
    {8, "WEBP"sv, "a WebP", PictureFormat::webp},
    {0, "GIF8"sv, "a GIF"},
    {0, "BM"sv, "a BMP"},
    {0, "II*\0"sv, "a TIFF"},
    {0, "MM\0*"sv, "a TIFF"},
    {4, "ftypavif"sv, "an AVIF"},
    {4, "ftyphei"sv, "a HEIC"},
    {4, "ftypmif1"sv, "a HEIC"},
    {4, "jP  "sv, "a JPEG 2000"},
    {0, "\xFF\x0A"sv, "a JPEG XL"},
    {4, "JXL "sv, "a JPEG XL"},
    {0, "\0\0\1\0"sv, "an icon"},
    {0, "%PDF"sv, "a PDF"},
    {0, "<"sv, "a web page or SVG"},
    {0, "{"sv, "JSON"},
    {0, "version https://git-lfs"sv, "the pointer of a file that git-lfs keeps: run git lfs pull"},
};

const Signature* signature_of(std::span<const std::byte> file) noexcept {
  const std::string_view text = text_of(file);
  for (const Signature& signature : kSignatures) {
    if (text.size() >= signature.offset && text.substr(signature.offset).starts_with(signature.bytes))
      return &signature;
  }
  return nullptr;
}

constexpr std::string_view kGiveFunction =
    "or have a function decode it: in Python, Pictures(..., decode=lambda data: "
    "PIL.Image.open(io.BytesIO(data)).convert(\"RGB\"))";

[[noreturn]] void throw_other(std::span<const std::byte> file) {
  if (file.empty()) throw PictureError("The file is empty. Fetch it again, or leave it out.");
  const Signature* signature = signature_of(file);
  throw PictureError(fmt::format(
      "It is {}, and penstock decodes JPEG, PNG and WebP. Leave it out, convert it, {}.",
      signature != nullptr ? signature->name : "no picture of a format that is known", kGiveFunction));
}

[[noreturn, maybe_unused]] void throw_missing(const char* format, const char* library, const char* package) {
  throw PictureError(
      fmt::format("This build of penstock decodes no {}: it was built without {}. Install {} and build "
                  "penstock again, {}.",
                  format, library, package, kGiveFunction));
}

}  // namespace

void throw_truncated() {
  throw PictureError("The picture is truncated: its end is missing. Fetch the file again.");
}

#ifndef PENSTOCK_HAS_JPEG
std::unique_ptr<FormatDecoder> make_jpeg_decoder() { throw_missing("JPEG", "libjpeg-turbo", "libjpeg-dev"); }
#endif
#ifndef PENSTOCK_HAS_PNG
std::unique_ptr<FormatDecoder> make_png_decoder() { throw_missing("PNG", "libspng", "libspng-dev"); }
#endif
#ifndef PENSTOCK_HAS_WEBP
std::unique_ptr<FormatDecoder> make_webp_decoder() { throw_missing("WebP", "libwebp", "libwebp-dev"); }
#endif

namespace {

// As in PictureFormat.
constexpr std::unique_ptr<FormatDecoder> (*kMakeDecoder[])() = {make_jpeg_decoder, make_png_decoder,
                                                                make_webp_decoder};

bool is_within(int begin, int length, int whole) {
  return begin >= 0 && length >= 1 && length <= whole - begin;
}

std::uint64_t pixel_count(int width, int height) {
  return static_cast<std::uint64_t>(width) * static_cast<std::uint64_t>(height);
}

void check_view(const PictureView& view, PictureSize size, std::size_t target_bytes) {
  const PictureRectangle& crop = view.crop;
  if (!is_within(crop.left, crop.width, size.width) || !is_within(crop.top, crop.height, size.height)) {
    throw InvalidArgument(fmt::format("A crop of {}x{} at ({}, {}) is not within the picture of {}x{}.",
                                      crop.width, crop.height, crop.left, crop.top, size.width, size.height));
  }
  const PictureRectangle& window = view.window;
  if (view.resized.width < 1 || view.resized.height < 1 || window.width < 1 || window.height < 1) {
    throw InvalidArgument("A view has a size of 1x1 or more.");
  }
  const std::uint64_t bytes = 3 * pixel_count(window.width, window.height);
  if (bytes != target_bytes) {
    throw InvalidArgument(fmt::format("A view of {}x{} has {} bytes, and the target has {}.", window.width,
                                      window.height, bytes, target_bytes));
  }
}

}  // namespace

PictureFormat picture_format(std::span<const std::byte> file) noexcept {
  const Signature* signature = signature_of(file);
  return signature != nullptr ? signature->format : PictureFormat::other;
}

bool can_decode(PictureFormat format) noexcept {
  try {
    return format != PictureFormat::other && kMakeDecoder[static_cast<std::size_t>(format)]() != nullptr;
  } catch (const Error&) {
    return false;
  }
}

struct PictureDecoder::State {
  Resampler resampler;
  std::uint64_t maximum_pixels;
  std::array<std::unique_ptr<FormatDecoder>, 3> decoders{};
  std::vector<std::uint8_t> row{};

  FormatDecoder& decoder_of(std::span<const std::byte> file) {
    const PictureFormat format = picture_format(file);
    if (format == PictureFormat::other) throw_other(file);
    const auto index = static_cast<std::size_t>(format);
    if (!decoders[index]) decoders[index] = kMakeDecoder[index]();
    return *decoders[index];
  }

  PictureSize open(FormatDecoder& decoder, std::span<const std::byte> file) const {
    const PictureSize size = decoder.open(file);
    const std::uint64_t pixels = pixel_count(size.width, size.height);
    if (pixels == 0) throw PictureError("The picture has no pixels. Leave it out.");
    if (pixels > maximum_pixels) {
      throw PictureError(fmt::format(
          "The picture of {}x{} has more than {} pixels: it may be a bomb. If it is none, raise the limit.",
          size.width, size.height, maximum_pixels));
    }
    return size;
  }
};

PictureDecoder::PictureDecoder(PictureStyle style, std::uint64_t maximum_pixels)
    : state_(new State{Resampler(style), maximum_pixels}) {}
PictureDecoder::~PictureDecoder() = default;
PictureDecoder::PictureDecoder(PictureDecoder&&) noexcept = default;
PictureDecoder& PictureDecoder::operator=(PictureDecoder&&) noexcept = default;

PictureSize PictureDecoder::size(std::span<const std::byte> file) {
  return state_->open(state_->decoder_of(file), file);
}

std::optional<PictureSize> PictureDecoder::baseline_jpeg(std::span<const std::byte> file) {
  if (picture_format(file) != PictureFormat::jpeg) return std::nullopt;
  try {
    FormatDecoder& decoder = state_->decoder_of(file);
    const PictureSize size = state_->open(decoder, file);
    return decoder.is_baseline_jpeg() ? std::optional(size) : std::nullopt;
  } catch (const PictureError&) {
    return std::nullopt;
  }
}

void PictureDecoder::decode(std::span<const std::byte> file, const PictureView& view,
                            std::span<std::byte> target) {
  FormatDecoder& decoder = state_->decoder_of(file);
  check_view(view, state_->open(decoder, file), target.size());
  decoder.render(view, state_->resampler, target);
  change_pixels(view, state_->resampler.style().layout, target);
}

void PictureDecoder::render(std::span<const std::byte> pixels, PictureSize size, const PictureView& view,
                            std::span<std::byte> target) {
  if (pixels.size() != 3 * pixel_count(size.width, size.height)) {
    throw InvalidArgument(fmt::format("A picture of {}x{} has 3 bytes for each pixel, not {} in all.",
                                      size.width, size.height, pixels.size()));
  }
  check_view(view, size, target.size());
  Resampler& resampler = state_->resampler;
  resampler.begin(view, 1, target);
  const PictureRectangle needed = resampler.needed();
  std::vector<std::uint8_t>& row = state_->row;
  row.resize(4 * static_cast<std::size_t>(needed.width) + Resampler::kSlack);
  for (int y = needed.top; y < needed.top + needed.height; ++y) {
    const std::byte* from =
        pixels.data() + 3 * (static_cast<std::size_t>(y) * static_cast<std::size_t>(size.width) +
                             static_cast<std::size_t>(needed.left));
    for (std::size_t x = 0; x < static_cast<std::size_t>(needed.width); ++x)
      std::memcpy(row.data() + 4 * x, from + 3 * x, 3);
    resampler.add_row(row.data());
  }
  change_pixels(view, resampler.style().layout, target);
}

}  // namespace penstock
