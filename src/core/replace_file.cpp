#include <penstock/core/error.hpp>
#include <penstock/core/replace_file.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace penstock {

namespace {

namespace fs = std::filesystem;

// Between two looks at `stop`.
constexpr std::size_t kWrittenAtOnce = std::size_t{8} << 20;

/// A new file that is removed unless it was renamed to its place.
class NewFile {
 public:
  NewFile(const fs::path& place, const std::atomic<bool>* stop) : place_(place), stop_(stop) {
    static std::atomic<unsigned> count{0};
    path_ = fmt::format("{}.{}.{}.tmp", place.string(), ::getpid(), count.fetch_add(1));
    descriptor_ = ::open(path_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail("creating a file beside it");
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  /// A disk that is too full says so before anything is written.
  void reserve(std::size_t bytes) {
    if (bytes == 0) return;
    while (::fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes)) != 0) {
      check_stop();
      if (errno == EINTR) continue;
      if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) fail("writing");
      return;  // this file system does not reserve
    }
  }

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      check_stop();
      const ssize_t written = ::write(descriptor_, bytes.data(), std::min(bytes.size(), kWrittenAtOnce));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail("writing");
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
    if (::fsync(descriptor_) != 0) fail("writing to the disk");
  }

  void move_into_place() {
    struct stat before{};
    if (::stat(place_.c_str(), &before) == 0) ::fchmod(descriptor_, before.st_mode & 07777);
    if (::close(std::exchange(descriptor_, -1)) != 0) fail("writing to the disk");
    check_stop();
    if (::rename(path_.c_str(), place_.c_str()) != 0) fail("renaming");
    path_.clear();
  }

 private:
  void check_stop() const {
    if (stop_ != nullptr && *stop_) {
      throw Closed(fmt::format("writing {} was stopped", place_.string()));
    }
  }
  [[noreturn]] void fail(const char* what) const {
    throw Error(
        fmt::format("{} cannot be written: {} failed ({}).", place_.string(), what, std::strerror(errno)));
  }

  const fs::path& place_;
  const std::atomic<bool>* stop_;
  std::string path_;
  int descriptor_ = -1;
};

/// The name is lost with a crash of the system until its folder is on the disk too.
void write_folder_to_disk(const fs::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;  // a folder that may be written and not read
  ::fsync(descriptor);         // not every file system can
  ::close(descriptor);
}

}  // namespace

void replace_file(const fs::path& file, std::span<const std::byte> content, const std::atomic<bool>* stop) {
  std::error_code error;
  const auto status = fs::status(file, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw Error(fmt::format("{} cannot be written: that is not a regular file.", file.string()));
  }
  const fs::path place = fs::exists(status) ? fs::canonical(file, error) : fs::absolute(file, error);
  if (error) {
    throw Error(fmt::format("{} cannot be written: {}.", file.string(), error.message()));
  }
  NewFile written(place, stop);
  written.reserve(content.size());
  written.write(content);
  written.move_into_place();
  write_folder_to_disk(place.parent_path());
}

}  // namespace penstock
