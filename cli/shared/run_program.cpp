#include "cli/shared/run_program.hpp"

#include <penstock/core/error.hpp>

#include <dlfcn.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

extern char** environ;

namespace penstock::cli {

namespace {

namespace fs = std::filesystem;

constexpr std::array kPassed = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
std::atomic<pid_t> program{-1};
static_assert(std::atomic<pid_t>::is_always_lock_free);

void pass_on(int signal, siginfo_t* info, void*) {
  const bool from_terminal = info->si_code > 0;
  if (!from_terminal) ::kill(program, signal);
}

/// Passes signals on while it lives.
class SignalPass {
 public:
  explicit SignalPass(pid_t process) {
    program = process;
    struct sigaction action{};
    action.sa_sigaction = pass_on;
    action.sa_flags = static_cast<int>(SA_SIGINFO | SA_RESTART);
    for (std::size_t i = 0; i < kPassed.size(); ++i) ::sigaction(kPassed[i], &action, &before_[i]);
  }
  ~SignalPass() {
    for (std::size_t i = 0; i < kPassed.size(); ++i) ::sigaction(kPassed[i], &before_[i], nullptr);
  }
  SignalPass(const SignalPass&) = delete;
  SignalPass& operator=(const SignalPass&) = delete;

 private:
  std::array<struct sigaction, kPassed.size()> before_{};
};

std::string_view variable_name(std::string_view variable) {
  return variable.substr(0, variable.find('=') + 1);
}

/// Why there is no program, although a file may be there: then its interpreter, or its loader, is missing.
std::string why_missing(const std::string& word, const std::string& missing) {
  const std::optional<fs::path> file = find_program(word);
  if (!file)
    return word.find('/') == std::string::npos ? missing : fmt::format("there is no file '{}'", word);
  std::string line;
  std::ifstream in(*file, std::ios::binary);
  if (in.get() != '#' || in.get() != '!' || !std::getline(in, line))
    return fmt::format("{} cannot be started: the loader that it asks for is missing", file->string());
  std::istringstream words(line);
  std::string interpreter;
  words >> interpreter;
  return fmt::format("{} cannot be started: its first line asks for {}, which is missing", file->string(),
                     interpreter);
}

/// Why a file that is there is not run, and what to do.
std::string why_refused(const fs::path& file, int error, const std::string& instead) {
  constexpr fs::perms kExecutable = fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec;
  std::error_code unknown;
  const fs::file_status status = fs::status(file, unknown);
  const std::string refused = fmt::format("{} cannot be started: ", file.string());
  if (fs::is_directory(status)) return refused + "it is a folder; name a program in it";
  if (error == EACCES && (status.permissions() & kExecutable) == fs::perms::none) {
    return fmt::format("{}it is not executable; write chmod +x {}{}{}", refused, file.string(),
                       instead.empty() ? "" : ", or ", instead);
  }
  const std::string why = error == ENOEXEC
                              ? "it is neither a program for this machine nor a script whose first line "
                                "names an interpreter, such as #!/bin/bash"
                              : std::strerror(error);
  return fmt::format("{}{}{}{}", refused, why, instead.empty() ? "" : "; write ", instead);
}

std::string why_not_started(const std::string& word, int error, const StartHints& hints) {
  if (error == ENOENT) return why_missing(word, hints.missing);
  if (error == EACCES || error == ENOEXEC) {
    if (const std::optional<fs::path> file = find_program(word))
      return why_refused(*file, error, hints.instead);
    if (word.find('/') == std::string::npos) return hints.missing;
  }
  return fmt::format("{} cannot be started: {}", word, std::strerror(error));
}

}  // namespace

std::optional<fs::path> find_program(const std::string& word) {
  std::error_code error;
  if (word.find('/') != std::string::npos)
    return fs::exists(word, error) ? std::optional<fs::path>(word) : std::nullopt;
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/bin:/usr/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    fs::path file = fs::path(folder) / word;
    if (fs::is_regular_file(file, error)) return file;
  }
  return std::nullopt;
}

fs::path find_own_library(const std::string& name) {
  std::vector<fs::path> folders;
  std::error_code error;
  Dl_info here{};
  if (::dladdr(reinterpret_cast<const void*>(&find_own_library), &here) != 0 && here.dli_fname != nullptr &&
      fs::path(here.dli_fname).is_absolute()) {
    folders.push_back(fs::path(here.dli_fname).parent_path());
  }
  const fs::path command = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    const fs::path folder = command.parent_path();
    folders.insert(folders.end(), {folder, folder.parent_path() / PENSTOCK_LIBDIR / "penstock"});
  }
  for (const fs::path& folder : folders) {
    if (fs::is_regular_file(folder / name, error)) return folder / name;
  }
  throw Error(fmt::format("{} is missing beside the command; install penstock again", name));
}

std::vector<std::string> own_command(const std::string& python) {
  std::error_code error;
  const fs::path own = fs::read_symlink("/proc/self/exe", error);
  if (own.filename() == "penstock") return {own.string()};
  return {python, "-c", "from penstock._command import main; raise SystemExit(main())"};
}

pid_t start_program(std::vector<std::string> words, ProgramStart start, const StartHints& hints) {
  posix_spawn_file_actions_t actions{};
  posix_spawnattr_t attributes{};
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  if (start.quiet) ::posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  sigset_t defaults;
  ::sigemptyset(&defaults);
  ::sigaddset(&defaults, SIGPIPE);
  ::sigaddset(&defaults, SIGXFSZ);
  ::posix_spawnattr_setsigdefault(&attributes, &defaults);
  sigset_t blocked;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  if (start.holds_interrupt) ::sigaddset(&blocked, SIGINT);
  ::posix_spawnattr_setsigmask(&attributes, &blocked);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  std::vector<char*> envp;
  envp.reserve(start.variables.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  for (std::string& variable : start.variables) envp.push_back(variable.data());
  for (char** variable = environ; *variable != nullptr; ++variable) {
    bool replaced = false;
    for (const std::string& ours : start.variables)
      replaced |= variable_name(*variable) == variable_name(ours);
    if (!replaced) envp.push_back(*variable);
  }
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  pid_t process = -1;
  const int error = ::posix_spawnp(&process, argv[0], &actions, &attributes, argv.data(), envp.data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw Error(why_not_started(words[0], error, hints));
  return process;
}

int wait_for_program(pid_t process) {
  constexpr int kSignalled = 128;
  const SignalPass pass(process);
  int status = 0;
  while (::waitpid(process, &status, 0) < 0) {
    if (errno != EINTR)
      throw Error(fmt::format("the program's end cannot be waited for: {}", std::strerror(errno)));
  }
  return WIFSIGNALED(status) ? kSignalled + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace penstock::cli
