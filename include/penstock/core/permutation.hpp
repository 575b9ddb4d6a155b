#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

/// A shuffled order of 0 to size-1 that is computed, never stored: each position's index costs the same for
/// ten samples as for a trillion, in any order, and everyone who knows (size, seed, epoch) agrees on it.
///
/// An alternating Feistel network (Luby and Rackoff 1988) over the ceil(log2 size) bits of a position (at
/// least six), whose results past `size` are fed in again until they fall below it ("cycle walking", Black
/// and Rogaway 2002); Mitchell, Stokes, Frank and Holmes (2022) made random shuffles so on GPUs. Not for
/// secrets.
class KeyedPermutation {
 public:
  /// Changes whenever the same (size, seed, epoch) gives another order: part of saved states.
  static constexpr std::uint32_t kVersion = 1;
  static constexpr std::uint64_t kMaximumSize = std::uint64_t{1} << 62;
  static constexpr std::size_t kRounds = 12;

  /// What follows from size, seed and epoch, for a device that computes the same order: the right half has
  /// `right_bits` bits, and each round has two keys.
  struct Network {
    std::uint32_t right_bits = 0;
    std::uint32_t left_mask = 0;
    std::uint32_t right_mask = 0;
    std::array<std::uint32_t, kRounds> keys{};
    std::array<std::uint32_t, kRounds> late_keys{};
  };

  /// Throws InvalidArgument for a size of 0 or past kMaximumSize.
  KeyedPermutation(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch);

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] const Network& network() const noexcept { return network_; }

  /// The index at `position`, which is below size().
  [[nodiscard]] std::uint64_t operator()(std::uint64_t position) const noexcept;

  /// indices[i] = the index at position (first + i * stride) mod size(): some twenty times quicker than one
  /// by one. first + indices.size() * stride stays below 2^63.
  void fill(std::uint64_t first, std::uint64_t stride, std::span<std::uint64_t> indices) const noexcept;

 private:
  std::uint64_t size_;
  Network network_;
};

}  // namespace penstock
