#pragma once

#include <cstddef>
#include <cstdint>

/// NUMA nodes, as recordings have them: their number and one more. 0: it is not known.
namespace penstock::recorder {

/// That of the page in the middle of [begin, begin + bytes). Asks the kernel, which neither moves nor makes
/// the page. 0 also if nobody has touched it, if a driver mapped it, or if the question is forbidden, as in
/// many containers.
[[nodiscard]] std::uint8_t node_of_memory(const void* begin, std::uint64_t bytes) noexcept;

/// That of the processor that the calling thread runs on.
[[nodiscard]] std::uint8_t node_of_this_thread() noexcept;

/// That of the PCI device "0000:3B:00.0". `sysfs` is where the system mounted it: "/sys".
[[nodiscard]] std::uint8_t node_of_pci(const char* sysfs, const char* bus_id) noexcept;

/// That of the machine, if it has only one.
[[nodiscard]] std::uint8_t only_node(const char* sysfs) noexcept;

}  // namespace penstock::recorder
