#include <penstock/core/error.hpp>
#include <penstock/data/permutation.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

namespace penstock {

namespace {

constexpr std::uint64_t kMaximumSize = std::uint64_t{1} << 62;

// Halves of one or two bits know affine functions only, so networks of up to five bits reach some orders more
// often than others, however many rounds they have. From six bits on, no test of ours tells the orders of
// small datasets from chance; walking down from 64 costs a small dataset nothing that matters.
constexpr unsigned kMinimumBits = 6;

// Positions computed together: a whole number of vectors on every processor, and small enough for the stack.
constexpr std::size_t kBlock = 256;

constexpr std::uint64_t splitmix(std::uint64_t& state) noexcept {
  state += 0x9E3779B97F4A7C15u;
  std::uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// One round's function of the other half: the 32-bit mixer "lowbias32" of Wellons' hash prospector, keyed
// before each of its multiplications. The same text serves single words and vectors of them.
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

}  // namespace

struct PermutationKernel {
  template <typename Word>
  [[gnu::always_inline]] static inline void rounds(const KeyedPermutation& order, Word& left,
                                                   Word& right) noexcept {
    for (std::size_t round = 0; round < KeyedPermutation::kRounds; round += 2) {
      Word mixed = right;
      mix(mixed, order.keys_[round], order.late_keys_[round]);
      left ^= mixed & order.left_mask_;
      mixed = left;
      mix(mixed, order.keys_[round + 1], order.late_keys_[round + 1]);
      right ^= mixed & order.right_mask_;
    }
  }

  // Replaces each of the first `count` values, and some that fill up the last vector, by its image. Both
  // halves fit 32 bits for every size, so the vectors hold 32-bit words whatever the size.
  template <std::size_t kLanes>
  [[gnu::always_inline]] static inline void encrypt(const KeyedPermutation& order, std::uint64_t* values,
                                                    std::size_t count) noexcept {
    using Words [[gnu::vector_size(kLanes * sizeof(std::uint32_t))]] = std::uint32_t;
    const unsigned shift = order.right_bits_;
    for (std::size_t begin = 0; begin < count; begin += kLanes) {
      std::uint32_t halves[2][kLanes];
      for (std::size_t i = 0; i < kLanes; ++i) {
        halves[0][i] = static_cast<std::uint32_t>(values[begin + i] >> shift);
        halves[1][i] = static_cast<std::uint32_t>(values[begin + i]) & order.right_mask_;
      }
      Words left;
      Words right;
      std::memcpy(&left, halves[0], sizeof(left));
      std::memcpy(&right, halves[1], sizeof(right));
      rounds(order, left, right);
      std::memcpy(halves[0], &left, sizeof(left));
      std::memcpy(halves[1], &right, sizeof(right));
      for (std::size_t i = 0; i < kLanes; ++i) {
        values[begin + i] = std::uint64_t{halves[0][i]} << shift | halves[1][i];
      }
    }
  }

  using Encrypt = void (*)(const KeyedPermutation&, std::uint64_t*, std::size_t) noexcept;
  static Encrypt best() noexcept;
};

namespace {

#if defined(__x86_64__)
[[gnu::target("avx512f")]] void encrypt_avx512(const KeyedPermutation& order, std::uint64_t* values,
                                               std::size_t count) noexcept {
  PermutationKernel::encrypt<16>(order, values, count);
}

[[gnu::target("avx2")]] void encrypt_avx2(const KeyedPermutation& order, std::uint64_t* values,
                                          std::size_t count) noexcept {
  PermutationKernel::encrypt<8>(order, values, count);
}
#endif

void encrypt_generic(const KeyedPermutation& order, std::uint64_t* values, std::size_t count) noexcept {
  PermutationKernel::encrypt<4>(order, values, count);
}

}  // namespace

PermutationKernel::Encrypt PermutationKernel::best() noexcept {
#if defined(__x86_64__)
  static const Encrypt chosen = __builtin_cpu_supports("avx512f") ? encrypt_avx512
                                : __builtin_cpu_supports("avx2")  ? encrypt_avx2
                                                                  : encrypt_generic;
  return chosen;
#else
  return encrypt_generic;
#endif
}

KeyedPermutation::KeyedPermutation(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch)
    : size_(size) {
  if (size == 0 || size > kMaximumSize) {
    throw InvalidArgument("A permutation of " + std::to_string(size) +
                          " elements was asked for; it takes between 1 and 2^62.");
  }
  const unsigned bits = std::max(static_cast<unsigned>(std::bit_width(size - 1)), kMinimumBits);
  right_bits_ = bits - bits / 2;
  left_mask_ = (std::uint32_t{1} << (bits / 2)) - 1;
  right_mask_ = (std::uint32_t{1} << right_bits_) - 1;
  std::uint64_t state = seed;
  state = splitmix(state) ^ epoch;
  state = splitmix(state);
  for (std::size_t round = 0; round < kRounds; ++round) {
    const std::uint64_t key = splitmix(state);
    keys_[round] = static_cast<std::uint32_t>(key);
    late_keys_[round] = static_cast<std::uint32_t>(key >> 32);
  }
}

std::uint64_t KeyedPermutation::operator()(std::uint64_t position) const noexcept {
  do {
    auto left = static_cast<std::uint32_t>(position >> right_bits_);
    auto right = static_cast<std::uint32_t>(position) & right_mask_;
    PermutationKernel::rounds(*this, left, right);
    position = std::uint64_t{left} << right_bits_ | right;
  } while (position >= size_);
  return position;
}

void KeyedPermutation::fill(std::uint64_t first, std::uint64_t stride,
                            std::span<std::uint64_t> indices) const noexcept {
  const PermutationKernel::Encrypt encrypt = PermutationKernel::best();
  // The positions still walking lie at the front of `values`; `homes` says where each result belongs. A block
  // is topped up with new positions as results leave it, so the vectors stay full.
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
    encrypt(*this, values, walking);
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
