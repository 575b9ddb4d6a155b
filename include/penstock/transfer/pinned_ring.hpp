#pragma once

#include <penstock/device/device.hpp>
#include <penstock/memory/pool.hpp>

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <span>

namespace penstock {

/// Slots of pinned memory, used in turn, that bytes pass through between host and device. The ring knows
/// which slots the device may still read or write:
///
///   PinnedRing::Slot& slot = ring.next();   // blocks the host while the device uses the slot
///   ... fill slot.bytes(), enqueue copies out of it on a stream, or copies into it ...
///   slot.sent(stream);
///
/// One thread at a time, except for Slot::wait.
class PinnedRing {
 public:
  class Slot {
   public:
    Slot(const Device& device, Buffer memory, EventWait wait);
    /// Blocks the host until the device is done with the slot. If the device failed and so cannot tell, the
    /// memory is never used again.
    ~Slot();
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;

    [[nodiscard]] std::byte* data() const noexcept { return memory_.data(); }
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return memory_.bytes(); }

    /// True if the device is done with the slot. Does not block. Throws DeviceError.
    [[nodiscard]] bool is_free();
    /// Blocks the host until the device is done with the slot. Several threads may wait at once. Throws
    /// DeviceError; the slot then counts as in use.
    void wait();
    /// The same for one thread, in naps (see nap_until). They hold up other threads less than the interrupts
    /// of EventWait::sleep do.
    void wait_in_naps();
    /// Notes that the work enqueued on `stream` so far uses the slot. Does not block the host. If the work
    /// cannot be marked, waits for the stream and throws DeviceError.
    void sent(const Stream& stream);
    /// The same for the work that `marked` was recorded behind. Does not call the device. If `marked` is
    /// recorded again, the slot is in use until that work is done, too.
    void sent(std::shared_ptr<const Event> marked) noexcept;
    /// What marks the work that was sent last. Not if sent() has thrown since.
    [[nodiscard]] const Event& mark() const noexcept { return marked_ ? *marked_ : own_; }

   private:
    Device device_;
    Buffer memory_;
    Event own_;
    std::shared_ptr<const Event>
        marked_;                      ///< somebody else's event, which marks the slot's work; may be null
    std::optional<Stream> unmarked_;  ///< a view of a stream whose work could be neither marked nor awaited
    std::atomic<bool> in_use_{false};
  };

  /// Takes `slots` times `slot_bytes` of `pinned`. The host waits for a slot by `wait`. Throws OutOfMemory.
  PinnedRing(const Device& device, Pool& pinned, std::size_t slots, std::size_t slot_bytes,
             EventWait wait = EventWait::poll);

  [[nodiscard]] std::size_t size() const noexcept { return slots_.size(); }
  [[nodiscard]] Slot& operator[](std::size_t slot) noexcept { return slots_[slot]; }
  /// The next slot in turn. Blocks the host until the device is done with it. Throws DeviceError; the next
  /// call then asks for the same slot.
  [[nodiscard]] Slot& next();
  [[nodiscard]] Slot& next_in_naps();
  /// True if next() would not block. Does not block. Throws DeviceError.
  [[nodiscard]] bool next_is_free() { return slots_[turn_ % slots_.size()].is_free(); }

 private:
  std::deque<Slot> slots_;
  std::size_t turn_ = 0;
};

}  // namespace penstock
