#include "device/shared/trial_bytes.hpp"

#include <algorithm>
#include <cstring>
#include <random>

namespace penstock {

std::uint64_t trial_seed() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

std::vector<std::byte> trial_bytes(std::size_t count, std::uint64_t seed) {
  std::vector<std::byte> bytes(count);
  std::mt19937_64 random(seed);
  for (std::size_t at = 0; at < count; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, count - at));
  }
  return bytes;
}

}  // namespace penstock
