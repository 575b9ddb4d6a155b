#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

/// The link between a host and a device, as the machine states it. LinkProfile has the measured link.
struct LinkInfo {
  /// PCIe generation and lanes, now and at most; 0 if unknown. An idle GPU often runs a lower generation.
  unsigned generation = 0;
  unsigned width = 0;
  unsigned max_generation = 0;
  unsigned max_width = 0;

  /// Bytes per second of payload at the maximum generation and width, after encoding and before packet
  /// headers; 0 if unknown. PCIe base specification: 8b/10b up to generation 2, 128b/130b for 3 to 5, and
  /// 242/256 flits for 6.
  [[nodiscard]] double theoretical_bytes_per_second() const noexcept;
};

/// The host's processors and memory near a device.
struct HostTopology {
  std::string processor;
  unsigned processors = 0;  ///< usable by this process (affinity mask and cgroup quota), at least 1
  unsigned numa_nodes = 1;
  std::size_t memory_bytes = 0;
};

/// Reads the host's topology. Thread-safe; the first call may take milliseconds, later ones are cached.
[[nodiscard]] const HostTopology& host_topology();

/// Bytes of memory that the process may still take: those that the kernel calls available, or what the limits
/// of its control groups leave if this is less. Read anew at each call. Thread-safe.
[[nodiscard]] std::size_t free_host_memory();

/// NUMA node of the PCI device "0000:3b:00.0"; -1 if the system does not say. Thread-safe.
[[nodiscard]] int numa_node_of_pci(const std::string& bus_id);

/// Generation and width of the PCI device's link from the system's own files; zeros if they do not say.
[[nodiscard]] LinkInfo link_of_pci(const std::string& bus_id);

/// Binds the calling thread to the processors of `numa_node`. This is a hint. Returns false, and does
/// nothing, for -1, for an unknown node, or if the system refuses.
bool bind_thread_to_node(int numa_node) noexcept;

/// Asks the system to put the untouched pages of [data, data + bytes) on `numa_node`. False if it refuses.
bool bind_memory_to_node(void* data, std::size_t bytes, int numa_node) noexcept;

/// Asks the system to spread the untouched pages of [data, data + bytes) over the NUMA nodes that this
/// process may use, a page each in turn. False if it refuses.
bool interleave_memory(void* data, std::size_t bytes) noexcept;

/// Bytes this process may lock (RLIMIT_MEMLOCK's soft limit). Nullopt if unlimited or privileged.
[[nodiscard]] std::optional<std::size_t> lock_limit() noexcept;

}  // namespace penstock
