#include "decode/pictures.hpp"

#include <jpeglib.h>
#include <webp/decode.h>
#include <webp/encode.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>

namespace penstock::test {

namespace {

std::size_t count_of(PictureSize size) {
  return static_cast<std::size_t>(size.width) * static_cast<std::size_t>(size.height);
}

std::vector<std::byte> copy(const void* data, std::size_t bytes) {
  const auto* first = static_cast<const std::byte*>(data);
  return {first, first + bytes};
}

double bilinear(double x) { return std::max(0.0, 1 - std::abs(x)); }

double bicubic(double x) {
  x = std::abs(x);
  return x < 1 ? 1.5 * x * x * x - 2.5 * x * x + 1 : x < 2 ? -0.5 * x * x * x + 2.5 * x * x - 4 * x + 2 : 0;
}

/// Output `i` of a line that is resized to `resized`.
std::uint8_t resized_value(const std::vector<std::uint8_t>& line, int resized, int i, ResizeFilter filter) {
  const auto size = static_cast<int>(line.size());
  if (size == resized) return line[static_cast<std::size_t>(i)];
  const double scale = static_cast<double>(size) / resized;
  const double stretch = std::max(scale, 1.0);
  const double center = (i + 0.5) * scale;
  double sum = 0;
  double weights = 0;
  const int end = std::min(size, static_cast<int>(center + 2 * stretch) + 1);
  for (int k = std::max(0, static_cast<int>(center - 2 * stretch) - 1); k < end; ++k) {
    const double x = (k + 0.5 - center) / stretch;
    const double weight = filter == ResizeFilter::bilinear ? bilinear(x) : bicubic(x);
    sum += weight * line[static_cast<std::size_t>(k)];
    weights += weight;
  }
  return static_cast<std::uint8_t>(std::clamp(std::floor(sum / weights + 0.5), 0.0, 255.0));
}

}  // namespace

Image make_image(PictureSize size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> noise(0, 6);
  std::uniform_real_distribution<double> wave(0.02, 0.2);
  Image image{size, std::vector<std::uint8_t>(3 * count_of(size))};
  std::array<double, 6> waves;
  for (double& each : waves) each = wave(random);
  for (int y = 0; y < size.height; ++y) {
    for (int x = 0; x < size.width; ++x) {
      for (std::size_t c = 0; c < 3; ++c) {
        const double value = 128 + 110 * std::sin(x * waves[c]) * std::cos(y * waves[c + 3]) + noise(random);
        image.at(x, y)[c] = static_cast<std::uint8_t>(std::clamp(value, 0.0, 255.0));
      }
    }
  }
  return image;
}

std::vector<std::byte> jpeg_of(const Image& image, const JpegKind& kind) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors;
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* out = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&jpeg, &out, &bytes);
  jpeg.image_width = static_cast<JDIMENSION>(image.size.width);
  jpeg.image_height = static_cast<JDIMENSION>(image.size.height);
  jpeg.input_components = kind.components;
  jpeg.in_color_space = kind.components == 1 ? JCS_GRAYSCALE : kind.components == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, 90, TRUE);
  jpeg.comp_info[0].h_samp_factor = kind.across;
  jpeg.comp_info[0].v_samp_factor = kind.down;
  if (kind.is_progressive) jpeg_simple_progression(&jpeg);
  const jpeg_scan_info scans[3] = {{1, {0}, 0, 63, 0, 0}, {1, {1}, 0, 63, 0, 0}, {1, {2}, 0, 63, 0, 0}};
  if (kind.has_scans_for_channels) {
    jpeg.scan_info = scans;
    jpeg.num_scans = 3;
  }
  jpeg.restart_interval = kind.restart_interval;
  jpeg_start_compress(&jpeg, TRUE);
  std::vector<std::uint8_t> row(static_cast<std::size_t>(image.size.width * kind.components));
  for (int y = 0; y < image.size.height; ++y) {
    for (int x = 0; x < image.size.width; ++x) {
      for (int c = 0; c < kind.components; ++c)
        row[static_cast<std::size_t>(x * kind.components + c)] = image.at(x, y)[c % 3];
    }
    JSAMPROW line = row.data();
    jpeg_write_scanlines(&jpeg, &line, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  const auto file = copy(out, bytes);
  std::free(out);
  return file;
}

std::vector<std::byte> webp_of(const Image& image, bool is_lossless) {
  std::uint8_t* out = nullptr;
  const auto& [width, height] = image.size;
  const std::size_t bytes = is_lossless
                                ? WebPEncodeLosslessRGB(image.pixels.data(), width, height, 3 * width, &out)
                                : WebPEncodeRGB(image.pixels.data(), width, height, 3 * width, 80, &out);
  const auto file = copy(out, bytes);
  WebPFree(out);
  return file;
}

namespace {

void append(std::string& file, std::uint32_t number) {
  for (int shift = 24; shift >= 0; shift -= 8) file += static_cast<char>(number >> shift);
}

void append_chunk(std::string& file, const std::string& name, const std::string& data) {
  append(file, static_cast<std::uint32_t>(data.size()));
  const std::string checked = name + data;
  file += checked;
  append(file, static_cast<std::uint32_t>(::crc32(0, reinterpret_cast<const Bytef*>(checked.data()),
                                                  static_cast<uInt>(checked.size()))));
}

struct Pass {
  int left, top, right, down;
};

}  // namespace

Sample png_of(PictureSize size, const PngKind& kind, unsigned seed) {
  std::mt19937 random(seed);
  constexpr int channels_of[] = {1, 0, 3, 1, 2, 0, 4};
  const int channels = channels_of[kind.color_type];
  std::string palette;
  for (int i = 0; i < 3 << kind.bits && kind.color_type == 3; ++i) palette += static_cast<char>(random());
  Image image{size, std::vector<std::uint8_t>(3 * count_of(size))};
  const auto colour_of = [&](unsigned sample) {
    if (kind.bits == 16)
      return static_cast<std::uint8_t>(channels == 1 ? std::min(sample, 255u) : sample >> 8);
    return static_cast<std::uint8_t>(sample * 255 / ((1u << kind.bits) - 1));
  };
  std::string raw;
  const auto add_line = [&](int y, int left, int step) {
    raw += '\0';
    unsigned held = 0;
    int bits = 0;
    for (int x = left; x < size.width; x += step) {
      for (int c = 0; c < channels; ++c) {
        const unsigned sample = static_cast<unsigned>(random()) & ((1u << kind.bits) - 1);
        held = held << kind.bits | sample;
        for (bits += kind.bits; bits >= 8; bits -= 8) raw += static_cast<char>(held >> (bits - 8));
        const bool is_grey = channels <= 2 && kind.color_type != 3;
        for (int i = 0; i < 3; ++i) {
          if (kind.color_type == 3)
            image.at(x, y)[i] = static_cast<std::uint8_t>(palette[3 * sample + static_cast<unsigned>(i)]);
          if ((is_grey && c == 0) || (!is_grey && kind.color_type != 3 && c == i))
            image.at(x, y)[i] = colour_of(sample);
        }
      }
    }
    if (bits > 0) raw += static_cast<char>(held << (8 - bits));
  };
  constexpr Pass interlaced[] = {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4},
                                 {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}};
  constexpr Pass plain[] = {{0, 0, 1, 1}};
  const std::span<const Pass> passes =
      kind.is_interlaced ? std::span<const Pass>(interlaced) : std::span<const Pass>(plain);
  for (const Pass& pass : passes) {
    for (int y = pass.top; y < size.height && pass.left < size.width; y += pass.down)
      add_line(y, pass.left, pass.right);
  }
  uLongf packed_bytes = compressBound(raw.size());
  std::string packed(packed_bytes, '\0');
  compress(reinterpret_cast<Bytef*>(packed.data()), &packed_bytes, reinterpret_cast<const Bytef*>(raw.data()),
           raw.size());
  packed.resize(packed_bytes);

  std::string file = "\x89PNG\r\n\x1A\n";
  std::string header;
  append(header, static_cast<std::uint32_t>(size.width));
  append(header, static_cast<std::uint32_t>(size.height));
  header += {static_cast<char>(kind.bits), static_cast<char>(kind.color_type), '\0', '\0',
             static_cast<char>(kind.is_interlaced)};
  append_chunk(file, "IHDR", header);
  if (!palette.empty()) append_chunk(file, "PLTE", palette);
  append_chunk(file, "IDAT", packed);
  append_chunk(file, "IEND", "");
  return {copy(file.data(), file.size()), image};
}

