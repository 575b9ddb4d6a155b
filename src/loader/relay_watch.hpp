#pragma once

#include "transfer/shared/relay_pace.hpp"

#include <penstock/core/feed_statistics.hpp>
#include <penstock/device/device.hpp>
#include <penstock/loader/device_batch.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>

namespace penstock {

/// The rate at which a link brings parts of batches.
struct LinkRate {
  double rate = ChunkRates::kUnknown;  ///< in bytes/s, and never too high
  ChunkSize size;                      ///< of the parts that were counted
  bool is_final = false;               ///< false: later transfers may show that the link is faster
};

/// The rate at which a link brought the batch at `place`. Transfers that overlap share the link, so it is
/// that of the batch and of some before it, as far as each overlaps with the next. If these are fewer than
/// six, it is also that of some after it, and not final until six are known, or one that does not overlap. It
/// is too low if others share the first or the last of six. ChunkRates::kUnknown if it cannot be told.
/// `transfers`: in their order.
[[nodiscard]] LinkRate link_rate_of(std::span<const BatchTimes> transfers, std::size_t place) noexcept;

/// Watches a link, by the account of a loader that pulls parts of batches over it. Not for smaller parts than
/// 1 MiB: their latency would show. One thread at a time.
class LinkWatch {
 public:
  /// `notes_fast_at_once`: also notes a rate before it is final, if it is_fast: later transfers would show
  /// the same. But it may be too low then.
  explicit LinkWatch(bool notes_fast_at_once) noexcept : notes_fast_at_once_(notes_fast_at_once) {}

  /// Notes the rate of each part once, in their order. `pulled`: the latest parts, oldest first.
  void see(std::span<const BatchTimes> pulled, ChunkRates& rates) noexcept;

 private:
  const bool notes_fast_at_once_;
  std::pair<std::uint64_t, std::uint64_t> next_;  ///< epoch and batch of the first part not noted yet
};

/// Watches the receiver's own link. One thread at a time.
class OwnLinkWatch {
 public:
  /// As LinkWatch.
  void see(std::span<const BatchTimes> pulled) noexcept { watch_.see(pulled, rates_); }
  [[nodiscard]] double pace() const noexcept { return rates_.pace(); }

 private:
  // A rate that is too low would make it seem that the host is busy.
  LinkWatch watch_{false};
  ChunkRates rates_;
};

/// Watches the parts of batches that one member relays: over its own link, by the account of the loader that
/// pulls them, and on to the receiver, by events of its own. Not for smaller parts than 1 MiB. One thread at
/// a time.
class RelayWatch {
 public:
  /// `way`: the measured rate of large copies from the member to the receiver, in bytes/s; 0: not known
  /// before the first parts. The rate of the member's own link depends on how its samples are gathered, so
  /// it is never known before.
  RelayWatch(const Device& device, double way)
      : device_(device), pace_(RelayPace::of(device.info(), 0, way)) {}

  /// Call these around the copies of a part to the receiver, which are enqueued on `stream`. Do not block.
  /// Throw DeviceError.
  void push_begins(const DeviceBatch& part, const Stream& stream);
  void push_ends(const Stream& stream);

  /// True if others use the member's link, or its way to the receiver. `pulled`: the latest parts, oldest
  /// first. `relays`, `own`: as RelayPace::is_busy. Does not block. Throws DeviceError.
  [[nodiscard]] bool is_busy(std::span<const BatchTimes> pulled, std::size_t relays, double own);

 private:
  struct Push {
    ChunkSize size;
    Event begin;
    Event end;
  };

  /// A push that failed has no end.
  void drop_open() noexcept;

  Device device_;
  // A member that gives way pulls a part now and then, and the next one tells too late that the link is free.
  LinkWatch pulls_{true};
  std::deque<Push> pushes_;  ///< oldest first
  std::deque<Push> spare_;
  bool is_open_ = false;  ///< the latest push has no end yet
  RelayPace pace_;
};

}  // namespace penstock
