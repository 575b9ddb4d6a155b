#pragma once

#include "device/host/wire.hpp"
#include "device/shared/peer_memory.hpp"

#include <penstock/core/shared_pages.hpp>

#include <chrono>
#include <cstddef>
#include <memory>

namespace penstock {

/// The properties of a device that another process must know to copy from it.
struct HostPeerLink {
  double bytes_per_second = 0;  ///< of its modelled link to peers
  std::chrono::nanoseconds latency{0};
  bool late = false;
};

/// Memory of a host device of another process. The wire is that process's link to its peers as this process
/// models it: processes do not see how much others take of it.
struct HostPeerMemory {
  SharedPages pages;
  Wire wire;
};

/// Names the bytes at `offset` of pages that this process keeps open.
[[nodiscard]] PeerMemoryHandle name_host_memory(const SharedPages& pages, std::size_t offset,
                                                std::size_t bytes, const HostPeerLink& link);

/// Maps memory that another process has named, for a device with `own` link. Throws Unsupported, DeviceError.
[[nodiscard]] std::unique_ptr<HostPeerMemory> open_host_memory(const PeerMemoryHandle& handle,
                                                               const HostPeerLink& own);

}  // namespace penstock
