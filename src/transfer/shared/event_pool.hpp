#pragma once

#include <penstock/device/device.hpp>

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace penstock {

/// Events that are used again. An event goes back when its last user releases it. Streams that were told to
/// wait for it keep waiting for the work that it marked then. Thread-safe.
class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  /// Makes `count` events at once, and more if they do not suffice. Throws DeviceError.
  explicit EventPool(Device device, EventTiming timing = EventTiming::off, std::size_t count = 0)
      : device_(std::move(device)), timing_(timing) {
    while (idle_.size() < count) idle_.push_back(std::make_unique<Event>(device_.create_event(timing_)));
  }

  struct Return {
    std::shared_ptr<EventPool> pool;
    void operator()(Event* event) const noexcept {
      std::unique_ptr<Event> owned(event);
      const std::lock_guard lock(pool->mutex_);
      try {
        pool->idle_.push_back(std::move(owned));
      } catch (...) {  // out of memory to keep it: destroy it instead
      }
    }
  };
  using Handle = std::unique_ptr<Event, Return>;

  [[nodiscard]] Handle take() {
    std::unique_ptr<Event> event;
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        event = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    if (!event) event = std::make_unique<Event>(device_.create_event(timing_));
    return Handle(event.release(), Return{shared_from_this()});
  }

 private:
  const Device device_;
  const EventTiming timing_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Event>> idle_;
};

}  // namespace penstock
