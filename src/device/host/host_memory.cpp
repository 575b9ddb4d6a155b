#include "device/host/host_memory.hpp"

#include "device/shared/mapping.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace penstock {

namespace {

constexpr std::size_t kHugePage = 2 * kMiB;

std::uintptr_t address_of(const void* data) noexcept { return reinterpret_cast<std::uintptr_t>(data); }

std::size_t page_bytes() noexcept { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

/// Allocates whole pages: a page shared with other memory of the program would be locked along with that.
void* allocate_pages(std::size_t bytes) noexcept {
  const bool large = bytes >= 2 * kHugePage;
  void* data = nullptr;
  if (posix_memalign(&data, large ? kHugePage : page_bytes(), align_up(bytes, page_bytes())) != 0)
    return nullptr;
  if (large) madvise(data, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  return data;
}

}  // namespace

HostMemory::HostMemory(std::size_t total, std::optional<std::size_t> lock_bytes, bool poison)
    : total_(total), lock_bytes_(lock_bytes), poison_(poison) {}

HostMemory::~HostMemory() {
  for (const KnownRange& range : ranges_) {
    if (range.origin != Origin::registered && !shared_.contains(range.begin))
      std::free(reinterpret_cast<void*>(range.begin));
  }
}

void* HostMemory::device_allocate(std::size_t bytes, bool shared) {
  if (bytes == 0) {
    throw DeviceError("PENSTOCK_INVALID_VALUE", "allocating device memory", 1,
                      "Zero bytes cannot be allocated.");
  }
  {
    const std::unique_lock lock(mutex_);
    if (bytes > total_ - used_) {
      throw OutOfMemory("device memory of host", bytes, used_, total_ - used_,
                        "Free some, or open the device with a larger memory= figure.");
    }
    used_ += bytes;
  }
  std::optional<SharedPages> pages;
  void* data = nullptr;
  try {
    if (shared) pages.emplace(align_up(bytes, page_bytes()), "penstock-device");
    data = shared ? pages->bytes().data() : allocate_pages(bytes);
  } catch (...) {
    const std::unique_lock lock(mutex_);
    used_ -= bytes;
    throw;
  }
  // A forked child would keep the memory, and has no use for it.
  if (shared) madvise(data, pages->bytes().size(), MADV_DONTFORK);
  if (data != nullptr && poison_) std::memset(data, kPoison, bytes);
  const std::unique_lock lock(mutex_);
  if (data == nullptr) {
    used_ -= bytes;
    throw OutOfMemory("the system", bytes, used_, 0, "The host itself has no memory left for the device.");
  }
  if (shared) shared_.emplace(address_of(data), *std::move(pages));
  insert({address_of(data), address_of(data) + bytes, Origin::device, false});
  return data;
}

void HostMemory::device_free(void* data) noexcept {
  const std::unique_lock lock(mutex_);
  const std::optional<KnownRange> range = remove(data, Origin::device);
  if (!range) return;
  used_ -= range->end - range->begin;
  if (shared_.erase(range->begin) == 0) std::free(data);
}

HostMemory::SharedPlace HostMemory::find_shared(const void* data) const {
  const std::shared_lock lock(mutex_);
  const auto range = find(address_of(data));
  if (range == ranges_.end()) return {};
  const auto pages = shared_.find(range->begin);
  if (pages == shared_.end()) return {};
  return {&pages->second, address_of(data) - range->begin, range->end - address_of(data)};
}

void* HostMemory::host_allocate(std::size_t bytes) {
  if (bytes == 0) {
    throw DeviceError("PENSTOCK_INVALID_VALUE", "allocating locked memory", 1,
                      "Zero bytes cannot be allocated.");
  }
  void* const data = allocate_pages(bytes);
  if (data == nullptr) {
    throw OutOfMemory("the system", bytes, 0, 0, "The host has no memory left to lock.");
  }
  const std::unique_lock lock(mutex_);
  insert({address_of(data), address_of(data) + bytes, Origin::allocated, false});
  return data;
}

void HostMemory::host_free(void* data) noexcept {
  const std::unique_lock lock(mutex_);
  if (remove(data, Origin::allocated)) std::free(data);
}

void HostMemory::host_register(void* data, std::size_t bytes, bool read_only) {
  const std::uintptr_t begin = address_of(data);
  if (data == nullptr || bytes == 0 || begin % page_bytes() != 0 || bytes % page_bytes() != 0 ||
      begin + bytes < begin) {
    throw InvalidArgument(
        fmt::format("only whole pages can be registered, and {} bytes at {} are not", bytes, data));
  }
  const MappingKind mapping = inspect_mapping(data, bytes);
  if (!mapping.readable) {
    throw InvalidArgument(fmt::format("{} at {} are not all mapped for reading, so they cannot be registered",
                                      format_bytes(bytes), data));
  }
  if (!mapping.writable && !read_only) {
    throw Unsupported("memory mapped without write permission can only be registered read-only");
  }
  const std::unique_lock lock(mutex_);
  const auto next =
      std::upper_bound(ranges_.begin(), ranges_.end(), begin,
                       [](std::uintptr_t address, const KnownRange& range) { return address < range.end; });
  if (next != ranges_.end() && next->begin < begin + bytes) {
    throw Unsupported(fmt::format("{} at {} overlap memory that is locked already, or device memory",
                                  format_bytes(bytes), data));
  }
  if (lock_bytes_ && bytes > *lock_bytes_ - std::min(registered_, *lock_bytes_)) {
    throw Unsupported(
        fmt::format("{} cannot be locked: {} of the limit of {} are in use; raise the limit (ulimit -l, or "
                    "lock= of host)",
                    format_bytes(bytes), format_bytes(registered_), format_bytes(*lock_bytes_)));
  }
  insert({begin, begin + bytes, Origin::registered, read_only});
  registered_ += bytes;
}

void HostMemory::host_unregister(void* data) noexcept {
  const std::unique_lock lock(mutex_);
  if (const std::optional<KnownRange> range = remove(data, Origin::registered)) {
    registered_ -= range->end - range->begin;
  }
}

DeviceMemory HostMemory::memory() const {
  const std::shared_lock lock(mutex_);
  return {.total = total_, .free = total_ - used_};
}

RangeKind HostMemory::kind_of(const void* data, std::size_t bytes) const {
  const std::shared_lock lock(mutex_);
  return look_up(address_of(data), address_of(data) + bytes);
}

bool HostMemory::reaches(std::span<const CopyPiece> pieces, std::size_t& to_device,
                         std::size_t& to_host) const {
  const std::shared_lock lock(mutex_);
  for (const CopyPiece& piece : pieces) {
    if (piece.bytes == 0) continue;
    const std::uintptr_t from = address_of(piece.source);
    const std::uintptr_t to = address_of(piece.destination);
    const RangeKind source = look_up(from, from + piece.bytes);
    const RangeKind destination = look_up(to, to + piece.bytes);
    if (source.kind == MemoryKind::pageable || destination.kind == MemoryKind::pageable || !source.whole ||
        !destination.whole || !destination.writable) {
      return false;
    }
    to_device += source.kind == MemoryKind::device ? 0 : piece.bytes;
    to_host += destination.kind == MemoryKind::device ? 0 : piece.bytes;
  }
  return true;
}

RangeKind HostMemory::look_up(std::uintptr_t begin, std::uintptr_t end) const noexcept {
  auto range = find(begin);
  if (range == ranges_.end()) return {};
  const bool device = range->origin == Origin::device;
  RangeKind kind{.kind = device ? MemoryKind::device : MemoryKind::pinned, .writable = !range->read_only};
  while (range->end < end) {
    const auto next = range + 1;
    const bool goes_on =
        !device && next != ranges_.end() && next->begin == range->end && next->origin != Origin::device;
    if (!goes_on) {
      kind.whole = false;
      break;
    }
    range = next;
    kind.writable = kind.writable && !range->read_only;
  }
  return kind;
}

std::vector<HostMemory::KnownRange>::const_iterator HostMemory::find(std::uintptr_t address) const noexcept {
  const auto range = std::upper_bound(ranges_.begin(), ranges_.end(), address,
                                      [](std::uintptr_t a, const KnownRange& r) { return a < r.end; });
  return range != ranges_.end() && range->begin <= address ? range : ranges_.end();
}

void HostMemory::insert(const KnownRange& range) {
  const auto next = std::upper_bound(ranges_.begin(), ranges_.end(), range.begin,
                                     [](std::uintptr_t a, const KnownRange& r) { return a < r.begin; });
  ranges_.insert(next, range);
}

std::optional<HostMemory::KnownRange> HostMemory::remove(const void* data, Origin origin) noexcept {
  const auto range = find(address_of(data));
  if (range == ranges_.end() || range->begin != address_of(data) || range->origin != origin) return {};
  const KnownRange removed = *range;
  ranges_.erase(range);
  return removed;
}

}  // namespace penstock
