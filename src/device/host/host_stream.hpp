#pragma once

#include "device/host/doorbell.hpp"
#include "device/host/host_core.hpp"
#include "device/host/host_work.hpp"
#include "device/host/work_queue.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

namespace penstock {

/// A stream of the host device: a thread that does enqueued work in order. Each piece of work has a ticket,
/// counted from 1. In the late mode, work waits until somebody needs it. The thread owns the stream and ends
/// with EndWork.
///
/// Finished work becomes visible to others only through the atomic that they wait on. The thread takes no
/// lock that an enqueuing thread takes. If a consumer forgets its wait, nothing orders it by accident, and
/// the thread sanitizer sees the race.
class HostStream : public std::enable_shared_from_this<HostStream> {
 public:
  /// How many times query() may say "not yet" in the late mode before asking counts as waiting.
  static constexpr unsigned kPatience = 3;

  /// Throws Unsupported if the system cannot start a thread.
  static std::shared_ptr<HostStream> start(std::shared_ptr<HostCore> core);
  explicit HostStream(std::shared_ptr<HostCore> core) : core_(std::move(core)) {}

  /// Appends `work` and returns its ticket. Does not block. Thread-safe.
  std::uint64_t enqueue(const Work& work);
  /// The same with EndWork. The caller holds the stream meanwhile.
  void end() noexcept;

  [[nodiscard]] bool is_of(const HostCore& device) const noexcept { return core_.get() == &device; }

  /// Ticket of the newest work.
  [[nodiscard]] std::uint64_t newest() const noexcept { return queue_.pushed(); }
  [[nodiscard]] bool done(std::uint64_t ticket) const noexcept {
    return completed_.load(std::memory_order_acquire) >= ticket;
  }
  /// done(newest()); asking again and again counts as waiting.
  [[nodiscard]] bool query() noexcept;

  /// Says that somebody waits for the work up to `ticket`.
  void need(std::uint64_t ticket) noexcept;
  /// Blocks the calling thread until the work up to `ticket` is done.
  void wait(std::uint64_t ticket) noexcept;
  /// Blocks the calling thread until `mark`, one of this stream's, has seen `ticket`.
  void wait_for(const EventMark& mark, std::uint64_t ticket) noexcept;

 private:
  void run() noexcept;
  [[nodiscard]] std::uint64_t runnable() const noexcept;

  void perform(const CopyWork& work, std::uint64_t ticket);
  void perform(const FillWork& work, std::uint64_t ticket);
  void perform(const PiecesWork& work, std::uint64_t ticket);
  void perform(const GatherWork& work, std::uint64_t ticket);
  void perform(const SplitWork& work, std::uint64_t ticket);
  void perform(const OrderWork& work, std::uint64_t ticket);
  void perform(const HashWork& work, std::uint64_t ticket);
  void perform(const RecordWork& work, std::uint64_t ticket);
  void perform(const WaitEventWork& work, std::uint64_t ticket);
  void perform(const WaitValueWork& work, std::uint64_t ticket);
  void perform(const OccupyWork& work, std::uint64_t ticket);
  void perform(const EndWork& work, std::uint64_t ticket);

  const std::shared_ptr<HostCore> core_;
  std::mutex enqueue_mutex_;  // orders producers; the stream's thread never takes it
  WorkQueue<Work> queue_;
  std::atomic<std::uint64_t> needed_{0};
  std::atomic<unsigned> queries_{0};
  Doorbell work_bell_;
  alignas(64) std::atomic<std::uint64_t> completed_{0};
  Doorbell progress_bell_;
  bool abandoned_ = false;  // a wait_value was given up: the work behind it is not done
};

}  // namespace penstock