namespace {

Image plain_decode(std::span<const std::byte> file) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(file.data());
  if (picture_format(file) == PictureFormat::webp) {
    Image image;
    std::uint8_t* pixels = WebPDecodeRGB(data, file.size(), &image.size.width, &image.size.height);
    image.pixels.assign(pixels, pixels + 3 * count_of(image.size));
    WebPFree(pixels);
    return image;
  }
  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors;
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&jpeg);
  jpeg_mem_src(&jpeg, data, file.size());
  jpeg_read_header(&jpeg, TRUE);
  const bool is_cmyk = jpeg.num_components == 4;
  jpeg.out_color_space = is_cmyk ? JCS_CMYK : JCS_RGB;
  jpeg_start_decompress(&jpeg);
  Image image{{static_cast<int>(jpeg.output_width), static_cast<int>(jpeg.output_height)}, {}};
  std::vector<std::uint8_t> row(4 * jpeg.output_width);
  while (jpeg.output_scanline < jpeg.output_height) {
    JSAMPROW line = row.data();
    jpeg_read_scanlines(&jpeg, &line, 1);
    for (std::size_t x = 0; x < jpeg.output_width; ++x) {
      for (std::size_t c = 0; c < 3; ++c) {
        const double ink = 1 - row[4 * x + c] / 255.0;
        const double key = row[4 * x + 3];
        image.pixels.push_back(is_cmyk ? static_cast<std::uint8_t>(key - std::floor(ink * key + 0.5))
                                       : row[3 * x + c]);
      }
    }
  }
  jpeg_finish_decompress(&jpeg);
  jpeg_destroy_decompress(&jpeg);
  return image;
}

}  // namespace

