#pragma once

#include "transfer/shared/event_pool.hpp"

#include <penstock/transfer/transfer.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace penstock {

[[nodiscard]] inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The state that a Transfer's handles share with the path that carries it out. Its status only goes forward:
///
///   working -> submitted -> done          all device work is enqueued and marked by `event`
///                        -> working on    D2H through the host: bytes still go from slots to the destination
///   any     -> failed | cancelled         both ends are untouched from here on
class TransferState {
 public:
  enum class Status : std::uint8_t { working, submitted, done, failed, cancelled };

  TransferState(TransferPath path, CopyDirection direction, std::size_t bytes, std::size_t pieces);

  // For the path that carries it out.
  /// The first copy or kernel comes next on `stream`. Marks this once, if the transfer is timed.
  void begin_on(const Stream& stream) noexcept;
  /// An event to mark the end: one that keeps time if the transfer is timed, otherwise one of `events`.
  [[nodiscard]] EventPool::Handle take_end(EventPool& events);
  /// All copies are enqueued; `event` marks their end. If `host_finishes`, the transfer is done only at
  /// `finish`.
  void submitted(EventPool::Handle event, bool host_finishes);
  /// The same for copies of several devices, which have an event each.
  void submitted(std::vector<EventPool::Handle> events);
  void finish();
  void fail(std::exception_ptr failure);
  /// Fails once the work on `stream` has drained, so that neither end is touched afterwards.
  void fail_after(const Stream& stream, std::exception_ptr failure);
  void cancelled();
  /// Adds to the report.
  void account(std::size_t copies, double host_copy_seconds, double slot_wait_seconds);
  void set_threads(unsigned threads);
  /// Asks the path to stop, and says whether it will. Set before the transfer is shared.
  std::function<bool()> on_cancel;
  /// Lets a thread that would wait do the remaining work instead. Set before the transfer is shared.
  std::function<void()> help;

  /// Hands the driver at once what waits for its turn. Does not block. Set before the transfer is shared.
  std::function<void()> hurry;

  /// Copies to the device are neither cut nor put in turn. Set before the transfer is shared.
  bool whole = false;

  /// Events that keep time, for a timed transfer. Set before the transfer is shared.
  std::shared_ptr<EventPool> timed_events;

  // For handles: see Transfer.
  [[nodiscard]] bool query();
  void synchronize();
  void synchronize_source();
  void enqueue_wait(const Stream& stream);
  [[nodiscard]] TransferReport report() const;
  [[nodiscard]] std::optional<TransferSpan> span_since(const Event& origin) const;

  const TransferPath path;
  const CopyDirection direction;
  const std::size_t bytes;

 private:
  [[nodiscard]] Status wait_submitted();
  [[nodiscard]] Status status() const noexcept { return status_.load(std::memory_order_acquire); }
  void advance(Status next, std::exception_ptr failure = nullptr);
  void throw_unless_good(Status status) const;
  /// Waits for the events on the host. A failure of a device becomes the transfer's failure.
  void synchronize_events();

  const std::chrono::steady_clock::time_point requested_ = std::chrono::steady_clock::now();
  std::atomic<Status> status_{Status::working};
  bool host_finishes_ = false;
  bool begun_ = false;
  EventPool::Handle begin_{nullptr, {}};
  std::vector<EventPool::Handle> events_;  // none before it is submitted

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::exception_ptr failure_;
  TransferReport report_;
};

}  // namespace penstock
