#pragma once

#include <cstdint>
#include <memory>

namespace penstock {

class Backend;
class Stream;

enum class EventTiming : std::uint8_t { off, on };
/// How the host waits for an event. Polling notices at once and keeps a processor busy. Sleeping leaves the
/// processor to others and notices some tens of microseconds late.
enum class EventWait : std::uint8_t { poll, sleep };
/// CUevent on cuda.
using EventHandle = void*;

/// A marker in a stream's work, made by Device or Stream. Move-only; keeps the device open. If several
/// threads record the same event, the caller orders the calls; everything else is thread-safe. A moved-from
/// event may only be destroyed or assigned to.
class Event {
 public:
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;

  /// Marks the work enqueued on `stream`, of the same device, so far. Does not block. Throws DeviceError.
  void record(const Stream& stream);
  /// True if the marked work is done or nothing was recorded. Does not block. Throws DeviceError.
  [[nodiscard]] bool query() const;
  /// Blocks the host until the marked work is done. Throws DeviceError.
  void synchronize() const;
  /// Makes later work on `stream` wait for this event; `stream.wait(event)` is the usual spelling. The stream
  /// may be one of another device of the same backend.
  void enqueue_wait(const Stream& stream) const;

  /// Seconds from `begin` to this event on the device's clock. Throws DeviceError unless both were made with
  /// EventTiming::on and are done.
  [[nodiscard]] double seconds_since(const Event& begin) const;

  /// True if `stream` is of the device that made this event. Only on such a stream can it be recorded.
  [[nodiscard]] bool same_device(const Stream& stream) const noexcept;
  [[nodiscard]] EventHandle native() const noexcept { return handle_; }

 private:
  friend class Device;
  friend class Stream;
  Event(std::shared_ptr<Backend> backend, EventTiming timing, EventWait wait);

  std::shared_ptr<Backend> backend_;
  EventHandle handle_ = nullptr;
};

}  // namespace penstock
