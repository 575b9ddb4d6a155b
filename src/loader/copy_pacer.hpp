#pragma once

#include "loader/device_ring.hpp"
#include "transfer/shared/copy_turns.hpp"

#include <penstock/core/function_ref.hpp>
#include <penstock/device/device.hpp>

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace penstock {

/// Enqueues the copies of batches in parts, in turn on two streams, with two parts under way at most:
/// CopyTurns says why. Parts are large while the link sets the pace, and small if it has time to spare. Those
/// of one call are of about the same size: while the host enqueues the first part of a batch, the link has
/// only the last one of the batch before.
///
/// A batch begins on its own stream. If the one before had an even number of parts, its last one was there,
/// too: then both are under way on one stream, and the link is not idle between the batches.
///
/// The host waits in naps until the last part but one is done. It does not if it sets the pace itself, as
/// it gathers: then the link was idle when the batch began, its slot was unused, and a consumer waits for it.
/// If the ring is in a hurry, the rest of the batch is enqueued at once: see DeviceRing::is_in_a_hurry. One
/// thread at a time.
class CopyPacer {
 public:
  struct Limits {
    std::size_t batch_bytes = 0;  ///< bytes of a batch that travel by copies
    std::size_t batches = 1;      ///< that may be enqueued ahead
    std::size_t pieces = 0;       ///< of a batch, at most
    double link_rate = 0;         ///< bytes per second that the link can carry
  };

  /// If all batches ahead are no more than two small parts, nothing is cut or awaited. Throws DeviceError.
  CopyPacer(const Device& device, const DeviceRing& ring, const Limits& limits);

  /// The copies from here on are those of the batch in `slot`, whose work is on `stream`. They come after the
  /// work that is enqueued there, and may use `other`, too. Does not block the host.
  void begin(const DeviceSlot& slot, const Stream& stream, const Stream& other);
  /// As Stream::copy from the host, and Stream::copy_each. Blocks the host as said.
  void copy(std::byte* destination, const std::byte* source, std::size_t bytes);
  void copy_each(std::span<const CopyPiece> pieces);
  /// Makes later work on the batch's stream come after its copies, if there are any. Does not block the host.
  void join() { turns_.join(); }

 private:
  using Clock = std::chrono::steady_clock;

  void enqueue(std::size_t bytes, FunctionRef<void(const Stream&)> copies);
  void enqueue_part();
  /// The size of the parts of so many bytes: as few parts as there can be, all alike.
  [[nodiscard]] std::size_t even_part(std::size_t bytes) const noexcept;

  const DeviceRing& ring_;
  const std::size_t large_part_;
  const std::size_t small_part_;
  const double link_rate_;
  const bool paces_;
  Event begun_;                             ///< recorded on the batch's stream at its beginning
  CopyTurns turns_;                         ///< the batch's stream first
  bool host_paces_ = false;                 ///< the host was late with this batch
  std::size_t part_bytes_;                  ///< of this batch, at most
  std::size_t batch_bytes_ = 0;             ///< enqueued since the batch began
  std::optional<Clock::time_point> began_;  ///< when the batch began
  std::vector<CopyPiece> part_;             ///< the part that is being put together
  std::size_t part_size_ = 0;               ///< its bytes
};

}  // namespace penstock
