#include "memory/slot_locker.hpp"

#include "core/shared/start_thread.hpp"

#include <exception>
#include <utility>

namespace penstock {

bool SlotLocker::add(std::size_t slot) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (ended_) return false;
    if (!thread_.joinable()) thread_ = start_thread("penstock-lock", [this] { run(); });
    slots_.push_back(slot);
  } catch (const std::exception&) {  // no memory, or no thread
    return false;
  }
  changed_.notify_one();
  return true;
}

std::deque<std::size_t> SlotLocker::end() noexcept {
  std::thread thread;
  std::deque<std::size_t> waiting;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    thread.swap(thread_);
    waiting.swap(slots_);
  }
  changed_.notify_one();
  if (thread.joinable()) thread.join();
  return waiting;
}

void SlotLocker::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ended_ || !slots_.empty(); });
    if (slots_.empty()) return;
    const std::size_t slot = slots_.front();
    slots_.pop_front();
    lock.unlock();
    lock_(slot);
    lock.lock();
  }
}

}  // namespace penstock
