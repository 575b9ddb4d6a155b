#pragma once

#include <penstock/core/feed_statistics.hpp>
#include <penstock/device/device.hpp>
#include <penstock/loader/device_batch.hpp>
#include <penstock/transfer/relay_pace.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>

namespace penstock {

/// The rate at which a link brought the batch at `place`, in bytes/s. Transfers that overlap share the link,
/// so it is that of the batch and of up to five before it, as far as each overlaps with the next. It is too
/// low if others share the first or the last of these, and never too high. ChunkRates::kUnknown if it cannot
/// be told. `transfers`: in their order.
[[nodiscard]] double link_rate_of(std::span<const BatchTimes> transfers, std::size_t place) noexcept;

/// Watches the receiver's own link, by the account of its loader. Not for smaller parts than 1 MiB, as below.
/// One thread at a time.
class OwnLinkWatch {
 public:
  /// `pulled`: the latest parts, oldest first.
  void see(std::span<const BatchTimes> pulled) noexcept;
  [[nodiscard]] double pace() const noexcept { return rates_.pace(); }

 private:
  std::pair<std::uint64_t, std::uint64_t> next_;  ///< epoch and batch of the first part not seen yet
  ChunkRates rates_;
};

/// Watches the parts of batches that one member relays: over its own link, by the account of the loader that
/// pulls them, and on to the receiver, by events of its own. Not for smaller parts than 1 MiB: their latency
/// would show. One thread at a time.
class RelayWatch {
 public:
  /// `way`: the measured rate of large copies from the member to the receiver, in bytes/s; 0: not known
  /// before the first parts. The rate of the member's own link depends on how its samples are gathered, so
  /// it is never known before.
  RelayWatch(const Device& device, double way) : device_(device), way_(way) {}

  /// Call these around the copies of a part to the receiver, which are enqueued on `stream`. Do not block.
  /// Throw DeviceError.
  void push_begins(const DeviceBatch& part, const Stream& stream);
  void push_ends(const Stream& stream);

  /// True if others use the member's link, or its way to the receiver. `pulled`: the latest parts, oldest
  /// first. `relays`, `own`: as RelayPace::is_busy. Does not block. Throws DeviceError.
  [[nodiscard]] bool is_busy(std::span<const BatchTimes> pulled, std::size_t relays, double own);

 private:
  struct Push {
    std::uint64_t epoch = 0;  ///< of the loader that pulled the part
    std::uint64_t batch = 0;
    std::size_t bytes = 0;
    Event begin;
    Event end;
  };

  /// A push that failed has no end.
  void drop_open() noexcept;

  Device device_;
  const double way_;
  std::deque<Push> pushes_;  ///< oldest first
  std::deque<Push> spare_;
  bool is_open_ = false;           ///< the latest push has no end yet
  std::optional<RelayPace> pace_;  ///< from the first part on
};

}  // namespace penstock
