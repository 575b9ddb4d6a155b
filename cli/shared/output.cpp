#include "cli/shared/output.hpp"

#include "cli/shared/environment.hpp"
#include "cli/shared/signals.hpp"
#include "core/shared/printable.hpp"
#include "core/shared/replace_file.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/file_error.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>
#include <span>
#include <utility>

namespace penstock::cli {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(std::string_view name, std::string_view why) {
  throw Error(fmt::format("{} cannot be written: {}.", name, why));
}

[[noreturn]] void refuse(std::string_view name, int error) { refuse(name, std::strerror(error)); }

std::optional<struct stat> status_of(const fs::path& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 ? std::optional(status) : std::nullopt;
}

/// Writes without blocking in write(), so that a signal is answered while the descriptor takes nothing.
void write_to(int descriptor, std::string_view text, std::string_view name) {
  const bool stopping = SignalWatch::requested();
  while (!text.empty()) {
    pollfd polled{descriptor, POLLOUT, 0};
    while (::poll(&polled, 1, 100) <= 0) {
      if (!stopping) SignalWatch::check();
    }
    // A pipe that has room has room for at least this much.
    const ssize_t written = ::write(descriptor, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
    if (written < 0 && errno != EINTR && errno != EAGAIN) refuse(name, errno);
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
  }
}

/// The standard stream that already is this file, such as /dev/stdout; -1 if none is.
int stream_at(const struct stat& status) {
  for (const int descriptor : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat stream{};
    // A closed one now reads from /dev/null: see prepare_standard_streams.
    if ((::fcntl(descriptor, F_GETFL) & O_ACCMODE) == O_RDONLY) continue;
    if (::fstat(descriptor, &stream) == 0 && stream.st_dev == status.st_dev &&
        stream.st_ino == status.st_ino) {
      return descriptor;
    }
  }
  return -1;
}

int open_special(const std::string& file, const struct stat& status) {
  if (S_ISDIR(status.st_mode)) refuse(file, EISDIR);
  if (S_ISBLK(status.st_mode)) refuse(file, "it is a disk");
  const int stream = stream_at(status);
  const int descriptor = stream >= 0 ? ::fcntl(stream, F_DUPFD_CLOEXEC, 0)
                                     : ::open(file.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (descriptor < 0 && errno == ENXIO && S_ISFIFO(status.st_mode)) {
    refuse(file, "nobody reads this FIFO; start its reader first");
  }
  if (descriptor < 0) refuse(file, errno);
  return descriptor;
}

}  // namespace

void prepare_standard_streams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    // Opened for the opposite direction, so that using it fails as for a closed descriptor.
    ::open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
}

void print(std::string_view text) { write_to(STDOUT_FILENO, printable(text), "standard output"); }

void draw(std::string_view text) noexcept {
  try {
    write_to(STDERR_FILENO, text, "standard error");
  } catch (...) {  // there is no other place to report it
  }
}

void say(std::string_view text) noexcept {
  try {
    draw(printable(text));
  } catch (...) {  // out of memory for the text
  }
}

OutputFile::OutputFile(std::string option, std::string file)
    : option_(std::move(option)), file_(std::move(file)), target_(file_) {
  if (file_.empty() || is_standard_output()) return;
  const auto status = status_of(file_);
  if (status && (!S_ISREG(status->st_mode) || stream_at(*status) >= 0)) {
    descriptor_ = open_special(file_, *status);
    return;
  }
  std::error_code error;
  if (status) target_ = fs::canonical(file_, error);
  if (error) refuse(file_, error.message());
  if (status && ::access(target_.c_str(), W_OK) != 0) refuse(file_, errno);
  const fs::path folder = target_.has_parent_path() ? target_.parent_path() : fs::path(".");
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    refuse(file_, fmt::format("its directory: {}", std::strerror(errno)));
  }
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OutputFile::keep_off(const fs::path& other, std::string_view what) const {
  if (file_.empty() || is_standard_output() || other.empty() || other == "-") return;
  std::error_code error;
  if (descriptor_ >= 0 && !fs::is_regular_file(file_, error)) return;
  const auto place = [&](const fs::path& path) { return fs::weakly_canonical(fs::absolute(path), error); };
  if (fs::equivalent(target_, other, error) || place(target_) == place(other)) {
    throw UsageError(fmt::format("{} {} would overwrite {}; name another file.", option_, file_, what));
  }
}

void OutputFile::write(std::string_view text) {
  if (file_.empty()) return;
  if (is_standard_output()) return write_to(STDOUT_FILENO, text, "standard output");
  if (descriptor_ < 0) {
    try {
      return replace_file(target_, std::as_bytes(std::span(text)));
    } catch (const FileError& error) {
      // A mounted file, or another user's in /tmp, may be written but not replaced.
      if (error.code() != EBUSY && error.code() != EPERM) refuse(file_, error.code());
    }
    descriptor_ = ::open(target_.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
    if (descriptor_ < 0) refuse(file_, errno);
  }
  write_to(descriptor_, text, file_);
}

void run_all(std::initializer_list<std::function<void()>> steps) {
  std::exception_ptr first;
  for (const auto& step : steps) {
    try {
      step();
    } catch (const Interrupted&) {
      throw;
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace penstock::cli
