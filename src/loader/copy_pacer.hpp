#pragma once

#include "loader/device_ring.hpp"

#include <penstock/core/function_ref.hpp>
#include <penstock/device/device.hpp>

#include <cstddef>
#include <deque>
#include <span>
#include <vector>

namespace penstock {

/// Enqueues the copies of batches in parts, and bounds the parts that the device still has to do. A copy
/// engine serves the streams of a program in turn, so that the program's own copies wait for these parts, and
/// not for several whole batches.
///
/// The host waits for room in naps, until the device has done earlier parts. If the ring is in a hurry, it
/// enqueues the rest at once: see DeviceRing::is_in_a_hurry. One thread at a time.
class CopyPacer {
 public:
  /// `batch_bytes`: bytes of a batch that travel by copies. If all batches that the ring may have ahead are
  /// within the bound of the device's tuning, nothing is cut, marked or awaited. At most `pieces` are given
  /// to copy_each. Takes events. Throws DeviceError.
  CopyPacer(const Device& device, const DeviceRing& ring, std::size_t batch_bytes, std::size_t batches_ahead,
            std::size_t pieces);

  /// As Stream::copy from the host, and Stream::copy_each. Blocks the host while there is no room.
  void copy(const Stream& stream, std::byte* destination, const std::byte* source, std::size_t bytes);
  void copy_each(const Stream& stream, std::span<const CopyPiece> pieces);

 private:
  struct Part {
    Event done;
    std::size_t bytes = 0;
  };

  void enqueue(const Stream& stream, std::size_t bytes, FunctionRef<void()> copies);
  void enqueue_part(const Stream& stream);
  [[nodiscard]] bool has_room(std::size_t bytes);

  const DeviceRing& ring_;
  const std::size_t part_bytes_;
  const std::size_t most_bytes_;
  const bool paces_;
  std::deque<Part> queued_;       ///< parts that the device may still have to do, oldest first
  std::vector<Event> idle_;       ///< events of no part
  std::size_t queued_bytes_ = 0;  ///< of queued_
  std::vector<CopyPiece> part_;   ///< the part that is being put together
  std::size_t part_size_ = 0;     ///< its bytes
};

}  // namespace penstock
