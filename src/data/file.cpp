#include "data/file.hpp"

#include <penstock/core/error.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace penstock {

namespace {

std::string system_message(int error) { return std::generic_category().message(error); }

}  // namespace

File::File(const std::filesystem::path& path) : name_(path.string()) {
  // O_NONBLOCK: opening a pipe by mistake must not wait for its writer.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) throw Error(fmt::format("{} cannot be opened: {}.", name_, system_message(errno)));
  struct stat status{};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    throw Error(fmt::format(
        "{} is not a regular file; penstock reads samples in any order, which only regular files allow.",
        name_));
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

File::File(File&& other) noexcept
    : name_(std::move(other.name_)), descriptor_(std::exchange(other.descriptor_, -1)), size_(other.size_) {}

std::uint64_t File::end_before(std::uint64_t reached) const noexcept {
  struct stat status{};
  if (::fstat(descriptor_, &status) != 0) return reached;
  return std::min(reached, static_cast<std::uint64_t>(status.st_size));
}

std::size_t File::read(std::uint64_t offset, std::span<std::byte> destination) const {
  std::size_t done = 0;
  while (done < destination.size()) {
    const ssize_t got = ::pread(descriptor_, destination.data() + done, destination.size() - done,
                                static_cast<off_t>(offset + done));
    if (got == 0) break;
    if (got < 0) {
      if (errno == EINTR) continue;
      throw Error(fmt::format("{}: reading {} bytes at byte {} failed: {}.", name_, destination.size() - done,
                              offset + done, system_message(errno)));
    }
    done += static_cast<std::size_t>(got);
  }
  return done;
}

HostPages::HostPages(std::size_t bytes) : bytes_(bytes) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  if (bytes == 0) return;
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    const long pages = ::sysconf(_SC_AVPHYS_PAGES);
    const auto free =
        static_cast<std::size_t>(std::max(pages, 0L)) * static_cast<std::size_t>(::getpagesize());
    throw OutOfMemory("host memory", bytes, 0, free,
                      "Map the file instead of loading it, or use a smaller dataset.");
  }
  if (bytes >= kHugePage) ::madvise(data, bytes, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(data);
}

HostPages::~HostPages() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

HostPages::HostPages(HostPages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

}  // namespace penstock
