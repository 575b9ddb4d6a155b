#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

namespace penstock {

/// The rates of the chunks that cross one wire, in bytes/s.
class ChunkRates {
 public:
  /// A rate that tells nothing.
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();

  /// `best`: what a chunk reaches if nobody else uses the wire; 0: not known before the first chunks.
  explicit ChunkRates(double best = 0) noexcept : best_(best) {}

  /// What a chunk of so many bytes, in so many copies, reaches on a wire that carries large transfers at
  /// `rate`; 0 if that is 0.
  [[nodiscard]] static double expected(double rate, std::size_t bytes, std::size_t copies = 1) noexcept {
    const auto size = static_cast<double>(bytes);
    return rate > 0 ? size / (size / rate + static_cast<double>(copies) * kLatencySeconds) : 0;
  }

  void note(double rate) noexcept {
    std::shift_left(latest_.begin(), latest_.end(), 1);
    latest_.back() = rate;
    if (rate != kUnknown) best_ = std::max(best_, rate);
  }
  [[nodiscard]] double best() const noexcept { return best_; }
  /// The latest rate beside the best: less than 1 if the wire is slower than it can be. 1 if that is not
  /// known. One slow chunk does not count, two do: fewer than is_below needs.
  [[nodiscard]] double pace() const noexcept {
    const auto [a, b, c] = latest_;
    const double median = std::max(std::min(a, b), std::min(std::max(a, b), c));
    return median < best_ ? median / best_ : 1;
  }
  /// True if the latest chunks were all slower than `rate`, by much.
  [[nodiscard]] bool is_below(double rate) const noexcept {
    return *std::max_element(latest_.begin(), latest_.end()) < kFarBelow * rate;
  }

 private:
  // Who shares a wire with one other gets half of it. Beside NCCL's all-reduce on two H200s, pushes get an
  // estimated 50 to 65 %: they take 52 GB/s, and the all-reduce loses 35. Without others, rates of large
  // chunks differ by some percent.
  static constexpr double kFarBelow = 0.7;
  // Of a copy between two timed events, at most.
  static constexpr double kLatencySeconds = 10e-6;

  double best_;
  // In a row. One slow chunk may be a hiccup of the host, or have met the push of another relay.
  std::array<double, 3> latest_ = {kUnknown, kUnknown, kUnknown};
};

/// How fast one member relays chunks to another: over its own link (pull), and on to the receiver (push). It
/// shows whether others use the same wires, such as the member's own work or a collective.
///
/// A chunk is compared with the best one so far, and with the receiver's own link: if the host is busy, all
/// links are slow together, and nobody uses the member's. So others are not noticed if they slow the
/// receiver's link as much. If the rates were not measured before, they are not noticed either if they use
/// the wires from the first chunk on, until they pause once.
class RelayPace {
 public:
  /// As ChunkRates.
  explicit RelayPace(double pull = 0, double push = 0) noexcept : pull_(pull), push_(push) {}

  /// The rates of one chunk, in bytes/s.
  void note(double pull, double push) noexcept {
    pull_.note(pull);
    push_.note(push);
  }

  /// True if others use the link, or the way to the receiver. `relays`: the members that relay to the
  /// receiver now. Each of the others takes as much of that way as its link brings. `own`: the pace of the
  /// receiver's link.
  [[nodiscard]] bool is_busy(std::size_t relays, double own) const noexcept {
    const double taken = static_cast<double>(relays - 1) * pull_.best();
    return pull_.is_below(own * pull_.best()) || push_.is_below(own * (push_.best() - taken));
  }

 private:
  ChunkRates pull_;
  ChunkRates push_;
};

}  // namespace penstock
