#pragma once

#include "device/host/host_stream.hpp"

#include <penstock/device/backend.hpp>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace penstock {

/// How far one stream has come with the recordings of one event. Completion has an atomic of its own, apart
/// from the stream's progress: waiting for an event orders the work recorded before it, and nothing later.
struct EventMark {
  explicit EventMark(std::shared_ptr<HostStream> on) : stream(std::move(on)) {}
  const std::shared_ptr<HostStream> stream;
  std::atomic<std::uint64_t> done{0};  ///< ticket of the newest recording that is done
  std::atomic<std::int64_t> time{0};   ///< of that recording, steady clock
};

/// An event. Its handle owns one reference, and each enqueued recording or wait owns another.
class HostEvent {
 public:
  explicit HostEvent(EventTiming timing) : timing_(timing) {}

  void record(HostStream& stream);
  /// Enqueues the wait on `stream`; does nothing if the event was not recorded.
  void enqueue_wait(HostStream& stream);
  [[nodiscard]] bool query();
  void synchronize();
  /// Nanoseconds of the steady clock. Nullopt unless the last recording is done and the event keeps time.
  [[nodiscard]] std::optional<std::int64_t> time();

  void release() noexcept;

 private:
  struct Recording {
    EventMark* mark = nullptr;
    std::uint64_t ticket = 0;
  };

  ~HostEvent() = default;
  /// The newest recording, with a reference to this event if there is a recording.
  [[nodiscard]] Recording hold_last();
  EventMark& mark_for(HostStream& stream);
  /// Enqueues work that lets go of a reference when it is done.
  std::uint64_t enqueue_on(HostStream& stream, const Work& work);

  const EventTiming timing_;
  std::atomic<std::uint32_t> references_{1};
  std::atomic<unsigned> queries_{0};
  std::mutex mutex_;
  std::deque<EventMark> marks_;  // guarded by mutex_; one for each stream it was recorded on
  Recording last_;               // guarded by mutex_
};

}  // namespace penstock
