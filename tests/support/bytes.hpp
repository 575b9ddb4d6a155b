#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

namespace penstock::testing {

inline constexpr std::byte kPoison{0xA5};

inline std::vector<std::byte> random_bytes(std::size_t count, std::uint64_t seed) {
  std::vector<std::byte> bytes(count);
  std::mt19937_64 generator(seed * 2654435761u + 1);
  std::size_t at = 0;
  for (; at + 8 <= count; at += 8) {
    const std::uint64_t word = generator();
    std::memcpy(bytes.data() + at, &word, 8);
  }
  for (; at < count; ++at) bytes[at] = static_cast<std::byte>(generator());
  return bytes;
}

/// True if each byte is `value`. Under a sanitizer this takes a hundredth of the time of a loop.
inline bool is_filled(std::span<const std::byte> bytes, std::byte value) {
  return bytes.empty() ||
         (bytes.front() == value && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

/// First position at which the ranges differ, or -1.
inline std::ptrdiff_t first_difference(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (a.size() != b.size()) return static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
  if (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0) return -1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return static_cast<std::ptrdiff_t>(i);
  }
  return -1;
}

}  // namespace penstock::testing
