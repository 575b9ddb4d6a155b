#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace penstock {

/// Decimal units for rates (GB/s) and binary units for sizes (GiB); penstock always prints which.
inline constexpr double kGB = 1e9;
inline constexpr std::size_t kKiB = std::size_t{1} << 10;
inline constexpr std::size_t kMiB = std::size_t{1} << 20;
inline constexpr std::size_t kGiB = std::size_t{1} << 30;

/// "4 KiB", "1.50 GiB", "300 B": binary, whole numbers exact, others rounded to three digits.
[[nodiscard]] std::string format_bytes(std::uint64_t bytes);

/// "3.80 µs", "1.25 ms", "210 ms", "0 s". Negative durations are printed with their sign.
[[nodiscard]] std::string format_seconds(double seconds);

/// "5.43 GB/s", "0.0012 GB/s": decimal, rounded to three digits, to two below 0.01.
[[nodiscard]] std::string format_gbps(double bytes_per_second);

/// Reads "4096", "4KiB", "1.5 GiB", "16MB", "2G" (K, M, G, T alone are binary; KB, MB, GB, TB are decimal),
/// case ignored. Throws InvalidArgument for anything else, for negative sizes and for sizes past 2^63.
[[nodiscard]] std::uint64_t parse_bytes(std::string_view text);

/// Rounds `value` up to a multiple of `alignment`, a power of two. The caller keeps the sum within size_t.
[[nodiscard]] constexpr std::size_t align_up(std::size_t value, std::size_t alignment) noexcept {
  return (value + alignment - 1) & ~(alignment - 1);
}

}  // namespace penstock
