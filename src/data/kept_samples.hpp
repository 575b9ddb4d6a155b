#pragma once

#include "data/file.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

namespace penstock {

/// Samples that stay in memory until the end: the first ones for which there is room. If each epoch reads
/// every sample once, in any order, no other choice saves more reads. Thread-safe.
class KeptSamples {
 public:
  KeptSamples(std::uint64_t samples, std::size_t sample_bytes, std::size_t budget_bytes)
      : sample_bytes_(sample_bytes),
        room_(room_for(samples, sample_bytes, budget_bytes)),
        states_(static_cast<std::size_t>(room_ > 0 ? samples : 0)),
        pages_(static_cast<std::size_t>(room_) * sample_bytes) {}

  /// How many find room.
  [[nodiscard]] std::uint64_t room() const noexcept { return room_; }
  /// Empty if it is not kept.
  [[nodiscard]] std::span<const std::byte> find(std::uint64_t sample) const noexcept {
    if (room_ == 0) return {};
    const std::uint32_t state = states_[static_cast<std::size_t>(sample)].load(std::memory_order_acquire);
    if (state < kFirst) return {};
    return pages_.bytes().subspan((state - kFirst) * sample_bytes_, sample_bytes_);
  }
  /// Keeps a copy if there is room, unless the sample is kept already.
  void keep(std::uint64_t sample, std::span<const std::byte> bytes) noexcept {
    if (next_.load(std::memory_order_relaxed) >= room_) return;
    std::atomic<std::uint32_t>& state = states_[static_cast<std::size_t>(sample)];
    std::uint32_t none = kNone;
    if (!state.compare_exchange_strong(none, kWritten)) return;
    const std::uint64_t place = next_.fetch_add(1);
    if (place >= room_) return;
    std::memcpy(pages_.bytes().data() + place * sample_bytes_, bytes.data(), sample_bytes_);
    state.store(static_cast<std::uint32_t>(place) + kFirst, std::memory_order_release);
  }

 private:
  // The states of a sample: not kept; being written, or without room; and then its place.
  static constexpr std::uint32_t kNone = 0;
  static constexpr std::uint32_t kWritten = 1;
  static constexpr std::uint32_t kFirst = 2;

  static std::uint64_t room_for(std::uint64_t samples, std::size_t sample_bytes,
                                std::size_t budget) noexcept {
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max() - kFirst;
    const std::uint64_t states = samples * sizeof(std::uint32_t);
    return std::min({samples, (budget - std::min<std::uint64_t>(budget, states)) / sample_bytes, kMost});
  }

  const std::size_t sample_bytes_;
  const std::uint64_t room_;
  std::vector<std::atomic<std::uint32_t>> states_;
  HostPages pages_;
  std::atomic<std::uint64_t> next_{0};
};

}  // namespace penstock
