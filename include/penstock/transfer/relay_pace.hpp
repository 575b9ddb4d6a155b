#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

namespace penstock {

/// How fast one member relays chunks to another: over its own link (pull), and on to the receiver (push). It
/// shows whether others use the same wires, such as the member's own work or a collective.
///
/// A chunk is compared with the best one so far. So it is not noticed if others use the wires from the first
/// chunk on, until they pause once.
class RelayPace {
 public:
  /// A rate that tells nothing.
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();

  /// The rates of one chunk, in bytes/s.
  void note(double pull, double push) noexcept {
    pull_.note(pull);
    push_.note(push);
  }

  /// True if others use the link, or the way to the receiver. `relays`: the members that relay to the
  /// receiver now. Each of the others takes as much of that way as its link brings.
  [[nodiscard]] bool is_busy(std::size_t relays) const noexcept {
    const double taken = static_cast<double>(relays - 1) * pull_.best;
    return pull_.is_below(pull_.best) || push_.is_below(push_.best - taken);
  }

 private:
  // Who shares a wire with one other gets half of it. Beside NCCL's all-reduce on two H200s, pushes get an
  // estimated 50 to 65 %: they take 52 GB/s, and the all-reduce loses 35. Without others, rates of large
  // chunks differ by some percent.
  static constexpr double kBusyBelow = 0.7;
  // In a row. One slow chunk may be a hiccup of the host, or have met the push of another relay.
  static constexpr std::size_t kSlowChunks = 3;

  struct Rates {
    double best = 0;
    std::array<double, kSlowChunks> latest = {kUnknown, kUnknown, kUnknown};

    void note(double rate) noexcept {
      std::shift_left(latest.begin(), latest.end(), 1);
      latest.back() = rate;
      if (rate != kUnknown) best = std::max(best, rate);
    }
    [[nodiscard]] bool is_below(double undisturbed) const noexcept {
      return *std::max_element(latest.begin(), latest.end()) < kBusyBelow * undisturbed;
    }
  };

  Rates pull_;
  Rates push_;
};

}  // namespace penstock
