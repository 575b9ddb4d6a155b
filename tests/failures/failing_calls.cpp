#include "failures/failing_calls.hpp"

#include "fake_driver/fake_cuda_controls.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <new>

namespace penstock::testing {

namespace {

// Not CUDA_ERROR_OUT_OF_MEMORY, in whose place the library takes less, or names the memory and not the call.
constexpr int kDriverError = 999;
constexpr int kSystemError = ENOBUFS;

std::atomic<bool> is_armed{false};
std::atomic<Call> armed_kind{Call::memory};
std::atomic<long> calls_left{0};
std::atomic<const char*> failed_call{nullptr};
std::atomic<long> live_blocks{0};
std::atomic<long> mapped_bytes{0};
std::atomic<int (*)()> is_inside_driver{nullptr};

FakeCuda& driver() {
  static FakeCuda fake{PENSTOCK_FAKE_DRIVER};
  return fake;
}

bool fails(Call kind, const char* name) {
  if (!is_armed || armed_kind != kind || is_inside_driver.load()() != 0) return false;
  if (--calls_left != 0) return false;
  failed_call = name;
  return true;
}

long whole_pages(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return static_cast<long>((bytes + page - 1) / page * page);
}

long entries_of(const char* folder) {
  const std::filesystem::directory_iterator entries(folder);
  return static_cast<long>(std::distance(begin(entries), end(entries)));
}

/// The function that the program's own stands before.
template <typename Function>
Function* next_of(const char* name, Function* sanitizers) {
  if (sanitizers != nullptr) return sanitizers;
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (fails(Call::memory, "operator new")) throw std::bad_alloc();
  bytes = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  void* const data = std::aligned_alloc(alignment, bytes);
  if (data == nullptr) throw std::bad_alloc();
  ++live_blocks;
  return data;
}

void release(void* data) noexcept {
  if (data == nullptr) return;
  --live_blocks;
  std::free(data);
}

}  // namespace

FailingCall::FailingCall(Call kind, long nth) : kind_(kind) {
  is_inside_driver = driver().is_inside;
  failed_call = nullptr;
  calls_left = nth;
  armed_kind = kind;
  if (kind == Call::driver) driver().fail_any(nth, kDriverError);
  is_armed = true;
}

FailingCall::~FailingCall() {
  is_armed = false;
  driver().fail_any(0, 0);
}

std::string FailingCall::failed() const {
  const char* const name = kind_ == Call::driver ? driver().failed() : failed_call.load();
  return name == nullptr ? "" : name;
}

FailuresPaused::FailuresPaused() : was_armed_(is_armed.exchange(false)) {}
FailuresPaused::~FailuresPaused() { is_armed = was_armed_; }

std::string Holdings::text() const {
  return fmt::format(
      "{} blocks, {} B mapped, {} threads, {} descriptors, {} streams and events, {} B on devices, {} B "
      "locked",
      blocks, mapped, threads, descriptors, streams, device_bytes, locked_bytes);
}

Holdings holdings() {
  Holdings now{.threads = entries_of("/proc/self/task"), .descriptors = entries_of("/proc/self/fd")};
  now.blocks = live_blocks;
  now.mapped = mapped_bytes;
  now.streams = driver().live_streams() + driver().live_events();
  now.device_bytes = static_cast<long>(driver().device_bytes());
  now.locked_bytes = static_cast<long>(driver().locked_bytes());
  return now;
}

}  // namespace penstock::testing

using penstock::testing::Call;
using penstock::testing::fails;
using penstock::testing::next_of;

void* operator new(std::size_t bytes) {
  return penstock::testing::allocate(bytes, alignof(std::max_align_t));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return penstock::testing::allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* data) noexcept { penstock::testing::release(data); }
void operator delete(void* data, std::size_t) noexcept { penstock::testing::release(data); }
void operator delete(void* data, std::align_val_t) noexcept { penstock::testing::release(data); }
void operator delete(void* data, std::size_t, std::align_val_t) noexcept { penstock::testing::release(data); }

// A sanitizer sees calls in functions of its own, which go before those of the system.
#define NEXT(result, name, parameters, specification)                                    \
  extern "C" __attribute__((weak)) result __interceptor_##name parameters specification; \
  template <typename Function = result parameters>                                       \
  Function* next_##name() {                                                              \
    static const auto next = next_of<Function>(#name, __interceptor_##name);             \
    return next;                                                                         \
  }

