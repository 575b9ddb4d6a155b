#pragma once

#include <penstock/core/function_ref.hpp>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>

namespace penstock {

struct WorkerTeamOptions {
  static constexpr unsigned kMostThreads = 16;  ///< more than 8 have gained nothing yet

  /// Threads that work on a call, the calling thread among them: at most kMostThreads; 0 is read as 1.
  std::size_t threads = 1;
  /// How long an idle worker polls before it sleeps. Waking a sleeper costs tens of microseconds in a virtual
  /// machine, as much as copying half a MiB, so work that comes in quick succession should find workers
  /// awake. Where work keeps coming later than this, workers sleep at once.
  std::chrono::microseconds spin{50};
  /// Called once in each new thread, to bind it to the processors of a NUMA node. May be empty; must not
  /// throw.
  std::function<void()> on_start;
};

/// Threads that split one loop among them. `for_each` calls from several threads take turns; nothing is
/// allocated per call. In a forked child only the calling thread works.
class WorkerTeam {
 public:
  /// Throws InvalidArgument for more than kMostThreads.
  explicit WorkerTeam(WorkerTeamOptions options);
  ~WorkerTeam();
  WorkerTeam(const WorkerTeam&) = delete;
  WorkerTeam& operator=(const WorkerTeam&) = delete;

  /// How many there are: what was asked for, or fewer where the system has no more to give.
  [[nodiscard]] std::size_t threads() const noexcept;

  /// Calls `body(i)` once for each i in [0, count), from the caller and the workers, in no particular order,
  /// and returns when all calls have returned. Blocks the host. The first exception of a body is rethrown
  /// here, after the others have returned; indices not begun by then are skipped. Must not be called from
  /// within a body.
  void for_each(std::size_t count, FunctionRef<void(std::size_t)> body);

  /// As for_each, but returns false at once, having done nothing, where another thread's for_each is under
  /// way.
  [[nodiscard]] bool try_for_each(std::size_t count, FunctionRef<void(std::size_t)> body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock
