#include "transfer/transfer_state.hpp"

#include "core/shared/wait_quietly.hpp"

#include <penstock/core/error.hpp>

#include <algorithm>
#include <utility>

namespace penstock {

TransferState::TransferState(TransferPath path_taken, CopyDirection way, std::size_t size, std::size_t pieces)
    : path(path_taken), direction(way), bytes(size) {
  report_.path = path;
  report_.direction = direction;
  report_.bytes = bytes;
  report_.pieces = pieces;
}

void TransferState::begin_on(const Stream& stream) noexcept {
  if (!timed_events) return;
  const std::lock_guard lock(mutex_);  // others wait with their copies until this is marked
  if (std::exchange(begun_, true)) return;
  try {
    begin_ = timed_events->take();
    begin_->record(stream);
  } catch (...) {  // the transfer is not timed
    begin_.reset();
  }
}

EventPool::Handle TransferState::take_end(EventPool& events) {
  EventPool& pool = timed_events ? *timed_events : events;
  return pool.take();
}

void TransferState::submitted(EventPool::Handle event, bool host_finishes) {
  events_.push_back(std::move(event));
  host_finishes_ = host_finishes;
  advance(Status::submitted);
}

void TransferState::submitted(std::vector<EventPool::Handle> events) {
  events_ = std::move(events);
  advance(Status::submitted);
}

void TransferState::finish() { advance(Status::done); }

void TransferState::fail(std::exception_ptr failure) { advance(Status::failed, std::move(failure)); }

void TransferState::fail_after(const Stream& stream, std::exception_ptr failure) {
  // If the device cannot even say so, it failed, and touches nothing any more.
  static_cast<void>(wait_quietly([&] { stream.synchronize(); }));
  fail(std::move(failure));
}

void TransferState::cancelled() { advance(Status::cancelled); }

void TransferState::advance(Status next, std::exception_ptr failure) {
  {
    const std::lock_guard lock(mutex_);
    if (status() >= Status::done) return;  // the first ending is the one that counts
    if (next >= Status::done) report_.seconds = seconds_since(requested_);
    failure_ = std::move(failure);
    status_.store(next, std::memory_order_release);
  }
  changed_.notify_all();
}

void TransferState::account(std::size_t copies, double host_copy_seconds, double slot_wait_seconds) {
  const std::lock_guard lock(mutex_);
  report_.copies += copies;
  report_.host_copy_seconds += host_copy_seconds;
  report_.slot_wait_seconds += slot_wait_seconds;
}

void TransferState::set_threads(unsigned threads) {
  const std::lock_guard lock(mutex_);
  report_.threads = threads;
}

void TransferState::throw_unless_good(Status now) const {
  if (now == Status::failed) {
    const std::lock_guard lock(mutex_);
    std::rethrow_exception(failure_);
  }
  if (now == Status::cancelled) {
    throw Closed("the transfer was cancelled before all its bytes were moved; do not use its destination");
  }
}

bool TransferState::query() {
  const Status now = status();
  throw_unless_good(now);
  if (now == Status::working) return false;
  if (now == Status::done) return true;
  bool reached = false;
  try {
    reached = std::ranges::all_of(events_, [](const auto& event) { return event->query(); });
  } catch (...) {
    synchronize_events();
    fail(std::current_exception());
    throw_unless_good(status());
  }
  if (!reached || host_finishes_) return false;
  finish();
  return true;
}

TransferState::Status TransferState::wait_submitted() {
  if (status() == Status::working) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return status() != Status::working; });
  }
  return status();
}

void TransferState::synchronize_events() {
  std::exception_ptr failure;
  for (const auto& event : events_) {
    try {
      event->synchronize();
    } catch (...) {  // the others may still write
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) fail(std::move(failure));
}

void TransferState::synchronize() {
  if (help && status() < Status::done) help();
  const Status now = wait_submitted();
  if (now == Status::submitted && host_finishes_) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return status() >= Status::done; });
  } else if (now == Status::submitted) {
    synchronize_events();
    finish();
  }
  throw_unless_good(status());
}

void TransferState::synchronize_source() {
  const bool source_is_read_by_host = direction == CopyDirection::h2d && path != TransferPath::direct;
  const Status now = wait_submitted();
  if (now == Status::submitted && !source_is_read_by_host) synchronize_events();
  throw_unless_good(status());
}

void TransferState::enqueue_wait(const Stream& stream) {
  if (hurry && status() == Status::working) hurry();
  const Status now = wait_submitted();
  throw_unless_good(now);
  // Also if the transfer is done: the events cost nothing, and order the stream after the copies.
  for (const auto& event : events_) stream.wait(*event);
}

std::optional<TransferSpan> TransferState::span_since(const Event& origin) const {
  const Status now = status();
  if (!begin_ || (now != Status::submitted && now != Status::done)) return std::nullopt;
  return TransferSpan{begin_->seconds_since(origin), events_.front()->seconds_since(origin)};
}

TransferReport TransferState::report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

}  // namespace penstock
