#pragma once

#include "transfer/transfer_state.hpp"

#include <penstock/device/device.hpp>

#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>

namespace penstock {

/// Enqueues large copies from locked memory to the device in parts, in turn on two streams of its own, and
/// one part at a time on each: CopyTurns says why. Parts are small after the link was idle, and grow while it
/// has no rest: then it sets the pace, and each part costs it some time. Thread-safe.
///
/// Nobody waits for a part's turn but a thread of the copier. It enqueues the parts that are left when a copy
/// was submitted. If a stream is to wait for the copy, the thread that says so enqueues them all at once.
class PacedCopier {
 public:
  /// Throws DeviceError.
  PacedCopier(const Device& device, std::shared_ptr<EventPool> events);
  /// Enqueues the parts that are left, and waits for them.
  ~PacedCopier();
  PacedCopier(const PacedCopier&) = delete;
  PacedCopier& operator=(const PacedCopier&) = delete;

  /// True if a copy of so many bytes is cut.
  [[nodiscard]] bool cuts(std::size_t bytes) const noexcept { return bytes > small_part_; }
  /// Copies `state->bytes`. Does not block the host. `after`: the copy waits for it; may be null. Throws
  /// Unsupported if the thread cannot be started.
  void submit(const std::shared_ptr<TransferState>& state, std::byte* destination, const std::byte* source,
              EventPool::Handle after);

 private:
  class Queue;

  const std::size_t small_part_;
  const std::shared_ptr<Queue> queue_;  ///< the handles of copies know it, too
  std::once_flag started_;
  std::thread thread_;
};

}  // namespace penstock
