#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <optional>

namespace penstock {

/// Makes whole pages present, to be written; what they hold stays. False if memory runs out or the pages
/// cannot be written. Nullopt if the kernel cannot do it: before Linux 5.14, and for memory of devices.
[[nodiscard]] inline std::optional<bool> populate_pages(void* data, std::size_t bytes) noexcept {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE
  for (;;) {
    if (::madvise(data, bytes, kPopulateWrite) == 0) return true;
    if (errno == EINVAL) return std::nullopt;
    if (errno != EAGAIN && errno != EINTR) return false;
  }
}

}  // namespace penstock
