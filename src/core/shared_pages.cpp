#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/shared_pages.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace penstock {

namespace {

[[noreturn]] void refuse_pages(const char* call, std::size_t bytes) {
  throw Unsupported(
      fmt::format("shared memory, {} of addresses: {}: {}", format_bytes(bytes), call, std::strerror(errno)));
}

}  // namespace

SharedPages::SharedPages(std::size_t bytes, const char* name) : SharedPages(-1, bytes) {
  if (bytes == 0) throw InvalidArgument("0 bytes of shared memory were asked for; use 1 or more");
  rlimit limit{};
  // A file beyond the limit ends the process with a signal.
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
    throw Unsupported(
        fmt::format("shared memory: files may have {}, and this one has {} of addresses. Raise `ulimit -f`.",
                    format_bytes(limit.rlim_cur), format_bytes(bytes)));
  }
  file_ = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file_ < 0) refuse_pages("memfd_create", bytes);
  if (ftruncate(file_, static_cast<off_t>(bytes)) != 0) refuse_pages("ftruncate", bytes);
  // Whoever reads a file past its end dies.
  if (fcntl(file_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    refuse_pages("fcntl", bytes);
  }
  map();
}

SharedPages SharedPages::attach(int file) {
  struct stat facts{};
  if (fstat(file, &facts) != 0 && errno != EBADF) refuse_pages("fstat", 0);
  if (!S_ISREG(facts.st_mode) || facts.st_size <= 0) {
    throw InvalidArgument(fmt::format("descriptor {} is not of shared memory", file));
  }
  const auto bytes = static_cast<std::size_t>(facts.st_size);
  const int own = fcntl(file, F_DUPFD_CLOEXEC, 0);
  if (own < 0) refuse_pages("fcntl", bytes);
  SharedPages pages(own, bytes);
  pages.map();
  return pages;
}

SharedPages::~SharedPages() {
  if (data_ != nullptr) munmap(data_, bytes_);
  if (file_ >= 0) close(file_);
}

SharedPages::SharedPages(SharedPages&& other) noexcept
    : file_(std::exchange(other.file_, -1)),
      bytes_(std::exchange(other.bytes_, 0)),
      data_(std::exchange(other.data_, nullptr)) {}

void SharedPages::map() {
  // Pages are taken when they are written: addresses alone cost nothing.
  void* const mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, 0);
  if (mapped == MAP_FAILED) refuse_pages("mmap", bytes_);
  data_ = static_cast<std::byte*>(mapped);
  madvise(data_, bytes_, MADV_HUGEPAGE);  // hints: huge pages, if the system gives them to shared memory,
  madvise(data_, bytes_, MADV_DONTDUMP);  // and does not write terabytes of addresses into a core file
}

}  // namespace penstock