Image plain_view(const Image& image, const PictureView& view, ResizeFilter filter) {
  const auto& [crop, resized, window, flip_x, flip_y, changes] = view;
  Image narrow{{resized.width, crop.height},
               std::vector<std::uint8_t>(3 * count_of({resized.width, crop.height}))};
  for (int c = 0; c < 3; ++c) {
    for (int y = 0; y < crop.height; ++y) {
      std::vector<std::uint8_t> line;
      for (int x = 0; x < crop.width; ++x) line.push_back(image.at(crop.left + x, crop.top + y)[c]);
      for (int x = 0; x < resized.width; ++x)
        narrow.at(x, y)[c] = resized_value(line, resized.width, x, filter);
    }
  }
  Image result{{window.width, window.height},
               std::vector<std::uint8_t>(3 * count_of({window.width, window.height}))};
  for (int c = 0; c < 3; ++c) {
    for (int x = 0; x < window.width; ++x) {
      const int from = window.left + (flip_x ? window.width - 1 - x : x);
      if (from < 0 || from >= resized.width) continue;
      std::vector<std::uint8_t> line;
      for (int y = 0; y < crop.height; ++y) line.push_back(narrow.at(from, y)[c]);
      for (int y = 0; y < window.height; ++y) {
        const int row = window.top + (flip_y ? window.height - 1 - y : y);
        if (row >= 0 && row < resized.height)
          result.at(x, y)[c] = resized_value(line, resized.height, row, filter);
      }
    }
  }
  return result;
}

Image decode(PictureDecoder& decoder, std::span<const std::byte> file, const PictureView& view) {
  Image image{{view.window.width, view.window.height}, {}};
  image.pixels.assign(3 * count_of(image.size), 0xA5);
  decoder.decode(file, view, std::as_writable_bytes(std::span(image.pixels)));
  return image;
}

Difference difference(const Image& a, const Image& b) {
  if (a.size != b.size) throw std::invalid_argument("images of different sizes");
  Difference found;
  for (std::size_t i = 0; i < a.pixels.size(); ++i) {
    const int by = std::abs(a.pixels[i] - b.pixels[i]);
    found.most = std::max(found.most, by);
    found.part += by == 0 ? 0 : 1.0 / static_cast<double>(a.pixels.size());
  }
  return found;
}

const std::map<std::string, Sample>& every_kind() {
  static const auto made = [] {
    const Image image = make_image({131, 94}, 5);
    std::map<std::string, Sample> samples;
    const auto add = [&](const std::string& name, std::vector<std::byte> file) {
      Image decoded = plain_decode(file);
      samples[name] = {std::move(file), std::move(decoded)};
    };
    for (const bool is_progressive : {false, true}) {
      const std::string name = is_progressive ? "progressive_" : "jpeg_";
      for (const int across : {1, 2, 4}) {
        for (const int down : {1, 2}) {
          if (across == 4 && down == 2) continue;
          add(name + std::to_string(across) + std::to_string(down),
              jpeg_of(image, {.across = across, .down = down, .is_progressive = is_progressive}));
        }
      }
    }
    add("jpeg_grey", jpeg_of(image, {.components = 1}));
    add("jpeg_cmyk", jpeg_of(image, {.components = 4}));
    add("jpeg_restarts", jpeg_of(image, {.across = 2, .down = 2, .restart_interval = 5}));
    add("jpeg_three_scans", jpeg_of(image, {.has_scans_for_channels = true}));
    add("webp", webp_of(image, false));
    add("webp_lossless", webp_of(image, true));
    constexpr int depths[] = {1, 2, 4, 8, 16};
    for (const int type : {0, 2, 3, 4, 6}) {
      for (const int bits : depths) {
        if ((bits < 8 && type != 0 && type != 3) || (bits == 16 && type == 3)) continue;
        for (const bool is_interlaced : {false, true}) {
          samples[(is_interlaced ? "interlaced_" : "png_") + std::to_string(bits) + "_of_" +
                  std::to_string(type)] = png_of({37, 21}, {bits, type, is_interlaced}, 9);
        }
      }
    }
    return samples;
  }();
  return made;
}

}  // namespace penstock::test
