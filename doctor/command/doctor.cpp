#include "cli/shared/output.hpp"
#include "cli/shared/run_program.hpp"
#include "cli/shared/signals.hpp"
#include "doctor/command/doctor_command.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace penstock::cli {

namespace {

/// The package may lack the doctor, or be missing. What the user's file lacks is told by Python.
constexpr const char* kProgram = R"(import sys
try:
    from penstock._doctor.command import main
except ModuleNotFoundError as error:
    if (error.name or '').partition('.')[0] != 'penstock':
        raise
    sys.exit(f'penstock: {sys.executable} has no penstock package with a doctor. Install this version of penstock into '
             'it with its pip, or put another python3 first into the PATH.')
sys.exit(main(*sys.argv[1:]))
)";

constexpr int kPythonFailed = 1;  // it has said why
constexpr int kPythonInterrupted = 130;

struct LoaderName {
  std::string file;
  std::string name;
};

LoaderName parse_loader(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size()) {
    throw UsageError(fmt::format("'{}' is not FILE.py:NAME, such as train.py:loader", text));
  }
  LoaderName loader{text.substr(0, colon), text.substr(colon + 1)};
  if (!loader.file.ends_with(".py")) {
    throw UsageError(fmt::format("'{}' is not a Python file; pass --loader FILE.py:NAME", loader.file));
  }
  if (!std::filesystem::is_regular_file(loader.file)) {
    throw Error(fmt::format("there is no file '{}'", loader.file));
  }
  return loader;
}

/// A file in memory that a child process may write.
class SharedText {
 public:
  SharedText() : descriptor_(::memfd_create("penstock-verdict", 0)) {
    if (descriptor_ < 0) throw Error(fmt::format("no file in memory can be made: {}", std::strerror(errno)));
  }
  ~SharedText() { ::close(descriptor_); }
  SharedText(const SharedText&) = delete;
  SharedText& operator=(const SharedText&) = delete;

  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  [[nodiscard]] std::string read() const {
    std::string text;
    std::array<char, 4096> part{};
    ssize_t got = 0;
    while ((got = ::pread(descriptor_, part.data(), part.size(), static_cast<off_t>(text.size()))) > 0) {
      text.append(part.data(), static_cast<std::size_t>(got));
    }
    return text;
  }

 private:
  int descriptor_;
};

/// Returns the exit status. If the user asks to stop, so does the process, and then this throws Interrupted.
int finish(pid_t process) {
  constexpr auto kGlance = std::chrono::milliseconds(10);
  int status = 0;
  bool told = false;
  while (::waitpid(process, &status, WNOHANG) == 0) {
    if (SignalWatch::requested() && !told) {
      ::kill(process, SIGTERM);
      told = true;
    }
    std::this_thread::sleep_for(kGlance);
  }
  if (SignalWatch::requested()) throw Interrupted{.outcome = "there is no verdict"};
  if (WIFSIGNALED(status)) throw Error(fmt::format("python3 was ended by signal {}", WTERMSIG(status)));
  return WEXITSTATUS(status);
}

/// What the options' own rules do not see.
void refuse_contradictions(const DoctorOptions& options) {
  const std::string other = options.traces.empty() ? options.loader : options.traces.front();
  if (!options.command.empty() && !other.empty())
    throw UsageError(fmt::format("{} and a program behind -- exclude each other; pass one of them", other));
}

}  // namespace

int run_doctor(const DoctorOptions& options, const Environment& environment) {
  refuse_contradictions(options);
  if (!options.command.empty()) return run_recording_doctor(options, environment);
  if (!options.traces.empty()) return run_trace_doctor(options, environment);
  const LoaderName loader = parse_loader(options.loader);
  OutputFile output("--json", options.json);
  output.keep_off(loader.file, "the loader's program");
  const SharedText verdict;
  const SignalWatch watch;
  const pid_t process = start_program(
      {environment.python, "-c", kProgram, loader.file, loader.name, fmt::format("{}", options.seconds),
       options.step_ms ? fmt::format("{}", *options.step_ms) : "", fmt::format("{}", verdict.descriptor())},
      {.variables = {}, .quiet = output.is_standard_output(), .holds_interrupt = true},
      {"there is no python3 in the PATH; install Python 3.10 or newer with PyTorch and the penstock "
       "package"});
  const int status = finish(process);
  if (status == kPythonFailed || status == kPythonInterrupted) return status;
  const std::string text = verdict.read();
  if (status != 0 || text.empty()) {
    throw Error(
        fmt::format("python3 ended without a verdict, with exit status {}; if '{}' ends it, put that below "
                    "if __name__ == "
                    "\"__main__\"; its dataset must not end it either",
                    status, loader.file));
  }
  output.write(text);
  return 0;
}

}  // namespace penstock::cli
