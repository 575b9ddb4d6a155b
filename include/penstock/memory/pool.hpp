#pragma once

#include <penstock/device/device.hpp>
#include <penstock/memory/buffer.hpp>
#include <penstock/memory/memory_resource.hpp>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace penstock {

struct PoolOptions {
  /// Most bytes taken from upstream at any time. 0: half of the host's memory, or half of the device's free
  /// memory when the pool is made.
  std::size_t budget_bytes = 0;
  /// Least bytes taken from upstream at a time, as the budget allows. Larger requests take their exact size.
  std::size_t segment_bytes = std::size_t{64} << 20;
  /// Requests are rounded up to a multiple of this and not further. A power of two, 64 to 4096.
  std::size_t alignment = 256;
  /// The team of threads that touch new pinned pages, with the caller. Null: the device's.
  std::shared_ptr<HostWorkers> workers = nullptr;
  /// What a pinned pool is for, in errors: "staging". A literal.
  std::string_view purpose = "";
};

/// What a pool did and has. Bytes are exact at the moment of the call; counts run from construction.
struct PoolStatistics {
  std::size_t budget_bytes = 0;
  std::size_t reserved_bytes = 0;   ///< taken from upstream now
  std::size_t used_bytes = 0;       ///< in buffers that are alive, after rounding to the alignment
  std::size_t requested_bytes = 0;  ///< the same before rounding
  std::size_t pending_bytes = 0;    ///< released, but device work on them is not known to be done
  std::size_t peak_used_bytes = 0;
  std::size_t allocations = 0;
  std::size_t upstream_allocations = 0;
  double upstream_seconds = 0;  ///< spent in upstream: mapping, touching, registering
};

/// Exact-size sub-allocation from any resource, within a byte budget. Best fit with coalescing; no
/// power-of-two rounding. Memory whose last user was a stream is reused only after the event recorded at its
/// release. The wait for one release does not hold up another. Thread-safe. Only `allocate` blocks the host,
/// for upstream. Buffers keep the pool's memory alive, so the pool may be destroyed first; the last owner
/// waits for pending releases. In a forked child allocations throw DeviceError, and the memory is left alone.
class Pool {
 public:
  Pool(Device device, std::shared_ptr<MemoryResource> upstream, PoolOptions options, std::string name);
  ~Pool();
  Pool(Pool&&) noexcept;
  Pool& operator=(Pool&&) noexcept;

  /// A buffer of exactly `bytes`; zero gives an empty buffer. If the budget or upstream is short, gives
  /// segments without buffers back first. Does not wait for pending memory. Throws OutOfMemory if that is not
  /// enough and no pending release has finished; DeviceError if one failed instead.
  [[nodiscard]] Buffer allocate(std::size_t bytes);
  /// As allocate. If only pending releases stand in the way, blocks the host until enough of them are done.
  [[nodiscard]] Buffer allocate_wait(std::size_t bytes);

  /// Makes sure of a free range of `bytes`, from upstream if there is none. Later allocations of that much in
  /// all then need not ask upstream, unless another pinned pool has run short meanwhile. Throws OutOfMemory.
  void reserve(std::size_t bytes);

  [[nodiscard]] PoolStatistics statistics() const;
  [[nodiscard]] MemoryKind kind() const noexcept;
  [[nodiscard]] const Device& device() const noexcept;

 private:
  std::shared_ptr<class PoolState> state_;
};

/// Pinned host memory on the device's NUMA node. Huge pages are mapped, touched by several threads and
/// registered, in a fraction of the time that the driver's allocator takes. If registering is refused, the
/// driver's allocator is used. A forked child does not have the memory mapped. Besides its own budget it
/// keeps that of pinned_memory(): if that is short, all pinned pools first give segments without buffers
/// back.
[[nodiscard]] Pool make_pinned_pool(const Device& device, PoolOptions options = {});

/// What the pinned pools of this process have together: for parked state, results, staging, loaders, relays.
struct PinnedMemory {
  std::size_t held_bytes = 0;
  std::size_t idle_bytes = 0;  ///< of these, in segments without buffers
  std::size_t free_bytes = 0;  ///< up to half of the machine's or container's memory, of what is free there
  std::string holders;         ///< "pinned pool of cuda:0 for staging has 48 MiB, ..."
};
/// Thread-safe. Reads files of the kernel.
[[nodiscard]] PinnedMemory pinned_memory();

/// Device memory from the driver.
[[nodiscard]] Pool make_device_pool(const Device& device, PoolOptions options = {});

}  // namespace penstock
