#pragma once

#include <penstock/core/function_ref.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>

namespace penstock {

struct HostWorkersOptions {
  static constexpr unsigned kMostThreads = 16;  ///< more than 12 have gained nothing yet

  /// Threads that work together, the one that asks for the work among them: at most kMostThreads; 0 is read
  /// as 1.
  std::size_t threads = 1;
  /// Called once in each new thread, to bind it to the processors of a NUMA node. May be empty; must not
  /// throw.
  std::function<void()> on_start;
};

/// A team of host threads that whoever moves bytes shares: Device::host_workers has that of a device. None of
/// their work waits for other work, for a buffer or for the device, so nobody's work holds up another's for
/// longer than one piece. Thread-safe. In a forked child nobody works but the calling thread.
class HostWorkers {
 public:
  /// Throws InvalidArgument for more than kMostThreads.
  explicit HostWorkers(HostWorkersOptions options);
  ~HostWorkers();
  HostWorkers(const HostWorkers&) = delete;
  HostWorkers& operator=(const HostWorkers&) = delete;

  /// How many there are: as many as were asked for, or fewer if the system has no more to give.
  [[nodiscard]] std::size_t threads() const noexcept;

  /// Calls `body(i)` once for each i in [0, count), from the caller and from workers that are free, at most
  /// `threads` in all, in no particular order. Blocks the host until all calls have returned. The first
  /// exception of a body is rethrown here, after the others have returned; indices not begun by then are
  /// skipped.
  void for_each(std::size_t count, FunctionRef<void(std::size_t)> body,
                std::size_t threads = HostWorkersOptions::kMostThreads);

  /// Work that comes bit by bit. Workers that are free ask for it.
  class Source {
   public:
    /// At most `workers` are in it at a time.
    explicit Source(std::size_t workers) : most_(workers) {}
    Source(const Source&) = delete;
    Source& operator=(const Source&) = delete;
    virtual ~Source() = default;

    /// Does one piece of the work, if there is one that need not be waited for; false if there is none.
    /// Several workers call at once. Waits for nothing, and takes tens of microseconds.
    virtual bool work() noexcept = 0;
    /// How long idle workers poll for more of it before they sleep. Waking a sleeper costs tens of
    /// microseconds in a virtual machine, as much as copying half a MiB.
    [[nodiscard]] virtual std::chrono::nanoseconds polling() const noexcept = 0;

   private:
    friend class HostWorkers;
    const std::size_t most_;
    std::atomic<std::size_t> inside_{0};  ///< workers that are in it
  };
  /// Workers ask `source` from now on, until it is removed.
  void add(Source& source);
  /// Returns when no worker is in `source`. Blocks the host until then.
  void remove(Source& source) noexcept;
  /// Wakes workers for new work of `source`. Does not block.
  void wake(const Source& source) noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock
