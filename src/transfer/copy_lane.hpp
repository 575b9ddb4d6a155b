#pragma once

#include "transfer/part_sizes.hpp"
#include "transfer/shared/copy_turns.hpp"

#include <penstock/core/function_ref.hpp>
#include <penstock/device/device.hpp>

#include <array>
#include <cstddef>
#include <mutex>

namespace penstock {

/// Two streams for copies of several transfers in one direction, in turn: CopyTurns says why. Copies that
/// follow each other are one part, up to a size; a larger copy is not cut. The device begins a part once the
/// part before is done, so other copies of the program wait for one part at most, unless copies are whole or
/// use streams(). No thread waits for a turn. Thread-safe.
class CopyLane {
 public:
  /// Throws DeviceError.
  explicit CopyLane(const Device& device);

  /// Has `copies` enqueue `bytes` on one of the streams, under a lock. `whole`: they take no turn, and come
  /// next on their stream. Does not block the host, unless `copies` does.
  void enqueue(std::size_t bytes, FunctionRef<void(const Stream&)> copies, bool whole = false);
  /// A stream on which later work comes after all copies so far. Ends the part. Does not block the host.
  [[nodiscard]] const Stream& joined();

  /// For work that takes no turns.
  [[nodiscard]] const std::array<Stream, 2>& streams() const noexcept { return streams_; }
  /// Blocks the host until the work on both streams is done, or the device failed.
  void drain() const noexcept;

 private:
  void take_turn(std::size_t bytes);
  void end_part();

  const std::array<Stream, 2> streams_;
  std::mutex mutex_;
  // Guarded by the mutex.
  CopyTurns turns_;
  PartSizes sizes_;
  std::size_t part_bytes_ = 0;  ///< of the part that has not ended
};

}  // namespace penstock
