#include "doctor/recorder/copied_values.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace penstock::recorder {
namespace {

using Random = std::mt19937_64;
using Bytes = std::vector<char>;

/// `count` values, each made from its index.
template <typename Make>
Bytes array(std::size_t count, const Make& make) {
  using Value = decltype(make(std::size_t{0}));
  static_assert(std::is_trivially_copyable_v<Value>);
  Bytes bytes(count * sizeof(Value));
  for (std::size_t i = 0; i < count; ++i) {
    const Value value = make(i);
    std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
  }
  return bytes;
}

CopiedValues judge(const Bytes& bytes) {
  Sample sample;
  for (std::size_t i = 0; i < recording::kSamplePieces; ++i) {
    std::memcpy(reinterpret_cast<char*>(sample) + i * kPieceBytes,
                bytes.data() + piece_begin(bytes.size(), i), kPieceBytes);
  }
  return judge_values(sample, bytes.size());
}

float normal(Random& random) { return std::normal_distribution<float>()(random); }
float uniform(Random& random) { return std::uniform_real_distribution<float>()(random); }
std::uint64_t below(Random& random, std::uint64_t end) { return random() % end; }

std::uint16_t bfloat16(float value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16U);
}
/// A float16 of a value from 2^-14 up to and without 2^16, rounded to zero.
std::uint16_t float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t size = bits & 0x7FFFFFFFU;
  if (size < 0x38800000U) return 0;
  return static_cast<std::uint16_t>((bits >> 16U & 0x8000U) | (size - 0x38000000U) >> 13U);
}
float narrowed(float value, unsigned bits) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) >> bits << bits);
}

/// Images of uint8, with three channels side by side.
struct Images {
  std::size_t count;
  std::size_t extent;  ///< their height and width
  std::vector<std::uint8_t> pixels;
  [[nodiscard]] std::uint8_t at(std::size_t image, std::size_t place, std::size_t channel) const {
    return pixels[(image * extent * extent + place) * 3 + channel];
  }
};

Images noise(std::size_t count, std::size_t extent, Random& random) {
  Images images{count, extent, std::vector<std::uint8_t>(count * extent * extent * 3)};
  for (std::uint8_t& pixel : images.pixels) pixel = static_cast<std::uint8_t>(random());
  return images;
}

/// Waves and a little noise, as photographs have, between two borders of one color.
Images pictures(std::size_t count, std::size_t extent, std::size_t border, Random& random) {
  Images images{count, extent, {}};
  for (std::size_t image = 0; image < count; ++image) {
    const float phase = uniform(random) * 6;
    for (std::size_t place = 0; place < extent * extent; ++place) {
      const auto y = static_cast<float>(place / extent);
      const auto x = static_cast<float>(place % extent);
      for (int channel = 0; channel < 3; ++channel) {
        const float wave = std::sin(phase + x * 0.1F) + std::sin(y * 0.07F + static_cast<float>(channel));
        const float value = 128 + 60 * wave + 4 * normal(random);
        const bool is_border = place / extent < border || place / extent >= extent - border;
        images.pixels.push_back(is_border ? 255 : static_cast<std::uint8_t>(std::clamp(value, 0.0F, 255.0F)));
      }
    }
  }
  return images;
}

std::vector<std::pair<std::string, Images>> all_images(Random& random) {
  return {{"noise", noise(4, 224, random)},
          {"small noise", noise(128, 32, random)},
          {"pictures", pictures(4, 224, 0, random)},
          {"pictures with borders", pictures(4, 224, 30, random)},
          {"small pictures", pictures(128, 32, 0, random)}};
}

constexpr float kMean[] = {0.485F, 0.456F, 0.406F};
constexpr float kDeviation[] = {0.229F, 0.224F, 0.225F};
float normalized(std::uint8_t pixel, std::size_t channel) {
  return (static_cast<float>(pixel) / 255 - kMean[channel]) / kDeviation[channel];
}

