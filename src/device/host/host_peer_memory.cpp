#include "device/host/host_peer_memory.hpp"

#include <penstock/core/error.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

namespace penstock {

namespace {

/// The native part of a host device's handle. The number of the file may be used anew by a process that has
/// the same PID as one that ended; the number of the inode is not.
struct NativeHandle {
  static constexpr std::uint64_t kMagic = 0x3130'4d50'4b43'5453;
  std::uint64_t magic = kMagic;
  std::int32_t process = 0;
  std::int32_t file = -1;
  std::uint64_t inode = 0;
  double bytes_per_second = 0;
  std::int64_t latency_ns = 0;
  std::uint64_t late = 0;
};
static_assert(sizeof(NativeHandle) <= sizeof(PeerMemoryHandle::native));

constexpr char kCall[] = "memory_import";

[[noreturn]] void refuse_gone(const NativeHandle& native, const char* why) {
  throw DeviceError(
      "PENSTOCK_PEER_MEMORY_GONE", kCall, 4,
      fmt::format("The process {} that has the memory has ended or has freed it ({}).", native.process, why));
}

}  // namespace

PeerMemoryHandle name_host_memory(const SharedPages& pages, std::size_t offset, std::size_t bytes,
                                  const HostPeerLink& link) {
  struct stat facts{};
  if (fstat(pages.file(), &facts) != 0) {
    throw DeviceError("PENSTOCK_SYSTEM", "fstat", errno, std::strerror(errno));
  }
  const NativeHandle native{.process = getpid(),
                            .file = pages.file(),
                            .inode = facts.st_ino,
                            .bytes_per_second = link.bytes_per_second,
                            .latency_ns = link.latency.count(),
                            .late = link.late ? 1u : 0u};
  PeerMemoryHandle handle{.offset = offset, .bytes = bytes};
  std::memcpy(handle.native.data(), &native, sizeof native);
  return handle;
}

std::unique_ptr<HostPeerMemory> open_host_memory(const PeerMemoryHandle& handle, const HostPeerLink& own) {
  NativeHandle native;
  std::memcpy(&native, handle.native.data(), sizeof native);
  if (native.magic != NativeHandle::kMagic) {
    throw Unsupported(
        "the memory of another process is not that of a host device, or is named by another version of "
        "penstock");
  }
  if (native.process == getpid()) {
    throw Unsupported("the memory is this process's own: name it directly, and enable the device as a peer");
  }
  if ((native.late != 0) != own.late) {
    throw Unsupported("host devices reach each other only if `late` is the same for both");
  }
  const std::string path = fmt::format("/proc/{}/fd/{}", native.process, native.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0 && (errno == EACCES || errno == EPERM)) {
    throw Unsupported(fmt::format(
        "{} may not be opened ({}): the processes must be of one user, and allowed to inspect each other",
        path, std::strerror(errno)));
  }
  if (file < 0) refuse_gone(native, std::strerror(errno));
  const std::unique_ptr<const int, void (*)(const int*)> closed(&file, [](const int* open) { close(*open); });
  struct stat facts{};
  if (fstat(file, &facts) != 0 || facts.st_ino != native.inode)
    refuse_gone(native, "its file is another one");
  const auto size = static_cast<std::uint64_t>(facts.st_size);
  if (handle.offset > size || handle.bytes > size - handle.offset) {
    throw InvalidArgument("the memory of another process was named with bytes that it does not have");
  }
  return std::unique_ptr<HostPeerMemory>(new HostPeerMemory{
      SharedPages::attach(file), Wire(native.bytes_per_second, std::chrono::nanoseconds(native.latency_ns))});
}

}  // namespace penstock