#define MAY_FAIL(kind, result, name, parameters, arguments, specification) \
  NEXT(result, name, parameters, specification)                            \
  extern "C" result name parameters specification {                        \
    if (fails(Call::kind, #name)) {                                        \
      errno = penstock::testing::kSystemError;                             \
      return -1;                                                           \
    }                                                                      \
    return next_##name() arguments;                                        \
  }

MAY_FAIL(file, ssize_t, read, (int file, void* to, std::size_t bytes), (file, to, bytes), )
MAY_FAIL(file, ssize_t, pread, (int file, void* to, std::size_t bytes, off_t at), (file, to, bytes, at), )
MAY_FAIL(file, ssize_t, preadv2, (int file, const iovec* to, int parts, off_t at, int flags),
         (file, to, parts, at, flags), )
MAY_FAIL(file, ssize_t, write, (int file, const void* from, std::size_t bytes), (file, from, bytes), )
MAY_FAIL(file, int, fstat, (int file, struct stat* facts), (file, facts), noexcept)
MAY_FAIL(file, int, fsync, (int file), (file), )
MAY_FAIL(file, int, fallocate, (int file, int mode, off_t at, off_t bytes), (file, mode, at, bytes), )
MAY_FAIL(file, int, linkat, (int folder, const char* from, int to_folder, const char* to, int flags),
         (folder, from, to_folder, to, flags), noexcept)
MAY_FAIL(file, int, rename, (const char* from, const char* to), (from, to), noexcept)
MAY_FAIL(map, int, memfd_create, (const char* name, unsigned flags), (name, flags), noexcept)
MAY_FAIL(map, int, ftruncate, (int file, off_t bytes), (file, bytes), noexcept)
MAY_FAIL(map, int, madvise, (void* data, std::size_t bytes, int advice), (data, bytes, advice), noexcept)
MAY_FAIL(socket, int, socket, (int domain, int type, int protocol), (domain, type, protocol), noexcept)
MAY_FAIL(socket, int, bind, (int socket, const sockaddr* place, socklen_t bytes), (socket, place, bytes),
         noexcept)
MAY_FAIL(socket, int, listen, (int socket, int waiting), (socket, waiting), noexcept)
MAY_FAIL(socket, int, connect, (int socket, const sockaddr* place, socklen_t bytes), (socket, place, bytes), )
MAY_FAIL(socket, int, accept4, (int socket, sockaddr* place, socklen_t* bytes, int flags),
         (socket, place, bytes, flags), )
MAY_FAIL(socket, int, getsockopt, (int socket, int level, int name, void* value, socklen_t* bytes),
         (socket, level, name, value, bytes), noexcept)
MAY_FAIL(socket, ssize_t, sendmsg, (int socket, const msghdr* message, int flags), (socket, message, flags), )
MAY_FAIL(socket, ssize_t, recvmsg, (int socket, msghdr* message, int flags), (socket, message, flags), )
MAY_FAIL(socket, int, poll, (pollfd * events, nfds_t count, int patience), (events, count, patience), )
MAY_FAIL(socket, int, eventfd, (unsigned value, int flags), (value, flags), noexcept)

NEXT(int, open, (const char* path, int flags, ...), )
extern "C" int open(const char* path, int flags, ...) {
  std::va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if (!fails(Call::file, "open")) return next_open()(path, flags, mode);
  errno = penstock::testing::kSystemError;
  return -1;
}

NEXT(void*, mmap, (void* at, std::size_t bytes, int access, int flags, int file, off_t begin), noexcept)
extern "C" void* mmap(void* at, std::size_t bytes, int access, int flags, int file, off_t begin) noexcept {
  void* data = MAP_FAILED;
  if (fails(Call::map, "mmap")) {
    errno = penstock::testing::kSystemError;
  } else {
    data = next_mmap()(at, bytes, access, flags, file, begin);
  }
  if (data != MAP_FAILED) penstock::testing::mapped_bytes += penstock::testing::whole_pages(bytes);
  return data;
}

NEXT(int, munmap, (void* data, std::size_t bytes), noexcept)
extern "C" int munmap(void* data, std::size_t bytes) noexcept {
  penstock::testing::mapped_bytes -= penstock::testing::whole_pages(bytes);
  return next_munmap()(data, bytes);
}

NEXT(int, pthread_create,
     (pthread_t * thread, const pthread_attr_t* traits, void* (*body)(void*), void* argument), noexcept)
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* traits, void* (*body)(void*),
                              void* argument) noexcept {
  if (fails(Call::thread, "pthread_create")) return EAGAIN;
  return next_pthread_create()(thread, traits, body, argument);
}
