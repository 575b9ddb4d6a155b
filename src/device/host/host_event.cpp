#include "device/host/host_event.hpp"

#include <algorithm>
#include <optional>

namespace penstock {

void HostEvent::record(HostStream& stream) {
  const std::lock_guard lock(mutex_);
  EventMark& mark = mark_for(stream);
  references_.fetch_add(1, std::memory_order_relaxed);
  last_ = {&mark, enqueue_on(stream, RecordWork{this, &mark})};
  queries_.store(0, std::memory_order_relaxed);
}

void HostEvent::enqueue_wait(HostStream& stream) {
  const Recording recording = hold_last();
  if (recording.mark != nullptr) enqueue_on(stream, WaitEventWork{this, recording.mark, recording.ticket});
}

std::uint64_t HostEvent::enqueue_on(HostStream& stream, const Work& work) {
  try {
    return stream.enqueue(work);
  } catch (...) {
    release();
    throw;
  }
}

bool HostEvent::query() {
  const Recording recording = hold_last();
  if (recording.mark == nullptr) return true;
  const bool done = recording.mark->done.load(std::memory_order_acquire) >= recording.ticket;
  if (!done && queries_.fetch_add(1, std::memory_order_relaxed) + 1 >= HostStream::kPatience) {
    recording.mark->stream->need(recording.ticket);
  }
  release();
  return done;
}

void HostEvent::synchronize() {
  const Recording recording = hold_last();
  if (recording.mark == nullptr) return;
  recording.mark->stream->wait_for(*recording.mark, recording.ticket);
  release();
}

std::optional<std::int64_t> HostEvent::time() {
  const Recording recording = hold_last();
  if (recording.mark == nullptr) return {};
  std::optional<std::int64_t> time;
  if (timing_ == EventTiming::on &&
      recording.mark->done.load(std::memory_order_acquire) >= recording.ticket) {
    time = recording.mark->time.load(std::memory_order_relaxed);
  }
  release();
  return time;
}

void HostEvent::release() noexcept {
  if (references_.fetch_sub(1, std::memory_order_release) != 1) return;
  static_cast<void>(references_.load(std::memory_order_acquire));
  delete this;
}

HostEvent::Recording HostEvent::hold_last() {
  const std::lock_guard lock(mutex_);
  if (last_.mark != nullptr) references_.fetch_add(1, std::memory_order_relaxed);
  return last_;
}

EventMark& HostEvent::mark_for(HostStream& stream) {
  const auto mark = std::find_if(marks_.begin(), marks_.end(),
                                 [&](const EventMark& m) { return m.stream.get() == &stream; });
  if (mark != marks_.end()) return *mark;
  constexpr std::size_t kMany = 16;
  if (marks_.size() >= kMany && references_.load(std::memory_order_acquire) == 1) marks_.clear();
  return marks_.emplace_back(stream.shared_from_this());
}

}  // namespace penstock
