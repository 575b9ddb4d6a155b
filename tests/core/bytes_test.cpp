#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(Bytes, FormatsExactAndRounded) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(300), "300 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(4096), "4 KiB");
  EXPECT_EQ(format_bytes(1024000), "1000 KiB");
  EXPECT_EQ(format_bytes(3 * kGiB / 2), "1.50 GiB");
  EXPECT_EQ(format_bytes(10239), "10.0 KiB");
  EXPECT_EQ(format_bytes(kMiB - 1), "1.00 MiB");
  EXPECT_EQ(format_bytes(123456), "121 KiB");
  EXPECT_EQ(format_bytes(std::uint64_t{5} << 50), "5120 TiB");
}

TEST(Bytes, FormatsRatesWithTheirUnit) {
  EXPECT_EQ(format_gbps(0), "0.00 GB/s");
  EXPECT_EQ(format_gbps(1234567), "0.0012 GB/s");
  EXPECT_EQ(format_gbps(1.25e7), "0.01 GB/s");
  EXPECT_EQ(format_gbps(5.428e9), "5.43 GB/s");
  EXPECT_EQ(format_gbps(55.44e9), "55.4 GB/s");
  EXPECT_EQ(format_gbps(1234.5e9), "1234 GB/s");
}

TEST(Bytes, FormatsSeconds) {
  EXPECT_EQ(format_seconds(3.8e-6), "3.80 µs");
  EXPECT_EQ(format_seconds(1.25e-3), "1.25 ms");
  EXPECT_EQ(format_seconds(0.21), "210 ms");
  EXPECT_EQ(format_seconds(12.34), "12.3 s");
  EXPECT_EQ(format_seconds(-2e-9), "-2.00 ns");
  EXPECT_EQ(format_seconds(9.999e-3), "10.0 ms");
  EXPECT_EQ(format_seconds(999.9e-6), "1.00 ms");
  EXPECT_EQ(format_seconds(0), "0 s");
}

TEST(Bytes, ParsesUnits) {
  EXPECT_EQ(parse_bytes("4096"), 4096u);
  EXPECT_EQ(parse_bytes("0"), 0u);
  EXPECT_EQ(parse_bytes("17 B"), 17u);
  EXPECT_EQ(parse_bytes("4KiB"), 4096u);
  EXPECT_EQ(parse_bytes("1.5 GiB"), 3 * kGiB / 2);
  EXPECT_EQ(parse_bytes("16MB"), 16000000u);
  EXPECT_EQ(parse_bytes("2G"), 2 * kGiB);
  EXPECT_EQ(parse_bytes("1tib"), std::uint64_t{1} << 40);
}

TEST(Bytes, RefusesWhatIsNoSize) {
  for (const char* text :
       {"", "x", "-1", "1.5.5", "4 KiBs", "4 X", "KiB", "inf", "nan", "1e30", "9999999TiB"}) {
    EXPECT_THROW(static_cast<void>(parse_bytes(text)), InvalidArgument) << text;
  }
}

TEST(Bytes, RoundTripsThroughText) {
  for (const std::uint64_t bytes : {1u, 1023u, 1024u, 1u << 20, 3u << 20}) {
    EXPECT_EQ(parse_bytes(format_bytes(bytes)), bytes);
  }
}

TEST(Bytes, AlignsUp) {
  EXPECT_EQ(align_up(0, 256), 0u);
  EXPECT_EQ(align_up(1, 256), 256u);
  EXPECT_EQ(align_up(256, 256), 256u);
  EXPECT_EQ(align_up(257, 1), 257u);
}

}  // namespace
}  // namespace penstock
