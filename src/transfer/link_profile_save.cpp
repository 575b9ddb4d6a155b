#include <penstock/core/error.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace penstock {

namespace {

[[noreturn]] void fail(const std::filesystem::path& file, const char* what) {
  throw Error(fmt::format("The link profile cannot be stored at {}: {} failed ({}).", file.string(), what,
                          std::strerror(errno)));
}

/// A new file that is removed unless it was renamed to its place.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& place) : place_(place) {
    static std::atomic<unsigned> count{0};
    path_ = fmt::format("{}.{}.{}.tmp", place.string(), ::getpid(), count.fetch_add(1));
    descriptor_ = ::open(path_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    if (descriptor_ < 0) fail(place_, "creating a file beside it");
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  void write(std::string_view text) {
    while (!text.empty()) {
      const ssize_t written = ::write(descriptor_, text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail(place_, "writing");
      text.remove_prefix(static_cast<std::size_t>(written));
    }
    if (::fsync(descriptor_) != 0) fail(place_, "writing to the disk");
  }

  void move_into_place() {
    if (::rename(path_.c_str(), place_.c_str()) != 0) fail(place_, "renaming");
    path_.clear();
  }

 private:
  std::filesystem::path place_;
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace

void LinkProfile::save(const std::filesystem::path& file) const {
  const std::filesystem::path target = file.has_parent_path() ? file : std::filesystem::path(".") / file;
  std::error_code error;
  const auto status = std::filesystem::status(target, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw Error(
        fmt::format("The link profile cannot be stored at {}: that is not a regular file.", file.string()));
  }
  std::filesystem::create_directories(target.parent_path(), error);
  if (error) {
    throw Error(fmt::format("The link profile cannot be stored at {}: its directory cannot be made ({}).",
                            file.string(), error.message()));
  }
  TemporaryFile temporary(target);
  temporary.write(to_json());
  temporary.move_into_place();
}

}  // namespace penstock
