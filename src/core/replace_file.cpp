#include "core/shared/replace_file.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/file_error.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

namespace penstock {

namespace {

namespace fs = std::filesystem;

// Between two looks at `stop`.
constexpr std::size_t kWrittenAtOnce = std::size_t{8} << 20;

[[noreturn]] void refuse(const fs::path& place, std::string_view what, int code) {
  throw FileError(fmt::format("{} cannot be written: {} ({}).", place.string(), what, std::strerror(code)),
                  place.string(), code);
}

/// A name in the folder of `place` that no other file has: the number of this process could be that of an
/// earlier one, which was killed and left its file.
std::string new_name(const fs::path& place) {
  std::uint64_t number = 0;
  while (::getrandom(&number, sizeof number, 0) != sizeof number) {
  }
  return (place.parent_path() / fmt::format("penstock-{:016x}.tmp", number)).string();
}

/// A new file that is removed unless it was renamed to its place.
class NewFile {
 public:
  /// `is_nameless`: the system drops the file with the process, however it ends, until `take_name`. Not open
  /// if the file system cannot do that.
  NewFile(const fs::path& place, bool is_nameless, const std::atomic<bool>* stop)
      : place_(place), stop_(stop) {
    if (is_nameless) {
      const std::string folder = place.parent_path().string();
      descriptor_ = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
      return;
    }
    do {
      path_ = new_name(place);
      descriptor_ = ::open(path_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    } while (descriptor_ < 0 && errno == EEXIST);
    if (descriptor_ < 0) fail("creating a file beside it failed");
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  /// True if it can be written, and get a name later: that goes by way of /proc.
  [[nodiscard]] bool is_open() const {
    return descriptor_ >= 0 && (!path_.empty() || ::access(link().c_str(), F_OK) == 0);
  }

  /// A disk that is too full says so before anything is written.
  void reserve(std::size_t bytes) {
    if (bytes == 0) return;
    while (::fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes)) != 0) {
      check_stop();
      if (errno == EINTR) continue;
      if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) fail("writing failed");
      return;  // this file system does not reserve
    }
  }

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      check_stop();
      const ssize_t written = ::write(descriptor_, bytes.data(), std::min(bytes.size(), kWrittenAtOnce));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail("writing failed");
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }

  /// False if the file system gives a file without a name none.
  [[nodiscard]] bool take_name() {
    flush();
    if (!path_.empty()) return true;
    const std::string from = link();
    path_ = new_name(place_);
    if (::linkat(AT_FDCWD, from.c_str(), AT_FDCWD, path_.c_str(), AT_SYMLINK_FOLLOW) != 0) {
      path_.clear();
      return false;
    }
    flush();
    return true;
  }

  void move_into_place() {
    struct stat before{};
    if (::stat(place_.c_str(), &before) == 0) {
      // Only root can give a file away; for other users this changes nothing.
      static_cast<void>(!::fchown(descriptor_, before.st_uid, before.st_gid));
      ::fchmod(descriptor_, before.st_mode & 07777);
    }
    if (::close(std::exchange(descriptor_, -1)) != 0) fail("writing to the disk failed");
    check_stop();
    if (::rename(path_.c_str(), place_.c_str()) != 0) fail("renaming failed");
    path_.clear();
  }

 private:
  void check_stop() const {
    if (stop_ != nullptr && *stop_) {
      throw Closed(fmt::format("writing {} was stopped", place_.string()));
    }
  }
  void flush() const {
    if (::fsync(descriptor_) != 0) fail("writing to the disk failed");
  }
  [[nodiscard]] std::string link() const { return fmt::format("/proc/self/fd/{}", descriptor_); }
  [[noreturn]] void fail(std::string_view what) const { refuse(place_, what, errno); }

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

/// False if the file system has no files without a name, and `is_nameless`.
bool write_new(const fs::path& place, bool is_nameless, std::span<const std::byte> content,
               const std::atomic<bool>* stop) {
  NewFile written(place, is_nameless, stop);
  if (!written.is_open()) return false;
  written.reserve(content.size());
  written.write(content);
  if (!written.take_name()) return false;
  written.move_into_place();
  return true;
}

/// Where `file` leads, if it is a link: the target may not be there yet.
fs::path place_of(const fs::path& file) {
  std::error_code error;
  const auto status = fs::status(file, error);
  if (!fs::status_known(status)) refuse(file, "looking for it failed", error.value());
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw FileError(fmt::format("{} cannot be written: that is not a regular file.", file.string()),
                    file.string(), fs::is_directory(status) ? EISDIR : EINVAL);
  }
  fs::path place = fs::absolute(file);
  while (fs::is_symlink(fs::symlink_status(place, error))) {
    place = place.parent_path() / fs::read_symlink(place);
  }
  return place;
}

}  // namespace

void replace_file(const fs::path& file, std::span<const std::byte> content, const std::atomic<bool>* stop) {
  const fs::path place = place_of(file);
  if (!write_new(place, true, content, stop)) write_new(place, false, content, stop);
  write_folder_to_disk(place.parent_path());
}

}  // namespace penstock