/// Channels in planes, and zeros for pixels of 255, as for a border.
Bytes padded(const Images& images) {
  const std::size_t plane = images.extent * images.extent;
  return array(images.pixels.size(), [&](std::size_t i) {
    const std::uint8_t pixel = images.at(i / plane / 3, i % plane, i / plane % 3);
    return pixel == 255 ? 0 : normalized(pixel, i / plane % 3);
  });
}
Bytes side_by_side(const Images& images) {
  return array(images.pixels.size(), [&](std::size_t i) { return normalized(images.pixels[i], i % 3); });
}
Bytes in_planes(const Images& images) {
  const std::size_t plane = images.extent * images.extent;
  return array(images.pixels.size(), [&](std::size_t i) {
    return normalized(images.at(i / plane / 3, i % plane, i / plane % 3), i / plane % 3);
  });
}

TEST(CopiedValues, AreBytesIfTheyAreEvenlySpaced) {
  for (unsigned seed = 1; seed <= 3; ++seed) {
    Random random(seed);
    for (const auto& [name, images] : all_images(random)) {
      const auto made = [&pixels = images.pixels](const std::function<float(float)>& make) {
        return judge(
            array(pixels.size(), [&](std::size_t i) { return make(static_cast<float>(pixels[i])); }));
      };
      EXPECT_EQ(made([](float x) { return x; }), CopiedValues::bytes) << name;
      EXPECT_EQ(made([](float x) { return x / 255; }), CopiedValues::bytes) << name;
      EXPECT_EQ(made([](float x) { return x * (1 / 255.0F); }), CopiedValues::bytes) << name;
      EXPECT_EQ(made([](float x) { return (x / 255 - 0.5F) / 0.5F; }), CopiedValues::bytes) << name;
      EXPECT_EQ(made([](float x) { return (x / 255 - 0.1307F) / 0.3081F; }), CopiedValues::bytes) << name;
      EXPECT_EQ(made([](float x) { return 300 - x; }), CopiedValues::bytes) << name;
    }
  }
}

TEST(CopiedValues, AreBytesIfEachChannelIsEvenlySpaced) {
  for (unsigned seed = 1; seed <= 3; ++seed) {
    Random random(seed);
    for (const auto& [name, images] : all_images(random)) {
      EXPECT_EQ(judge(side_by_side(images)), CopiedValues::bytes) << name;
      EXPECT_EQ(judge(in_planes(images)), CopiedValues::bytes) << name;
      EXPECT_EQ(judge(padded(images)), CopiedValues::bytes) << name;
    }
  }
}

/// Whole numbers of which a few neighbours are at most 256 apart.
float smooth(Random& random, std::size_t i, float size) {
  return std::round(size + 1 + size * std::sin(static_cast<float>(i) * 1e-3F) + normal(random) * 4);
}

