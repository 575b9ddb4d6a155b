#pragma once

#include <penstock/device/backend.hpp>

#include <memory>

namespace penstock {

class Stream;

/// A marker in a stream's work. Move-only; keeps the backend alive. Recording while another thread records
/// the same event is the caller's to order; everything else is thread-safe. A moved-from event may only be
/// destroyed or assigned to.
class Event {
 public:
  Event(std::shared_ptr<Backend> backend, EventTiming timing, EventWait wait = EventWait::poll);
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;

  /// Marks the work enqueued on `stream` so far. Does not block. Throws DeviceError.
  void record(const Stream& stream);
  /// True when the marked work is done, or nothing was recorded. Does not block. Throws DeviceError.
  [[nodiscard]] bool query() const;
  /// Blocks the host until the marked work is done. Throws DeviceError.
  void synchronize() const;
  /// Makes later work on `stream` wait for this event; `stream.wait(event)` is the usual spelling.
  void enqueue_wait(const Stream& stream) const;

  /// Seconds from `begin` to this event on the device's clock. Both were made with EventTiming::on and are
  /// done; throws DeviceError otherwise.
  [[nodiscard]] double seconds_since(const Event& begin) const;

  [[nodiscard]] EventHandle native() const noexcept { return handle_; }

 private:
  std::shared_ptr<Backend> backend_;
  EventHandle handle_ = nullptr;
};

}  // namespace penstock
