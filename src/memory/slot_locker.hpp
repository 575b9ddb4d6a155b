#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace penstock {

/// Locks slots one after the other, on a thread of its own that the first one starts. Thread-safe.
class SlotLocker {
 public:
  /// `lock(slot)` locks a slot, and must not throw.
  explicit SlotLocker(std::function<void(std::size_t)> lock) : lock_(std::move(lock)) {}
  ~SlotLocker() { static_cast<void>(end()); }
  SlotLocker(const SlotLocker&) = delete;
  SlotLocker& operator=(const SlotLocker&) = delete;

  /// Has the slot locked soon. False if it will not be, since this has ended or there can be no thread.
  [[nodiscard]] bool add(std::size_t slot) noexcept;
  /// Waits for the lock that is being made, and makes no more. Returns the slots that waited. Any thread but
  /// its own may call it.
  [[nodiscard]] std::deque<std::size_t> end() noexcept;

 private:
  void run();

  const std::function<void(std::size_t)> lock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::size_t> slots_;  // guarded by the mutex, as are the others
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace penstock
