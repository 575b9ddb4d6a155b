#include "state.hpp"

#include <sys/mman.h>

#include <algorithm>

/// Addresses without memory, and pages that come and go there.
namespace fake_cuda {

namespace {

constexpr std::size_t kPageBytes = std::size_t{2} << 20;

void* map_at(Address address, std::size_t bytes, int access) {
  const int where = address == 0 ? 0 : MAP_FIXED;
  return mmap(reinterpret_cast<void*>(address), bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | where, -1, 0);
}

}  // namespace

Result Memory::create_pages(int device, std::size_t bytes, Pages* pages) {
  if (bytes == 0 || bytes % kPageBytes != 0) return kInvalidValue;
  const std::size_t used = device_bytes(device);
  if (used > script().memory || bytes > script().memory - used) return kOutOfMemory;
  const std::lock_guard lock(mutex_);
  *pages = ++last_pages_;
  pages_[*pages] = {.device = device, .bytes = bytes};
  return kSuccess;
}

Result Memory::release_pages(Pages pages) {
  const std::lock_guard lock(mutex_);
  const auto found = pages_.find(pages);
  if (found == pages_.end() || found->second.released) return kInvalidValue;
  found->second.released = true;
  if (found->second.mapped_at == 0) pages_.erase(found);
  return kSuccess;
}

Result Memory::reserve(std::size_t bytes, Address* address) {
  if (bytes == 0 || bytes % kPageBytes != 0) return kInvalidValue;
  void* const data = map_at(0, bytes, PROT_NONE);
  if (data == MAP_FAILED) return kOutOfMemory;
  const std::lock_guard lock(mutex_);
  *address = reinterpret_cast<Address>(data);
  reserved_[*address] = bytes;
  return kSuccess;
}

Result Memory::unreserve(Address address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = reserved_.find(address);
  if (found == reserved_.end() || found->second != bytes || pages_at(address, bytes) != pages_.end())
    return kInvalidValue;
  reserved_.erase(found);
  munmap(reinterpret_cast<void*>(address), bytes);
  return kSuccess;
}

std::map<Pages, Memory::PagesState>::iterator Memory::pages_at(Address address, std::size_t bytes) {
  return std::ranges::find_if(pages_, [=](const auto& entry) {
    return entry.second.mapped_at == address && entry.second.bytes == bytes;
  });
}

Result Memory::map_pages(Address address, std::size_t bytes, Pages pages) {
  const std::lock_guard lock(mutex_);
  const auto place = reserved_.find(address);
  const auto found = pages_.find(pages);
  if (place == reserved_.end() || place->second != bytes || pages_at(address, bytes) != pages_.end() ||
      found == pages_.end() || found->second.bytes != bytes || found->second.mapped_at != 0) {
    return kInvalidValue;
  }
  found->second.mapped_at = address;
  return kSuccess;
}

Result Memory::unmap_pages(Address address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = pages_at(address, bytes);
  if (found == pages_.end()) return kInvalidValue;
  map_at(address, bytes, PROT_NONE);
  ranges_.erase(address);
  found->second.mapped_at = 0;
  if (found->second.released) pages_.erase(found);
  return kSuccess;
}

Result Memory::open_pages(Address address, std::size_t bytes, int device) {
  const std::lock_guard lock(mutex_);
  const auto found = pages_at(address, bytes);
  if (found == pages_.end() || found->second.device != device) return kInvalidValue;
  map_at(address, bytes, PROT_READ | PROT_WRITE);
  ranges_[address] = {
      .bytes = bytes, .kind = Kind::device, .device = device, .closed = true, .of_pages = true};
  return kSuccess;
}

}  // namespace fake_cuda
