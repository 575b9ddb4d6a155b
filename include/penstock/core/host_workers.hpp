#pragma once

#include <penstock/core/function_ref.hpp>
#include <penstock/core/shared_processors.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>

namespace penstock {

struct HostWorkersOptions {
  static constexpr unsigned kMostThreads = 16;  ///< more than 12 gained nothing in measurements

  /// Threads that work together, with the caller: at most kMostThreads; 0 means 1.
  std::size_t threads = 1;
  /// Called in each new thread, to bind it to a NUMA node's processors. May be empty; must not throw.
  std::function<void()> on_start;
  /// Which this team shares with others. Null: it works as if there were no others.
  std::shared_ptr<SharedProcessors> processors = nullptr;
};

/// A team of host threads, shared by all code that moves bytes: Device::host_workers gives a device's team.
/// Their work never waits for other work or for a buffer, so it holds up other work for at most one piece.
/// A piece of a fill may wait for a disk. Thread-safe. In a forked child only the calling thread works.
class HostWorkers {
 public:
  /// Throws InvalidArgument for more than kMostThreads.
  explicit HostWorkers(HostWorkersOptions options);
  ~HostWorkers();
  HostWorkers(const HostWorkers&) = delete;
  HostWorkers& operator=(const HostWorkers&) = delete;

  /// The number of threads: as many as were asked for, or fewer if the system cannot start more.
  [[nodiscard]] std::size_t threads() const noexcept;
  /// Null if this team shares them with none. A program's own team shares them, too, if it is given these.
  [[nodiscard]] const std::shared_ptr<SharedProcessors>& processors() const noexcept;

  /// Calls `body(i)` once for each i in [0, count), from the caller and from workers that are free, at most
  /// `threads` in all, in no particular order. Blocks the host until all calls have returned. The first
  /// exception of a body is rethrown after the others have returned; indices not begun are skipped.
  void for_each(std::size_t count, FunctionRef<void(std::size_t)> body,
                std::size_t threads = HostWorkersOptions::kMostThreads);

  /// Work that comes bit by bit. Free workers ask for it.
  class Source {
   public:
    /// At most `workers` of them work for it at a time. While teams share processors, all sources of a team
    /// together have no more than its part.
    explicit Source(std::size_t workers) : most_(workers) {}
    Source(const Source&) = delete;
    Source& operator=(const Source&) = delete;
    virtual ~Source() = default;

    /// Does one piece of the work that is ready; false if none is. Several workers call at once. Must not
    /// wait; takes tens of microseconds.
    virtual bool work() noexcept = 0;
    /// How long idle workers poll for more of it before they sleep. Waking a sleeper costs tens of
    /// microseconds in a virtual machine, as much as copying half a MiB.
    [[nodiscard]] virtual std::chrono::nanoseconds polling() const noexcept = 0;

   private:
    friend class HostWorkers;
    const std::size_t most_;
    std::atomic<std::size_t> inside_{0};  ///< workers in work()
  };
  /// Workers ask `source` from now on, until it is removed.
  void add(Source& source);
  /// Removes `source`, and blocks the host until no worker is in it.
  void remove(Source& source) noexcept;
  /// Wakes workers for new work of `source`. Does not block.
  void wake(const Source& source) noexcept;

  /// Between these, a source has work. For as long, other teams leave processors to this one. Calls nest.
  void work_begins() noexcept;
  void work_ends() noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock
