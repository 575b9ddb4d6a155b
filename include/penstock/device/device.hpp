#pragma once

#include <penstock/device/backend.hpp>
#include <penstock/device/event.hpp>
#include <penstock/device/stream.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

struct DeviceOptions {
  /// Path of the CUDA driver's library; empty: libcuda.so.1 as the system finds it.
  std::string driver_library;
};

/// What this machine has, and why it has no more.
struct DeviceInventory {
  std::vector<DeviceInfo> devices;   ///< GPUs first, then the host
  std::vector<std::string> missing;  ///< one sentence each: what is not there, why, and what would help
};

/// A device that is open. A cheap handle: copies share the backend, and the last one closes it. Thread-safe.
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

  [[nodiscard]] const DeviceInfo& info() const noexcept { return backend_->info(); }
  [[nodiscard]] DeviceMemory memory() const { return backend_->memory(); }

  [[nodiscard]] Stream create_stream(StreamPriority priority = StreamPriority::normal) const;
  /// A view of somebody else's stream (PyTorch's current stream, say), which must outlive it. Null: the
  /// default.
  [[nodiscard]] Stream wrap_stream(StreamHandle native) const;
  [[nodiscard]] Event create_event(EventTiming timing = EventTiming::off,
                                   EventWait wait = EventWait::poll) const;

  [[nodiscard]] Backend& backend() const noexcept { return *backend_; }
  [[nodiscard]] const std::shared_ptr<Backend>& shared_backend() const noexcept { return backend_; }

 private:
  std::shared_ptr<Backend> backend_;
};

}  // namespace penstock
