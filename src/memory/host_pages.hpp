#pragma once

#include <cstddef>

namespace penstock {

class HostWorkers;

inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

/// The unit in which the kernel maps and locks memory.
[[nodiscard]] std::size_t page_bytes() noexcept;

/// Maps anonymous memory; `bytes` is a multiple of a page. From 2 MiB on it begins on a huge page's boundary
/// and asks for huge pages. A forked child does not get the mapping. If it did, the parent's next store would
/// go to a copy of the page, and the device would keep the old one. Null if refused.
[[nodiscard]] void* map_host_pages(std::size_t bytes) noexcept;
void unmap_host_pages(void* data, std::size_t bytes) noexcept;

/// Makes the pages present, by the caller and `workers`. False if memory runs out.
[[nodiscard]] bool touch_host_pages(void* data, std::size_t bytes, HostWorkers& workers);

}  // namespace penstock
