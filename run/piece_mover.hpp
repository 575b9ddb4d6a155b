#pragma once

#include "core/shared/pause.hpp"

#include <penstock/core/function_ref.hpp>
#include <penstock/core/host_workers.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

namespace penstock::run {

/// Moves pieces of memory by all host workers, while the one thread that owns the mover calls the device.
/// Workers never wait for the device, and only the owner calls it: a stream may be the calling thread's own.
class PieceMover final : HostWorkers::Source {
 public:
  explicit PieceMover(std::shared_ptr<HostWorkers> workers);
  ~PieceMover() override;
  PieceMover(const PieceMover&) = delete;
  PieceMover& operator=(const PieceMover&) = delete;

  /// Calls `move(i)` once for each i in [0, count), from several threads at once. It must not throw. A worker
  /// moves up to `at_once` pieces before it looks for other work, which costs as much as moving a small one.
  /// `step(moved)` is called by the owner again and again, the last time with `count`: the first `moved`
  /// pieces are moved. It says how many of the first pieces may be moved, which never shrinks. Blocks the
  /// host. Rethrows an exception of `step` once nobody moves a piece any more.
  void run(std::size_t count, std::size_t at_once, FunctionRef<std::size_t(std::size_t moved)> step,
           FunctionRef<void(std::size_t)> move);

 private:
  // Called by workers.
  bool work() noexcept override;
  [[nodiscard]] std::chrono::nanoseconds polling() const noexcept override;

  /// False if all that are ready are claimed.
  bool move_next() noexcept;
  /// The owner's part of a run.
  void move_all(FunctionRef<std::size_t(std::size_t moved)> step);

  const std::shared_ptr<HostWorkers> workers_;
  PollingTime polling_;  ///< between runs
  std::atomic<bool> runs_{false};
  std::atomic<std::size_t> at_once_{1};

  // Of the present run. Read by who has claimed one of its pieces.
  std::size_t first_ = 0;  ///< the number of its first piece
  const FunctionRef<void(std::size_t)>* move_ = nullptr;
  std::vector<std::atomic<bool>> moved_;

  // Numbers of pieces, counted over all runs: a worker that is late claims no piece of a later run by them.
  std::atomic<std::size_t> ready_{0};  ///< those before it may be moved
  std::atomic<std::size_t> next_{0};   ///< those before it are claimed
  std::atomic<std::size_t> done_{0};   ///< as many are moved
};

}  // namespace penstock::run
