#pragma once

#include "memory/arena.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/fork.hpp>
#include <penstock/memory/pool.hpp>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

/// What a process that has locked `held` bytes may still lock: up to half of the `memory` of the machine or
/// container, of the `available` bytes.
[[nodiscard]] std::size_t left_to_pin(std::size_t held, std::size_t memory, std::size_t available) noexcept;

/// The state that a Pool and its buffers share. It has two locks. `mutex_` guards the bookkeeping and is
/// never held across a call to upstream. A thread that asks upstream for a segment that others may share
/// holds `growing_`, so that they wait for it. `growing_` is taken first. Larger buffers have segments of
/// their own, and several threads ask upstream for these at once.
class PoolState : public std::enable_shared_from_this<PoolState> {
 public:
  /// The last owner waits for pending releases and returns all memory to upstream. In a forked child it
  /// leaves everything as it is.
  [[nodiscard]] static std::shared_ptr<PoolState> create(Device device,
                                                         std::shared_ptr<MemoryResource> upstream,
                                                         PoolOptions options, std::string name);
  ~PoolState();
  PoolState(const PoolState&) = delete;
  PoolState& operator=(const PoolState&) = delete;

  [[nodiscard]] Buffer allocate(std::size_t bytes);
  [[nodiscard]] Buffer allocate_wait(std::size_t bytes);
  void reserve(std::size_t bytes);
  [[nodiscard]] PoolStatistics statistics() const;
  [[nodiscard]] MemoryKind kind() const noexcept { return upstream_->kind(); }
  [[nodiscard]] const Device& device() const noexcept { return device_; }

  /// Of all pinned pools, without `arriving` bytes of a segment that is being made.
  [[nodiscard]] static PinnedMemory pinned_memory(std::size_t arriving = 0);

  void release(std::byte* data) noexcept;
  void release_after(std::byte* data, const Stream& stream);

 private:
  struct Release {
    Event event;  // may be of another device than the pool's
    std::uint64_t ticket = 0;
    std::optional<Arena::Handle> block;
  };
  using Releases = std::list<Release>;
  using Lock = std::unique_lock<std::mutex>;

  PoolState(Device device, std::shared_ptr<MemoryResource> upstream, PoolOptions options, std::string name);

  [[nodiscard]] bool forked() const noexcept { return generation_ != fork_generation(); }
  void check_fork(const char* call) const;
  [[nodiscard]] std::size_t rounded(std::size_t bytes) const;
  [[nodiscard]] OutOfMemory refusal(std::size_t bytes) const;
  [[nodiscard]] Releases unused_release(const Stream& stream);

  // Called with mutex_ held.
  [[nodiscard]] std::optional<Buffer> take(std::size_t need, std::size_t bytes);
  [[nodiscard]] std::optional<Buffer> take_or_reclaim(std::size_t need, std::size_t bytes);
  [[nodiscard]] Arena::Handle let_go(std::byte* data) noexcept;
  void give(Arena::Handle block) noexcept;
  bool reclaim_if_done(Releases::iterator release);
  void reclaim_oldest() noexcept;
  void reclaim_all();
  [[nodiscard]] bool pending_could_serve(std::size_t need) const noexcept;
  [[nodiscard]] std::size_t room() const noexcept {
    return options_.budget_bytes - statistics_.reserved_bytes - arriving_bytes_;
  }
  void admit(Segment segment);
  void wait_for_change(Lock& lock);

  // Called with mutex_ not held, and with growing_ held if others may share the segment.
  [[nodiscard]] Buffer grow(std::size_t need, std::size_t bytes);
  /// A segment that still counts in `arriving_bytes_`, until it is admitted.
  [[nodiscard]] Segment new_segment(std::size_t need, std::size_t bytes);
  /// How large the segment may be. Counts it in `arriving_bytes_`.
  [[nodiscard]] std::size_t make_room(std::size_t need, std::size_t bytes);
  [[nodiscard]] Segment take_from_upstream(std::size_t bytes);
  std::size_t return_idle(std::size_t bytes) noexcept;
  /// All of this pool's, and if it is pinned of all that share its limit.
  std::size_t return_all_idle() noexcept;

  Device device_;
  std::shared_ptr<MemoryResource> upstream_;
  PoolOptions options_;
  std::string name_;
  std::uint64_t generation_ = fork_generation();

  std::mutex growing_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t frees_ = 0;  // bumped when a block becomes free
  std::size_t waiters_ = 0;
  std::size_t arriving_bytes_ = 0;  // of segments that upstream is asked for
  Arena arena_;
  Releases pending_;  // oldest first
  Releases spare_;
  std::uint64_t next_ticket_ = 0;
  std::exception_ptr failure_;  // of the last look at pending releases
  PoolStatistics statistics_;
};

}  // namespace penstock