TEST(CopiedValues, AreHalvesIfLowBitsAreZero) {
  Random random(1);
  const auto made = [&random](unsigned bits, float scale) {
    return judge(array(100'000, [&](std::size_t) { return narrowed(normal(random) * scale, bits); }));
  };
  EXPECT_EQ(made(13, 0.01F), CopiedValues::as_sent) << "some are too small for float16";
  const auto large = [&random](unsigned bits, float most) {
    return judge(array(100'000, [&](std::size_t) {
      return narrowed(std::exp(uniform(random)) / std::exp(1.0F) * most, bits);
    }));
  };
  EXPECT_EQ(large(13, 60'000), CopiedValues::halves) << "float16";
  EXPECT_EQ(large(12, 60'000), CopiedValues::as_sent);
  EXPECT_EQ(large(13, 90'000), CopiedValues::as_sent) << "too large for float16";
  EXPECT_EQ(made(16, 100), CopiedValues::halves) << "bfloat16";
  EXPECT_EQ(made(16, 1), CopiedValues::halves);
  EXPECT_EQ(judge(array(100'000, [&random](std::size_t i) { return smooth(random, i, 500); })),
            CopiedValues::halves)
      << "more levels than 256, and fewer than float16 has";
}

using Kind = std::pair<std::string, std::function<Bytes(Random&)>>;
constexpr std::size_t kCount = 60'000;

template <typename Make>
Kind kind(const char* name, const Make& make) {
  return {name,
          [make](Random& random) { return array(kCount, [&](std::size_t i) { return make(random, i); }); }};
}
template <typename Make>
Kind images(const char* name, const Make& make) {
  return {name, [make](Random& random) {
            const Images shown = random() % 2 != 0 ? noise(4, 128, random) : pictures(4, 128, 10, random);
            return array(shown.pixels.size(),
                         [&](std::size_t i) { return make(static_cast<float>(shown.pixels[i])); });
          }};
}

std::vector<Kind> floats() {
  return {
      kind("normal", [](Random& r, std::size_t) { return normal(r); }),
      kind("uniform", [](Random& r, std::size_t) { return uniform(r); }),
      kind("uniform from 1 to 2", [](Random& r, std::size_t) { return 1 + uniform(r); }),
      kind("large", [](Random& r, std::size_t) { return uniform(r) * 1e5F; }),
      kind("not negative", [](Random& r, std::size_t) { return std::max(normal(r), 0.0F); }),
      kind("softmax", [](Random& r, std::size_t) { return std::exp(normal(r) * 3) / 1000; }),
      kind("sparse", [](Random& r, std::size_t) { return below(r, 20) == 0 ? normal(r) : 0; }),
      kind("a few rows of bytes",
           [](Random& r, std::size_t i) {
             return i < kCount / 12 ? static_cast<float>(1 + below(r, 255)) / 255 : 0.0F;
           }),
      kind("a few ramps",
           [](Random&, std::size_t i) {
             const float slope = std::sqrt(2.0F + static_cast<float>((i + 100) / (kCount / 31)));
             return i < kCount / 8 ? static_cast<float>(1 + i % 64) * slope : 0.0F;
           }),
      kind("padded", [](Random& r, std::size_t i) { return i % 1000 < 400 ? normal(r) : 0; }),
      kind("padded with -1e9", [](Random& r, std::size_t i) { return i % 1000 < 400 ? normal(r) : -1e9F; }),
      kind("nearly constant", [](Random& r, std::size_t) { return below(r, 100) == 0 ? normal(r) : 1; }),
      kind("mask", [](Random& r, std::size_t) { return static_cast<float>(below(r, 2)); }),
      kind("one-hot", [](Random&, std::size_t i) { return i % 1000 == i / 1000 * 7 % 1000 ? 1.0F : 0.0F; }),
      kind("rare counts",
           [](Random& r, std::size_t) {
             return below(r, 10) == 0 ? 1.0F + static_cast<float>(below(r, 4)) : 0;
           }),
      kind("ramp", [](Random&, std::size_t i) { return static_cast<float>(i) / kCount; }),
      kind("ascending numbers", [](Random&, std::size_t i) { return static_cast<float>(i); }),
      kind("slow wave", [](Random&, std::size_t i) { return std::sin(static_cast<float>(i) * 1e-3F); }),
      kind("wave", [](Random&, std::size_t i) { return std::sin(static_cast<float>(i) * 0.1F); }),
      kind("prices", [](Random& r, std::size_t) { return static_cast<float>(below(r, 20'000)) / 100; }),
      kind("16 bits of audio",
           [](Random& r, std::size_t) {
             return std::round(std::clamp(normal(r) * 4000, -32768.0F, 32767.0F)) / 32768;
           }),
      kind("12 bits of a sensor",
           [](Random& r, std::size_t) { return static_cast<float>(below(r, 4096)) / 4096; }),
      kind("10 smooth bits, scaled", [](Random& r, std::size_t i) { return smooth(r, i, 500) / 1023; }),
      kind("12 smooth bits, scaled", [](Random& r, std::size_t i) { return smooth(r, i, 2000) / 4095; }),
      kind("16 smooth bits", [](Random& r, std::size_t i) { return smooth(r, i, 30'000) / 32'767; }),
      kind("a table of mixed columns",
           [](Random& r, std::size_t i) {
             return i % 30 < 28 ? static_cast<float>(below(r, 20)) : normal(r) * 100;
           }),
      kind("a table of whole numbers",
           [](Random& r, std::size_t i) {
             return i % 8 == 7 ? static_cast<float>(10'000 + below(r, 80'000))
                               : static_cast<float>(below(r, 90));
           }),
      kind("points with a color",
           [](Random& r, std::size_t i) {
             return i % 4 == 3 ? static_cast<float>(below(r, 256)) : normal(r);
           }),
      {"values that stay for a while",
       [](Random& r) {
         float value = 0;
         return array(kCount, [&](std::size_t i) { return value = i % 16 == 0 ? uniform(r) : value; });
       }},
      {"few embeddings",
       [](Random& r) {
         std::vector<float> table(4 * 64);
         std::generate(table.begin(), table.end(), [&r] { return normal(r); });
         return array(kCount, [&](std::size_t i) { return table[i / 64 * 7 % 4 * 64 + i % 64]; });
       }},
      {"images of changed brightness",
       [](Random& r) {
         const Images shown = noise(16, 64, r);
         float factor = 0;
         return array(shown.pixels.size(), [&](std::size_t i) {
           if (i % (64 * 64 * 3) == 0) factor = 0.6F + uniform(r);
           return static_cast<float>(shown.pixels[i]) / 255 * factor;
         });
       }},
      {"resized images",
       [](Random& r) {
         const Images shown = pictures(4, 128, 10, r);
         return array(shown.pixels.size() - 3, [&](std::size_t i) {
           return (static_cast<float>(shown.pixels[i]) + 0.37F * static_cast<float>(shown.pixels[i + 3])) /
                  255;
         });
       }},
  };
}

std::vector<Kind> halves_and_doubles() {
  return {
      kind("float16, normal", [](Random& r, std::size_t) { return float16(normal(r)); }),
      kind("float16, uniform", [](Random& r, std::size_t) { return float16(uniform(r)); }),
      kind("float16 from 1 to 2", [](Random& r, std::size_t) { return float16(1 + uniform(r)); }),
      kind("bfloat16, normal", [](Random& r, std::size_t) { return bfloat16(normal(r)); }),
      kind("bfloat16, uniform", [](Random& r, std::size_t) { return bfloat16(uniform(r)); }),
      kind("bfloat16 from 1 to 2", [](Random& r, std::size_t) { return bfloat16(1 + uniform(r)); }),
      images("images of float16", [](float x) { return float16(x / 255); }),
      images("images of float16, not scaled", [](float x) { return float16(x); }),
      images("images of bfloat16", [](float x) { return bfloat16(x / 255); }),
      images("images of bfloat16, not scaled", [](float x) { return bfloat16(x); }),
      kind("float64, normal",
           [](Random& r, std::size_t) { return static_cast<double>(std::normal_distribution<double>()(r)); }),
      kind("float64 that float32 holds",
           [](Random& r, std::size_t) { return static_cast<double>(normal(r)); }),
      kind("float64 of whole numbers",
           [](Random& r, std::size_t) { return static_cast<double>(below(r, 256)); }),
      images("images of float64", [](float x) { return static_cast<double>(x) / 255; }),
      kind("seconds", [](Random&, std::size_t i) { return 1.7e9 + static_cast<double>(i) / 100; }),
  };
}

std::vector<Kind> whole_numbers() {
  std::vector<Kind> kinds{
      kind("token ids of 32 bits",
           [](Random& r, std::size_t) { return static_cast<std::int32_t>(below(r, 50'257)); }),
      kind("token ids of 64 bits",
           [](Random& r, std::size_t) { return static_cast<std::int64_t>(below(r, 50'257)); }),
      kind("labels", [](Random& r, std::size_t) { return static_cast<std::int64_t>(below(r, 1000)); }),
      kind("targets that leave out",
           [](Random& r, std::size_t) { return static_cast<std::int64_t>(below(r, 1000)) - 100; }),
      kind("microseconds",
           [](Random&, std::size_t i) {
             return std::int64_t{1'700'000'000'000'000} + static_cast<std::int64_t>(i);
           }),
      kind("mask of bytes", [](Random& r, std::size_t) { return static_cast<std::uint8_t>(below(r, 2)); }),
      kind("int8", [](Random& r, std::size_t) { return static_cast<std::int8_t>(r()); }),
      kind("audio", [](Random& r, std::size_t) { return static_cast<std::int16_t>(normal(r) * 4000); }),
      kind("quiet audio", [](Random& r, std::size_t) { return static_cast<std::int16_t>(normal(r) * 40); }),
      kind("depths",
           [](Random& r, std::size_t) { return static_cast<std::uint16_t>(15'000 + below(r, 3000)); }),
      {"depths that come twice",
       [](Random& r) {
         std::uint16_t value = 0;
         return array(4 * kCount, [&](std::size_t i) {
           return value = i % 2 == 0 ? static_cast<std::uint16_t>(16'256 + below(r, 128)) : value;
         });
       }},
      {"colors with opacity",
       [](Random& r) {
         return array(4 * kCount,
                      [&](std::size_t i) { return static_cast<std::uint8_t>(i % 4 == 3 ? 64 : r()); });
       }},
      {"ramps of gray",
       [](Random&) { return array(4 * kCount, [](std::size_t i) { return static_cast<std::uint8_t>(i); }); }},
      {"slow ramps of gray",
       [](Random&) {
         return array(4 * kCount, [](std::size_t i) { return static_cast<std::uint8_t>(54 + i / 16 % 18); });
       }},
      images("images", [](float x) { return static_cast<std::uint8_t>(x); }),
      images("images of int16", [](float x) { return static_cast<std::int16_t>(x); }),
      images("images of int32", [](float x) { return static_cast<std::int32_t>(x); }),
      images("images of int64", [](float x) { return static_cast<std::int64_t>(x); }),
  };
  // Four bytes of 0x3F are a float of 0.75.
  for (int gray = 48; gray < 80; ++gray) {
    for (const unsigned noise : {1U, 2U, 4U}) {
      kinds.push_back(
          {"gray " + std::to_string(gray) + " and up to " + std::to_string(noise), [=](Random& r) {
             return array(4 * kCount, [&](std::size_t) {
               return static_cast<std::uint8_t>(static_cast<unsigned>(gray) + below(r, noise + 1));
             });
           }});
    }
    kinds.push_back({"areas of gray from " + std::to_string(gray), [=](Random& r) {
                       std::uint8_t value = 0;
                       return array(4 * kCount, [&](std::size_t i) {
                         return value = i % 64 == 0
                                            ? static_cast<std::uint8_t>(gray + static_cast<int>(below(r, 8)))
                                            : value;
                       });
                     }});
  }
  return kinds;
}

TEST(CopiedValues, OfOtherDataAreAsSent) {
  for (const auto& kinds : {floats(), halves_and_doubles(), whole_numbers()}) {
    for (const auto& [name, make] : kinds) {
      for (unsigned seed = 1; seed <= 4; ++seed) {
        Random random(seed);
        EXPECT_EQ(judge(make(random)), CopiedValues::as_sent) << name << ", seed " << seed;
      }
    }
  }
}

TEST(CopiedValues, AreNotJudgedIfAnyIsOff) {
  Random random(1);
  const Images images = noise(4, 128, random);
  std::vector<float> values;
  for (const std::uint8_t pixel : images.pixels) values.push_back(static_cast<float>(pixel) / 255);
  const auto judged = [&values] {
    return judge(array(values.size(), [&](std::size_t i) { return values[i]; }));
  };
  EXPECT_EQ(judged(), CopiedValues::bytes);
  for (const std::size_t at : {std::size_t{0}, values.size() - 1}) {
    for (const float value : {0.00095F, 263 / 255.0F, -8 / 255.0F, 1e-7F, 2e6F, INFINITY, NAN}) {
      const float before = std::exchange(values[at], value);
      EXPECT_EQ(judged(), CopiedValues::as_sent) << value;
      values[at] = before;
    }
  }
}

TEST(CopiedValues, AreThoseOfTheSampleThatTheHashIsOf) {
  for (const std::uint64_t bytes : {65'537U, 65'540U, 65'544U, 1U << 20U, 4'000'000U, 12'345'678U}) {
    EXPECT_EQ(piece_begin(bytes, 0), 0U);
    EXPECT_EQ(piece_begin(bytes, recording::kSamplePieces - 1), bytes - kPieceBytes);
    for (std::size_t i = 1; i < recording::kSamplePieces; ++i) {
      EXPECT_GE(piece_begin(bytes, i), piece_begin(bytes, i - 1) + kPieceBytes);
      for (const std::uint64_t value : {4U, 8U}) {
        EXPECT_TRUE(bytes % value != 0 || piece_begin(bytes, i) % value == 0) << "a value would be cut";
      }
    }
  }
}

}  // namespace
}  // namespace penstock::recorder
