#pragma once

#include <penstock/device/device_info.hpp>
#include <penstock/device/event.hpp>
#include <penstock/device/jpeg_decoder.hpp>
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
  /// Path of the CUDA driver's library. Empty: the system's libcuda.so.1.
  std::string driver_library;
};

/// The devices of this machine, and why others are missing.
struct DeviceInventory {
  std::vector<DeviceInfo> devices;   ///< GPUs first, then "host"; the other host devices are not listed
  std::vector<std::string> missing;  ///< a sentence for each missing one: why, and what would help
};

/// An open device. A cheap handle: copies share it; streams, events and memory keep it open. Thread-safe.
///
/// Calls that are not noexcept throw DeviceError, also for failed earlier work; in a forked child,
/// PENSTOCK_FORKED.
class Device {
 public:
  /// Opens "cuda:0", "cuda" (the same), "host:0", "host" and "cpu" (the same), "host:1,key=value,...",
  /// "host:key=value,..." or "auto": the first GPU, or host if there is no driver or no GPU. Host devices are
  /// numbered 0 to 15. Each call opens one with memory and links of its own. Keys of host:
  ///  - `link`: GB/s of a modelled link each way; 0: as fast as memory. `latency`: µs for each copy.
  ///  - `peer`: GB/s of a modelled link to the other host devices, each way and for all of them together. If
  ///    two differ, a copy between them takes the slower rate. 0: as fast as memory.
  ///  - `memory`: its size, "4GiB". `lock`: how much host memory may be locked, "8MiB".
  ///  - `late`: if 1, destinations are poisoned when a copy is enqueued, and written as late as ordering
  ///    allows, so that a forgotten wait gives wrong bytes.
  ///
  /// Throws InvalidArgument for a wrong spec, or a missing GPU (naming the others). Throws DeviceError if the
  /// driver is missing, too old, or fails.
  [[nodiscard]] static Device open(std::string_view spec = "auto", const DeviceOptions& options = {});

  /// Looks for devices without opening one. Does not throw: failures are in `missing`.
  [[nodiscard]] static DeviceInventory inventory(const DeviceOptions& options = {});

  /// Wraps another backend, such as a decorated one with which tests inject faults and delays.
  explicit Device(std::shared_ptr<Backend> backend);

  [[nodiscard]] const DeviceInfo& info() const noexcept;
  [[nodiscard]] DeviceMemory memory() const;

  [[nodiscard]] Stream create_stream(StreamPriority priority = StreamPriority::normal) const;
  /// A view of another library's stream, such as PyTorch's, which must outlive it. Null: the default stream.
  [[nodiscard]] Stream wrap_stream(StreamHandle native) const;
  [[nodiscard]] Event create_event(EventTiming timing = EventTiming::off,
                                   EventWait wait = EventWait::poll) const;

  /// Throws Unsupported if the device decodes no JPEGs: a host device, or a GPU for which no nvJPEG is found.
  /// The message says what would bring it. Throws OutOfMemory.
  [[nodiscard]] std::shared_ptr<JpegDecoder> make_jpeg_decoder(const JpegDecoderOptions& options) const;

  // Memory from the driver. Pool and Registration (penstock/memory) are the usual ways. Each call may block
  // the host. Calls that free or unlock wait for the work queued on the device.

  /// Device memory aligned to at least 256 bytes, contents undefined. Throws OutOfMemory.
  [[nodiscard]] void* allocate(std::size_t bytes) const;
  /// The same, of memory that other processes may map. A forked child does not have it mapped.
  [[nodiscard]] void* allocate_shared(std::size_t bytes) const;
  /// Takes memory of either.
  void deallocate(void* data) const noexcept;
  /// Locked host memory from the driver's own allocator (cudaHostAlloc), for comparison and for systems that
  /// refuse to register. Throws OutOfMemory.
  [[nodiscard]] void* allocate_host(std::size_t bytes) const;
  void deallocate_host(void* data) const noexcept;
  /// Locks [data, data + bytes), whole pages, in place, and maps them for the device. If `read_only`, the
  /// device must not write; use it for mappings without write permission. Throws Unsupported if the kernel, a
  /// limit or the device refuses. A refusal changes nothing.
  void register_host(void* data, std::size_t bytes, bool read_only) const;
  void unregister_host(void* data) const noexcept;
  /// The kind of memory at `data`, also of other libraries' allocations. Locked memory is reported as
  /// `pinned`, unknown addresses as pageable. Memory of any GPU is `device` to every GPU. Memory of another
  /// host device is so only once that is an enabled peer. Does not block; takes a fraction of a µs.
  [[nodiscard]] MemoryKind kind_of(const void* data) const;
  /// True if device memory at `data` is that of this device, and not of a peer. Managed memory is every
  /// GPU's. Does not block; takes a fraction of a µs.
  [[nodiscard]] bool owns(const void* data) const;
  /// True if peers that reach this device get to its memory at `data`, too. False for memory that a library
  /// has mapped for one GPU alone, or taken from a pool of the driver: PyTorch's with expandable_segments or
  /// backend:cudaMallocAsync. Does not block; takes a fraction of a µs.
  [[nodiscard]] bool is_open_to_peers(const void* data) const;
  /// The address at which kernels reach locked host memory. Does not block. Throws InvalidArgument if the
  /// memory is not locked, Unsupported if it is not mapped for the device.
  [[nodiscard]] void* device_address(void* locked) const;

  // Peers: open devices that copy to and from each other's memory.

  /// True if both are the same device to the driver, and so have the same memory: copies of a Device, and a
  /// GPU that was opened twice. Does not block.
  [[nodiscard]] bool same_memory(const Device& other) const noexcept;

  /// True if copies on this device's streams can get to the memory of `peer` over a link that does not lead
  /// through host memory. A device reaches itself, a GPU others if the driver says so, and a host device
  /// others with the same `late`. Does not block.
  [[nodiscard]] bool can_reach(const Device& peer) const;
  /// Lets Stream::copy on this device's streams name memory of `peer`, also memory that is allocated later.
  /// The opposite direction needs a call of its own. Holds until one of the two is closed, and keeps neither
  /// open. Does nothing if it was enabled before. May block the host for milliseconds. Throws Unsupported if
  /// the peer cannot be reached.
  void enable_peer(const Device& peer) const;

  /// The host threads that move bytes for this device, bound to its NUMA node: as many as there are
  /// processors but at most HostWorkersOptions::kMostThreads. Made at the first call and shared by all copies
  /// of the Device. Engines, loaders and pinned pools use them unless they are given others. Teams of several
  /// devices that work at the same time share the processors in equal parts (SharedProcessors). If `threads`
  /// is not 0, makes a new team of that many, which is not shared and has all of them. Throws InvalidArgument
  /// for more than kMostThreads.
  [[nodiscard]] std::shared_ptr<HostWorkers> host_workers(std::size_t threads = 0) const;

  /// The T of this device, for layers that keep state for each device. Made at the first call, shared by all
  /// copies of the Device, destroyed with the last of them. T's constructor must not ask for another.
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

/// Tells this process that `processes`, with itself, move data at the same time on the processors that it may
/// use: the teams of its devices (Device::host_workers) take their part of them. Holds until the next call; a
/// forked child begins with 1. Thread-safe.
void share_processors(unsigned processes);

}  // namespace penstock
