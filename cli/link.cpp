#include "link_report.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>

namespace penstock::cli {

namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

/// A first signal is noted and answered at the next step; a second one ends the process at once.
class SignalWatch {
 public:
  SignalWatch() {
    interrupted = false;
    struct sigaction action{};
    action.sa_handler = [](int) { interrupted = true; };
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
    ::sigaction(SIGINT, &action, &old_interrupt_);
    ::sigaction(SIGTERM, &action, &old_terminate_);
  }
  ~SignalWatch() {
    ::sigaction(SIGINT, &old_interrupt_, nullptr);
    ::sigaction(SIGTERM, &old_terminate_, nullptr);
  }
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  static void check() {
    if (interrupted) throw Interrupted{};
  }

 private:
  struct sigaction old_interrupt_{};
  struct sigaction old_terminate_{};
};

std::size_t terminal_columns(int descriptor) {
  winsize size{};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void write_file(const std::string& file, const std::string& text, std::ios::openmode mode) {
  std::ofstream stream(file, mode | std::ios::binary);
  stream << text << std::flush;
  if (!stream) throw Error(fmt::format("{} cannot be written ({}).", file, std::strerror(errno)));
}

}  // namespace

int run_link(const LinkOptions& options, const Environment& environment) {
  const Look look{.unicode = environment.utf8 && !options.ascii, .columns = terminal_columns(STDERR_FILENO)};
  const SignalWatch watch;
  const Device device = Device::open(options.device, environment.device);
  std::filesystem::path file;
  if (options.store) {
    file = profile_file(options.profile, device.info(), environment);
    static_cast<void>(stored_profile(file, device.info()));
  }
  // What cannot be written should be known before the measurement, not after it.
  if (!options.json.empty() && options.json != "-") write_file(options.json, "", std::ios::app);

  LinkMeasurement measurement;
  {
    Progress progress(::isatty(STDERR_FILENO) != 0, look);
    measurement = measure_link(device, {.max_bytes = options.max_bytes,
                                        .quick = options.quick,
                                        .repetitions = options.repetitions,
                                        .progress = [&](const LinkProgress& now) {
                                          SignalWatch::check();
                                          progress.update(now.fraction, now.step);
                                        }});
  }
  SignalWatch::check();

  if (options.json == "-") {
    fmt::print("{}", measurement.to_json());
  } else {
    const Look page{.unicode = look.unicode, .columns = terminal_columns(STDOUT_FILENO)};
    fmt::print("{}", link_report(device.info(), measurement, page));
    if (!options.json.empty()) write_file(options.json, measurement.to_json(), std::ios::trunc);
  }
  if (options.store) {
    measurement.profile.save(file);
    fmt::print(options.json == "-" ? stderr : stdout, "The link profile is stored in {}.\n", file.string());
  }
  return 0;
}

}  // namespace penstock::cli
