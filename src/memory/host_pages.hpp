#pragma once

#include <cstddef>

namespace penstock {

class HostWorkers;

inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

/// What the kernel maps and locks by.
[[nodiscard]] std::size_t page_bytes() noexcept;

/// Maps anonymous memory, `bytes` a multiple of a page; from 2 MiB on it begins on a huge page's boundary and
/// asks for huge pages. A forked child does not get it: the child would share pages that the device writes,
/// and the parent's next store would move the parent, not the device, to a copy. Null when the kernel
/// refuses.
[[nodiscard]] void* map_host_pages(std::size_t bytes) noexcept;
void unmap_host_pages(void* data, std::size_t bytes) noexcept;

/// Makes the pages present, by the caller and `workers`. False if memory runs out.
[[nodiscard]] bool touch_host_pages(void* data, std::size_t bytes, HostWorkers& workers);

}  // namespace penstock
