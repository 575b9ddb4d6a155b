#pragma once

#include <penstock/core/fork.hpp>

#include <cstdint>
#include <latch>
#include <memory>
#include <mutex>
#include <utility>

namespace penstock::python {

/// What the calls of all threads use until it is closed. Each call shares it, so that it stays until the call
/// is done. Thread-safe.
template <typename T>
class Closable {
 public:
  explicit Closable(std::unique_ptr<T> owned)
      : shared_(owned.release(), [end = end_](T* last) {
          delete last;
          end->count_down();
        }) {}

  [[nodiscard]] bool is_open() const {
    const std::lock_guard lock(mutex_);
    return shared_ != nullptr;
  }
  /// Null once it is closed. The caller does not hold the interpreter's lock, and keeps it for one call: the
  /// last to have it destroys it, which takes as long as the device.
  [[nodiscard]] std::shared_ptr<T> get() const {
    const std::lock_guard lock(mutex_);
    return shared_;
  }

  /// Blocks until the calls that have it are done, and it is destroyed. Without the interpreter's lock.
  void close() {
    if (generation_ != fork_generation()) return;  // its users are threads of the parent
    {
      std::unique_lock lock(mutex_);
      const std::shared_ptr<T> ours = std::exchange(shared_, nullptr);
      lock.unlock();
    }
    end_->wait();
  }

 private:
  const std::uint64_t generation_ = fork_generation();
  const std::shared_ptr<std::latch> end_ = std::make_shared<std::latch>(1);
  mutable std::mutex mutex_;
  std::shared_ptr<T> shared_;
};

}  // namespace penstock::python
