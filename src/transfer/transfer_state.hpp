#pragma once

#include "transfer/event_pool.hpp"

#include <penstock/transfer/transfer.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

namespace penstock {

[[nodiscard]] inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// What a Transfer's copies share with the path that carries it out. Stages only go forward:
///
///   working -> submitted -> done          all device work is enqueued and marked by `event`
///                        -> working on    D2H through the host: bytes still go from slots to the destination
///   any     -> failed | cancelled         both ends are untouched from here on
class TransferState {
 public:
  enum class Stage : std::uint8_t { working, submitted, done, failed, cancelled };

  TransferState(TransferPath path, CopyDirection direction, std::size_t bytes, std::size_t pieces);

  // For the path that carries it out.
  /// Its first copy or kernel comes next on `stream`; marks this once, if the transfer is timed.
  void begin_on(const Stream& stream) noexcept;
  /// For the mark of its end: an event that keeps time if the transfer is timed, or one of `events`.
  [[nodiscard]] EventPool::Handle take_end(EventPool& events);
  /// All copies are enqueued and `event` marks their end. With `host_finishes`, the transfer is done only at
  /// `finish`.
  void submitted(EventPool::Handle event, bool host_finishes);
  void finish();
  void fail(std::exception_ptr failure);
  /// Fails once the work on `stream` has drained, so that neither end is touched afterwards.
  void fail_after(const Stream& stream, std::exception_ptr failure);
  void cancelled();
  /// Adds to the report.
  void account(std::size_t copies, double host_copy_seconds, double slot_wait_seconds);
  void set_threads(unsigned threads);
  /// Set before the transfer is shared: asks the path to stop, and says whether it will.
  std::function<bool()> on_cancel;
  /// Set before the transfer is shared: lets a thread that would wait do the work that is left instead.
  std::function<void()> help;

  /// Set before the transfer is shared, for one that is timed: events that keep time.
  std::shared_ptr<EventPool> timed_events;

  // For those who ask: see Transfer.
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
  [[nodiscard]] Stage wait_submitted();
  [[nodiscard]] Stage stage() const noexcept { return stage_.load(std::memory_order_acquire); }
  void advance(Stage next, std::exception_ptr failure = nullptr);
  void throw_unless_good(Stage stage) const;
  /// Waits for the event on the host; a failure of the device becomes the transfer's.
  void synchronize_event();

  const std::chrono::steady_clock::time_point requested_ = std::chrono::steady_clock::now();
  std::atomic<Stage> stage_{Stage::working};
  bool host_finishes_ = false;
  bool begun_ = false;
  EventPool::Handle begin_{nullptr, {}};
  EventPool::Handle event_{nullptr, {}};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::exception_ptr failure_;
  TransferReport report_;
};

}  // namespace penstock
