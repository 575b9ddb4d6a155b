#include "data/file.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/file_error.hpp>

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

std::string system_message(int error) {
  std::string message = std::generic_category().message(error);
  if (error == EMFILE)
    message += ". A mapped file stays open: raise the limit (ulimit -n), or join the files";
  return message;
}

}  // namespace

File::State::~State() {
  if (descriptor >= 0) ::close(descriptor);
}

File::File(const std::filesystem::path& path) {
  auto state = std::make_shared<State>();
  state->name = path.string();
  // O_NONBLOCK: opening a pipe by mistake must not wait for its writer.
  state->descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat status{};
  if (state->descriptor < 0 || ::fstat(state->descriptor, &status) != 0) {
    const int code = errno;
    throw FileError(fmt::format("{} cannot be opened: {}.", state->name, system_message(code)), state->name,
                    code);
  }
  if (!S_ISREG(status.st_mode)) {
    throw FileError(
        fmt::format("{} is not a regular file. Copy it to one: penstock reads samples in any order.",
                    state->name),
        state->name, S_ISDIR(status.st_mode) ? EISDIR : EINVAL);
  }
  state->size = static_cast<std::uint64_t>(status.st_size);
  state->written = std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
  state_ = std::move(state);
}

std::uint64_t File::end_before(std::uint64_t reached) const noexcept {
  struct stat status{};
  if (::fstat(descriptor(), &status) != 0) return reached;
  return std::min(reached, static_cast<std::uint64_t>(status.st_size));
}

std::size_t File::read(std::uint64_t offset, std::span<std::byte> destination) const {
  std::size_t done = 0;
  while (done < destination.size()) {
    const ssize_t got = ::pread(descriptor(), destination.data() + done, destination.size() - done,
                                static_cast<off_t>(offset + done));
    if (got == 0) break;
    if (got < 0) {
      if (errno == EINTR) continue;
      const int code = errno;
      throw FileError(fmt::format("{}: reading {} bytes at byte {} failed: {}.", name(),
                                  destination.size() - done, offset + done, system_message(code)),
                      name(), code);
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
