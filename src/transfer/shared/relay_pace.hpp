#pragma once

#include <penstock/device/device_info.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

namespace penstock {

/// The bytes of a chunk, and the copies that move them.
struct ChunkSize {
  std::size_t bytes = 0;
  std::size_t copies = 1;
};

/// The rates of the chunks that cross one wire, in bytes/s. They are compared with the best one so far.
/// Copies have a latency, so a chunk that is smaller than the best one is expected to be slower.
class ChunkRates {
 public:
  /// A rate that tells nothing.
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();
  /// A chunk is slow below this share of what is expected. Who shares a wire with one other gets half of it.
  /// Without others, rates of large chunks differ by up to a quarter if the host's memory is in use.
  static constexpr double kSlow = 0.7;

  /// `measured`: what large transfers reach if nobody else uses the wire; 0: not known before the first
  /// chunks.
  explicit ChunkRates(double measured = 0) noexcept : best_(measured) {}

  void note(double rate, ChunkSize size) noexcept {
    std::shift_left(latest_.begin(), latest_.end(), 1);
    latest_.back() = {rate, size};
    if (rate == kUnknown || rate <= best_) return;
    best_ = rate;
    copies_per_byte_ = static_cast<double>(size.copies) / static_cast<double>(size.bytes);
  }
  [[nodiscard]] double best() const noexcept { return best_; }
  /// The least that a chunk reaches if nobody else uses the wire, or others take `taken` of it. 0 if that is
  /// not known.
  [[nodiscard]] double expected(ChunkSize size, double taken = 0) const noexcept {
    const double rate = best_ - taken;
    if (rate <= 0) return 0;
    const auto bytes = static_cast<double>(size.bytes);
    const double more_copies = static_cast<double>(size.copies) - bytes * copies_per_byte_;
    return bytes / (bytes / rate + std::max(more_copies, 0.0) * kLatencySeconds);
  }
  /// The latest rate beside what is expected: less than 1 if the wire is slower than it can be. 1 if that is
  /// not known. One slow chunk does not count, two do: fewer than is_below needs.
  [[nodiscard]] double pace() const noexcept {
    const double a = beside_expected(latest_[0]);
    const double b = beside_expected(latest_[1]);
    const double c = beside_expected(latest_[2]);
    const double median = std::max(std::min(a, b), std::min(std::max(a, b), c));
    return median < 1 ? median : 1;
  }
  /// True if a chunk with this rate is not slow, by much. False if that is not known.
  [[nodiscard]] bool is_fast(double rate, ChunkSize size) const noexcept {
    return best_ > 0 && rate >= kSlow * expected(size);
  }
  /// True if the latest chunks were all slower than `share` of what is expected. `taken`: as in expected.
  [[nodiscard]] bool is_below(double share, double taken = 0) const noexcept {
    return std::ranges::all_of(
        latest_, [&](const Chunk& chunk) { return chunk.rate < share * expected(chunk.size, taken); });
  }

 private:
  struct Chunk {
    double rate = kUnknown;
    ChunkSize size;
  };

  [[nodiscard]] double beside_expected(const Chunk& chunk) const noexcept {
    return chunk.rate / expected(chunk.size);
  }

  // Of a copy between two timed events, at most.
  static constexpr double kLatencySeconds = 10e-6;

  double best_;
  double copies_per_byte_ = 0;  ///< of the best chunk: its latency is part of its rate
  // In a row. One slow chunk may be a hiccup of the host, or have met the push of another relay.
  std::array<Chunk, 3> latest_;
};

/// How fast one member relays chunks to another. It shows whether others use the same wires, such as the
/// member's own work or a collective.
///
/// A chunk is compared with the best one so far, and on the member's link also with the receiver's own link:
/// if the host is busy, all links are slow together, and nobody uses the member's. So others are not noticed
/// there if they slow the receiver's link as much. If the rates were not measured before, they are not
/// noticed either if they use the wires from the first chunk on, until they pause once.
struct RelayPace {
  ChunkRates pull;  ///< over the member's own link
  ChunkRates push;  ///< on to the receiver
  /// Pushes cross the host's memory: if it is busy, they are slow like the links.
  bool pushes_cross_host = false;

  /// Of `member`. `link`, `way`: the measured rates of its own link, and of large copies from it to the
  /// receiver, in bytes/s; 0: not known before the first chunks.
  [[nodiscard]] static RelayPace of(const DeviceInfo& member, double link, double way) noexcept {
    return {.pull = ChunkRates(link), .push = ChunkRates(way), .pushes_cross_host = member.in_host_memory};
  }

  /// True if others use the link, or the way to the receiver. `relays`: the members that relay to the
  /// receiver now. Each of the others takes as much of that way as its link brings. `own`: the pace of the
  /// receiver's link.
  [[nodiscard]] bool is_busy(std::size_t relays, double own) const noexcept {
    const double taken = static_cast<double>(relays - 1) * pull.best();
    const double slow_push = pushes_cross_host ? ChunkRates::kSlow * own : kSlowPush;
    return pull.is_below(ChunkRates::kSlow * own) || push.is_below(slow_push, taken);
  }

 private:
  // Over NVLink, pushes of 18 MiB got 91 to 100 % of what is expected while nobody else used the wires, and
  // 57 to 76 % beside NCCL's all-reduce (two H100s).
  static constexpr double kSlowPush = 0.8;
};

}  // namespace penstock
