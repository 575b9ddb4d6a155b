#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

/// A shuffled order of 0 to size-1 that is computed, never stored. An index costs the same for ten samples as
/// for a trillion, at any position. It follows from (size, seed, epoch) alone.
///
/// It is an alternating Feistel network (Luby and Rackoff 1988) over the bits of a position: ceil(log2 size),
/// at least six. A result past `size` is fed in again until it falls below it ("cycle walking", Black and
/// Rogaway 2002). Mitchell, Stokes, Frank and Holmes (2022) shuffle on GPUs this way. Not for secrets.
class KeyedPermutation {
 public:
  /// Part of saved states. Changes whenever the same (size, seed, epoch) gives another order.
  static constexpr std::uint32_t kVersion = 1;
  static constexpr std::uint64_t kMaximumSize = std::uint64_t{1} << 62;
  static constexpr std::size_t kRounds = 12;

  /// The network of one (size, seed, epoch), for a device that computes the same order. The right half has
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

  /// Sets indices[i] to the index at position (first + i * stride) mod size(), some twenty times faster than
  /// one by one. first + indices.size() * stride stays below 2^63.
  void fill(std::uint64_t first, std::uint64_t stride, std::span<std::uint64_t> indices) const noexcept;

 private:
  std::uint64_t size_;
  Network network_;
};

}  // namespace penstock
