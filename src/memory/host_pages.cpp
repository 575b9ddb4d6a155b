#include "memory/host_pages.hpp"

#include "core/shared/populate_pages.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/host_workers.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>

namespace penstock {

namespace {

// Some rows of parts for each of 16 threads in a buffer of 256 MiB. Each takes a millisecond.
constexpr std::size_t kTouchPart = 2 * kHugePageBytes;

void write_each_page(std::byte* data, std::size_t bytes) noexcept {
  for (std::size_t at = 0; at < bytes; at += page_bytes()) {
    *static_cast<volatile std::byte*>(data + at) = std::byte{0};
  }
}

bool touch(std::byte* data, std::size_t bytes) noexcept {
  const std::optional<bool> present = populate_pages(data, bytes);
  if (!present) write_each_page(data, bytes);
  return present.value_or(true);
}

}  // namespace

std::size_t page_bytes() noexcept {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

void* map_host_pages(std::size_t bytes) noexcept {
  const std::size_t margin = bytes >= kHugePageBytes ? kHugePageBytes : 0;
  if (bytes + margin < bytes) return nullptr;
  void* mapped = mmap(nullptr, bytes + margin, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(mapped);
  if (margin > 0) {
    const auto address = reinterpret_cast<std::uintptr_t>(begin);
    const std::size_t before = align_up(address, kHugePageBytes) - address;
    if (before > 0) munmap(begin, before);
    if (before < margin) munmap(begin + before + bytes, margin - before);
    begin += before;
    madvise(begin, bytes, MADV_HUGEPAGE);
  }
  madvise(begin, bytes, MADV_DONTFORK);
  return begin;
}

void unmap_host_pages(void* data, std::size_t bytes) noexcept { munmap(data, bytes); }

bool touch_host_pages(void* data, std::size_t bytes, HostWorkers& workers) {
  auto* const begin = static_cast<std::byte*>(data);
  std::atomic<bool> complete{true};
  workers.for_each((bytes + kTouchPart - 1) / kTouchPart, [&](std::size_t part) {
    const std::size_t at = part * kTouchPart;
    if (!touch(begin + at, std::min(kTouchPart, bytes - at))) complete = false;
  });
  return complete;
}

}  // namespace penstock
