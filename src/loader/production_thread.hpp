#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace penstock {

/// The thread on which a loader makes its batches. It ends before the loader goes to another place, and
/// begins again there. Only is_ending() is thread-safe.
class ProductionThread {
 public:
  /// `run`: what the thread does, until is_ending(). `end_waits`: ends the waits in it that do not ask that.
  ProductionThread(const char* name, std::function<void()> run, std::function<void()> end_waits);

  /// Throws Unsupported if the system cannot start a thread.
  void begin();
  /// Blocks the host until `run` has returned. It need not have begun.
  void end();
  /// True from end() to begin().
  [[nodiscard]] bool is_ending() const noexcept { return ending_; }

 private:
  const char* const name_;
  const std::function<void()> run_;
  const std::function<void()> end_waits_;
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace penstock
