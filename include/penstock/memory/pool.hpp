#pragma once

#include <penstock/device/device.hpp>
#include <penstock/memory/buffer.hpp>
#include <penstock/memory/memory_resource.hpp>

#include <cstddef>
#include <memory>
#include <string>

namespace penstock {

struct PoolOptions {
  /// Most bytes taken from upstream at any time. 0: half of the host's memory, or of what the device has free
  /// when the pool is made.
  std::size_t budget_bytes = 0;
  /// Upstream is asked for at least this much at a time, as the budget allows; larger requests are asked for
  /// exactly.
  std::size_t segment_bytes = std::size_t{64} << 20;
  /// Requests are rounded up to a multiple of this, and to nothing else. A power of two, 64 to 4096.
  std::size_t alignment = 256;
  /// Touch new pinned pages, together with the caller. Null: the device's.
  std::shared_ptr<HostWorkers> workers = nullptr;
};

/// What a pool did and has. Bytes are exact at the moment of the call; counts run from construction.
struct PoolStatistics {
  std::size_t budget_bytes = 0;
  std::size_t reserved_bytes = 0;   ///< taken from upstream now
  std::size_t used_bytes = 0;       ///< in buffers that are alive, after rounding to the alignment
  std::size_t requested_bytes = 0;  ///< the same before rounding
  std::size_t pending_bytes = 0;    ///< let go, but device work on them is not known to be done
  std::size_t peak_used_bytes = 0;
  std::size_t allocations = 0;
  std::size_t upstream_allocations = 0;
  double upstream_seconds = 0;  ///< spent in upstream: mapping, touching, registering
};

/// Exact-size sub-allocation with a byte budget and event-gated reuse, over any resource. Best fit with
/// coalescing; no power-of-two rounding. Memory whose last user was a stream is reused only after the event
/// recorded at its release; the wait for one release does not hold up another. Thread-safe; the host does not
/// block except in `allocate` for upstream. Buffers keep the pool's memory alive: the pool object may go
/// first; the last of them waits for pending releases. In a forked child allocations throw DeviceError, and
/// the memory is left alone.
class Pool {
 public:
  Pool(Device device, std::shared_ptr<MemoryResource> upstream, PoolOptions options, std::string name);
  ~Pool();
  Pool(Pool&&) noexcept;
  Pool& operator=(Pool&&) noexcept;

  /// A buffer of exactly `bytes`; zero gives an empty buffer. Where the budget or upstream is short, segments
  /// that no buffer lies in are given back first. Throws OutOfMemory when that is not enough and nothing
  /// pending has finished; pending memory is not waited for. Throws DeviceError where a pending release
  /// failed and nothing else serves.
  [[nodiscard]] Buffer allocate(std::size_t bytes);
  /// As allocate, but where only pending releases stand in the way, blocks the host until enough are done.
  [[nodiscard]] Buffer allocate_wait(std::size_t bytes);

  /// Sees to a free range of `bytes` now, from upstream where there is none, so that a later allocation of
  /// that much, or several of that sum, need not. Throws OutOfMemory.
  void reserve(std::size_t bytes);

  [[nodiscard]] PoolStatistics statistics() const;
  [[nodiscard]] MemoryKind kind() const noexcept;
  [[nodiscard]] const Device& device() const noexcept;

 private:
  std::shared_ptr<class PoolState> state_;
};

/// Pinned host memory on the device's NUMA node: huge pages mapped, touched by several threads, and
/// registered, which takes a fraction of the driver's own allocator's time. A forked child does not have the
/// memory mapped. Where registering is refused, the driver's own allocator is asked.
[[nodiscard]] Pool make_pinned_pool(const Device& device, PoolOptions options = {});

/// Device memory from the driver.
[[nodiscard]] Pool make_device_pool(const Device& device, PoolOptions options = {});

}  // namespace penstock
