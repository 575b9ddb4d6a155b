#pragma once

#include <penstock/device/device_info.hpp>
#include <penstock/device/event.hpp>
#include <penstock/device/memory_kind.hpp>
#include <penstock/device/stream.hpp>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

namespace penstock {

class Backend;
class HostWorkers;

struct DeviceOptions {
  /// Path of the CUDA driver's library; empty: libcuda.so.1 as the system finds it.
  std::string driver_library;
};

/// What this machine has, and why it has no more.
struct DeviceInventory {
  std::vector<DeviceInfo> devices;   ///< GPUs first, then the host
  std::vector<std::string> missing;  ///< one sentence each: what is not there, why, and what would help
};

/// A device that is open. A cheap handle: copies share it; streams, events and memory keep it open.
/// Thread-safe.
///
/// All calls that are not noexcept throw DeviceError, also for a failure of earlier asynchronous work that
/// comes to light in them, and in a child of fork, where it is named PENSTOCK_FORKED.
class Device {
 public:
  /// Opens "cuda:0", "cuda" (the same), "host", "host:key=value,..." or "auto" (the first GPU, otherwise
  /// host). Keys of host: `link` (GB/s of a modelled link each way, 0: as fast as memory goes), `latency` (µs
  /// per copy), `memory` (its size, "4GiB"), `lock` (how much host memory may be locked, "8MiB") and `late`
  /// (1: destinations are poisoned when a copy is enqueued and written as late as ordering allows, which
  /// turns a forgotten wait into wrong bytes). Throws InvalidArgument for a wrong spec or an index that is
  /// not there (naming what is), and DeviceError where the driver is missing, too old, or fails. "auto" falls
  /// back to host only when there is no driver or no GPU.
  [[nodiscard]] static Device open(std::string_view spec = "auto", const DeviceOptions& options = {});

  /// Looks for devices without opening one. Does not throw: what fails is in `missing`.
  [[nodiscard]] static DeviceInventory inventory(const DeviceOptions& options = {});

  /// Wraps a backend of one's own, or a decorated one (tests inject faults and delays this way).
  explicit Device(std::shared_ptr<Backend> backend);

  [[nodiscard]] const DeviceInfo& info() const noexcept;
  [[nodiscard]] DeviceMemory memory() const;

  [[nodiscard]] Stream create_stream(StreamPriority priority = StreamPriority::normal) const;
  /// A view of somebody else's stream (PyTorch's current stream, say), which must outlive it. Null: the
  /// default.
  [[nodiscard]] Stream wrap_stream(StreamHandle native) const;
  [[nodiscard]] Event create_event(EventTiming timing = EventTiming::off,
                                   EventWait wait = EventWait::poll) const;

  // Memory, as the driver gives it. Pool and Registration (penstock/memory) are the usual ways. Each call may
  // block the host, and those that free or unlock wait for work that is queued on the device.

  /// Device memory aligned to at least 256 bytes, contents undefined. Throws OutOfMemory.
  [[nodiscard]] void* allocate(std::size_t bytes) const;
  void deallocate(void* data) const noexcept;
  /// Locked host memory from the driver's own allocator (cudaHostAlloc's way), for comparison and for systems
  /// where registering is refused. Throws OutOfMemory.
  [[nodiscard]] void* allocate_host(std::size_t bytes) const;
  void deallocate_host(void* data) const noexcept;
  /// Locks [data, data + bytes), whole pages, in place and maps them for the device. `read_only`: the device
  /// must not write, which is also the way for mappings without write permission. Throws Unsupported if the
  /// kernel, a limit or the device refuses; everything works as before then.
  void register_host(void* data, std::size_t bytes, bool read_only) const;
  void unregister_host(void* data) const noexcept;
  /// What the memory at `data` is to this device, other libraries' allocations included. Locked memory is
  /// reported as `pinned`, unknown addresses as pageable. Does not block; takes a fraction of a µs.
  [[nodiscard]] MemoryKind kind_of(const void* data) const;
  /// Where kernels reach locked host memory. Does not block. Throws InvalidArgument if the memory is not
  /// locked, Unsupported if it is not mapped for the device.
  [[nodiscard]] void* device_address(void* locked) const;

  /// The host threads that move bytes for this device, bound to its NUMA node: as many as there are
  /// processors but at most HostWorkersOptions::kMostThreads. Made at the first call and shared by all copies
  /// of the Device. Engines, loaders and pinned pools use them unless they are given others. If `threads` is
  /// not 0: a new team of so many, for whoever is not to share. Throws InvalidArgument for more than
  /// kMostThreads.
  [[nodiscard]] std::shared_ptr<HostWorkers> host_workers(std::size_t threads = 0) const;

  /// The T of this device: made at the first call, shared by all copies of the Device, destroyed with the
  /// last of them. For layers that keep something for each device. T's constructor does not ask for another.
  template <typename T>
  [[nodiscard]] T& attachment() const {
    return *static_cast<T*>(
        attachment(typeid(T), [] { return std::shared_ptr<void>(std::make_shared<T>()); }));
  }

  /// The other side of the device, for those who implement or decorate one: see backend.hpp.
  [[nodiscard]] Backend& backend() const noexcept { return *shared_backend(); }
  [[nodiscard]] const std::shared_ptr<Backend>& shared_backend() const noexcept;

 private:
  struct State;
  [[nodiscard]] void* attachment(const std::type_info& type, std::shared_ptr<void> (*make)()) const;

  std::shared_ptr<State> state_;
};

}  // namespace penstock
