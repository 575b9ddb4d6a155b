#include "run/host_pages.hpp"

#include "core/shared/populate_pages.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/host_workers.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace penstock::run {

namespace {

constexpr std::uintptr_t kHugePage = std::uintptr_t{2} << 20;

}  // namespace

bool make_pages_present(std::byte* data, std::size_t bytes, HostWorkers& workers) {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(data) / page * page;
  const auto last = align_up(reinterpret_cast<std::uintptr_t>(data) + bytes, page);
  const auto huge = align_up(first, kHugePage);
  const auto huge_end = last / kHugePage * kHugePage;
  // Of smaller ranges, the kernel would have to keep many records.
  if (bytes >= 4 * kHugePage) ::madvise(reinterpret_cast<void*>(huge), huge_end - huge, MADV_HUGEPAGE);
  std::atomic<bool> present{true};
  const std::uintptr_t start = first / kHugePage * kHugePage;
  workers.for_each((last - start + kHugePage - 1) / kHugePage, [&](std::size_t part) {
    const std::uintptr_t begin = std::max(start + part * kHugePage, first);
    const std::uintptr_t end = std::min(start + (part + 1) * kHugePage, last);
    // If the kernel cannot do it, the pages come when they are written.
    if (!populate_pages(reinterpret_cast<void*>(begin), end - begin).value_or(true)) present = false;
  });
  return present;
}

}  // namespace penstock::run
