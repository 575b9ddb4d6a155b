#include "state.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>

/// Memory that several processes map. An allocation moves to a file of memory when it gets a name, and
/// whoever opens the name maps the file, by way of the process that has it open.
namespace fake_cuda {

namespace {

struct Name {
  static constexpr unsigned long long kMagic = 0x6375'4970'634d'656d;
  unsigned long long magic = kMagic;
  int process = 0;
  int file = -1;
  int gpu = 0;
  unsigned long long inode = 0;
  std::size_t bytes = 0;
};
static_assert(sizeof(Name) <= sizeof(IpcMemoryHandle));

unsigned long long inode_of(int file) {
  struct stat facts{};
  return fstat(file, &facts) == 0 ? facts.st_ino : 0;
}

}  // namespace

Result Memory::range_of(Address address, Address* begin, std::size_t* bytes) {
  const std::lock_guard lock(mutex_);
  auto next = ranges_.upper_bound(address);
  if (next == ranges_.begin()) return kNotFound;
  const auto& [first, range] = *--next;
  if (range.kind != Kind::device || address >= first + range.bytes) return kNotFound;
  *begin = first;
  *bytes = range.bytes;
  return kSuccess;
}

Result Memory::name_device(Address address, IpcMemoryHandle* handle) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(address);
  if (found == ranges_.end() || script().managed) return kInvalidValue;
  Range& range = found->second;
  if (range.kind != Kind::device || range.opened_by >= 0) return kInvalidValue;
  if (range.file < 0) {
    void* const data = reinterpret_cast<void*>(address);
    const std::size_t bytes = whole_pages(range.bytes);
    const int file = memfd_create("fake-cuda", MFD_CLOEXEC);
    const bool moved = file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0 &&
                       pwrite(file, data, bytes, 0) == static_cast<ssize_t>(bytes) &&
                       mmap(data, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == data;
    if (!moved) {
      if (file >= 0) close(file);
      return kOutOfMemory;
    }
    range.file = file;
  }
  const Name name{.process = getpid(),
                  .file = range.file,
                  .gpu = script().first_gpu + range.device,
                  .inode = inode_of(range.file),
                  .bytes = range.bytes};
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &name, sizeof name);
  return kSuccess;
}

Result Memory::open_named(int device, const IpcMemoryHandle& handle, Address* address) {
  Name name;
  std::memcpy(static_cast<void*>(&name), &handle, sizeof name);
  if (name.magic != Name::kMagic) return kInvalidValue;
  if (name.process == getpid()) return kInvalidContext;
  const int owner = name.gpu - script().first_gpu;
  if (owner != device && !script().peer_access) return kPeerAccessUnsupported;
  const std::lock_guard lock(mutex_);
  for (auto& [begin, range] : ranges_) {
    if (range.opened_by != device || range.inode != name.inode) continue;
    ++range.opened;
    *address = begin;
    return kSuccess;
  }
  const std::string path = "/proc/" + std::to_string(name.process) + "/fd/" + std::to_string(name.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return kInvalidHandle;
  void* data = MAP_FAILED;
  if (inode_of(file) == name.inode) {
    data = mmap(nullptr, whole_pages(name.bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  close(file);
  if (data == MAP_FAILED) return kInvalidHandle;
  *address = reinterpret_cast<Address>(data);
  ranges_[*address] = {.bytes = name.bytes,
                       .kind = Kind::device,
                       .device = owner,
                       .opened_by = device,
                       .opened = 1,
                       .inode = name.inode};
  return kSuccess;
}

long Memory::opened() {
  const std::lock_guard lock(mutex_);
  long count = 0;
  for (const auto& [begin, range] : ranges_) count += range.opened_by >= 0 ? 1 : 0;
  return count;
}

Result Memory::close_named(Address address) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(address);
  if (found == ranges_.end() || found->second.opened_by < 0) return kInvalidValue;
  if (--found->second.opened > 0) return kSuccess;
  munmap(reinterpret_cast<void*>(address), whole_pages(found->second.bytes));
  ranges_.erase(found);
  return kSuccess;
}

}  // namespace fake_cuda
