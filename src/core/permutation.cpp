#include "core/shared/splitmix.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/permutation.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

namespace penstock {

namespace {

using Network = KeyedPermutation::Network;

// On halves of one or two bits, every function is affine. Networks of up to five bits therefore reach some
// orders more often than others, however many rounds they have. From six bits on, our tests cannot tell the
// orders of small datasets from chance. The extra walking from 64 costs a small dataset very little.
constexpr unsigned kMinimumBits = 6;

// Positions computed together: a whole number of vectors on every processor, and few enough for the stack.
constexpr std::size_t kBlock = 256;

// One round's function of the other half. It is the 32-bit mixer "lowbias32" of Wellons' hash prospector,
// keyed before each multiplication. The template serves single words and vectors of them.
template <typename Word>
[[gnu::always_inline]] inline void mix(Word& x, std::uint32_t key, std::uint32_t late_key) noexcept {
  x ^= key;
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  x ^= late_key;
  x ^= x >> 15;
  x *= 0x846CA68Bu;
  x ^= x >> 16;
}

template <typename Word>
[[gnu::always_inline]] inline void rounds(const Network& network, Word& left, Word& right) noexcept {
  for (std::size_t round = 0; round < KeyedPermutation::kRounds; round += 2) {
    Word mixed = right;
    mix(mixed, network.keys[round], network.late_keys[round]);
    left ^= mixed & network.left_mask;
    mixed = left;
    mix(mixed, network.keys[round + 1], network.late_keys[round + 1]);
    right ^= mixed & network.right_mask;
  }
}

template <std::size_t kLanes>
struct Vector {
  using Words [[gnu::vector_size(kLanes * sizeof(std::uint32_t))]] = std::uint32_t;
};

// Replaces each of the first `count` values by its image, and also those that fill up the last vector. Both
// halves fit 32 bits for every size, so the vectors hold 32-bit words.
template <std::size_t kLanes>
[[gnu::always_inline]] inline void encrypt(const Network& network, std::uint64_t* values,
                                           std::size_t count) noexcept {
  using Words = typename Vector<kLanes>::Words;
  const unsigned shift = network.right_bits;
  for (std::size_t begin = 0; begin < count; begin += kLanes) {
    std::uint32_t halves[2][kLanes];
    for (std::size_t i = 0; i < kLanes; ++i) {
      halves[0][i] = static_cast<std::uint32_t>(values[begin + i] >> shift);
      halves[1][i] = static_cast<std::uint32_t>(values[begin + i]) & network.right_mask;
    }
    Words left;
    Words right;
    std::memcpy(&left, halves[0], sizeof(left));
    std::memcpy(&right, halves[1], sizeof(right));
    rounds(network, left, right);
    std::memcpy(halves[0], &left, sizeof(left));
    std::memcpy(halves[1], &right, sizeof(right));
    for (std::size_t i = 0; i < kLanes; ++i) {
      values[begin + i] = std::uint64_t{halves[0][i]} << shift | halves[1][i];
    }
  }
}

#if defined(__x86_64__)
[[gnu::target("avx512f")]] void encrypt_avx512(const Network& network, std::uint64_t* values,
                                               std::size_t count) noexcept {
  encrypt<64>(network, values, count);
}

[[gnu::target("avx2")]] void encrypt_avx2(const Network& network, std::uint64_t* values,
                                          std::size_t count) noexcept {
  encrypt<32>(network, values, count);
}
#endif

void encrypt_generic(const Network& network, std::uint64_t* values, std::size_t count) noexcept {
  encrypt<4>(network, values, count);
}

using Encrypt = void (*)(const Network&, std::uint64_t*, std::size_t) noexcept;

Encrypt best() noexcept {
#if defined(__x86_64__)
  static const Encrypt chosen = __builtin_cpu_supports("avx512f") ? encrypt_avx512
                                : __builtin_cpu_supports("avx2")  ? encrypt_avx2
                                                                  : encrypt_generic;
  return chosen;
#else
  return encrypt_generic;
#endif
}

}  // namespace

KeyedPermutation::KeyedPermutation(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch)
    : size_(size) {
  if (size == 0 || size > kMaximumSize) {
    throw InvalidArgument("A permutation of " + std::to_string(size) +
                          " elements was asked for; it takes between 1 and 2^62.");
  }
  const unsigned bits = std::max(static_cast<unsigned>(std::bit_width(size - 1)), kMinimumBits);
  network_.right_bits = bits - bits / 2;
  network_.left_mask = (std::uint32_t{1} << (bits / 2)) - 1;
  network_.right_mask = (std::uint32_t{1} << network_.right_bits) - 1;
  std::uint64_t state = seed;
  state = splitmix(state) ^ epoch;
  state = splitmix(state);
  for (std::size_t round = 0; round < kRounds; ++round) {
    const std::uint64_t key = splitmix(state);
    network_.keys[round] = static_cast<std::uint32_t>(key);
    network_.late_keys[round] = static_cast<std::uint32_t>(key >> 32);
  }
}

std::uint64_t KeyedPermutation::operator()(std::uint64_t position) const noexcept {
  do {
    auto left = static_cast<std::uint32_t>(position >> network_.right_bits);
    auto right = static_cast<std::uint32_t>(position) & network_.right_mask;
    rounds(network_, left, right);
    position = std::uint64_t{left} << network_.right_bits | right;
  } while (position >= size_);
  return position;
}

void KeyedPermutation::fill(std::uint64_t first, std::uint64_t stride,
                            std::span<std::uint64_t> indices) const noexcept {
  const Encrypt encrypt_block = best();
  // The positions that still walk are at the front of `values`; `homes` says where each result belongs. As
  // results leave the block, new positions replace them, so the vectors stay full.
  alignas(64) std::uint64_t values[kBlock];
  std::size_t homes[kBlock];
  std::size_t walking = 0;
  std::size_t started = 0;
  std::uint64_t position = first % size_;
  stride %= size_;
  std::fill(std::begin(values), std::end(values), 0);
  while (walking > 0 || started < indices.size()) {
    for (; walking < kBlock && started < indices.size(); ++walking, ++started) {
      values[walking] = position;
      homes[walking] = started;
      position += stride;
      if (position >= size_) position -= size_;
    }
    encrypt_block(network_, values, walking);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < walking; ++i) {
      const std::uint64_t value = values[i];
      const std::size_t home = homes[i];
      indices[home] = value;
      values[kept] = value;
      homes[kept] = home;
      kept += value >= size_ ? 1 : 0;
    }
    walking = kept;
  }
}

}  // namespace penstock
