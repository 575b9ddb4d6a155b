#include "run_program.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <string_view>

extern char** environ;

namespace penstock::cli {

namespace {

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

}  // namespace

pid_t start_program(std::vector<std::string> words, std::vector<std::string> variables, bool quiet,
                    const std::string& missing) {
  posix_spawn_file_actions_t actions{};
  posix_spawnattr_t attributes{};
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  if (quiet) ::posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  sigset_t defaults;
  ::sigemptyset(&defaults);
  ::sigaddset(&defaults, SIGPIPE);
  ::sigaddset(&defaults, SIGXFSZ);
  ::posix_spawnattr_setsigdefault(&attributes, &defaults);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  std::vector<char*> argv;
  std::vector<char*> envp;
  for (std::string& word : words) argv.push_back(word.data());
  for (std::string& variable : variables) envp.push_back(variable.data());
  for (char** variable = environ; *variable != nullptr; ++variable) {
    bool replaced = false;
    for (const std::string& ours : variables) replaced |= variable_name(*variable) == variable_name(ours);
    if (!replaced) envp.push_back(*variable);
  }
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  pid_t process = -1;
  const int error = ::posix_spawnp(&process, argv[0], &actions, &attributes, argv.data(), envp.data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error == ENOENT) throw Error(missing);
  if (error != 0) throw Error(fmt::format("{} cannot be started: {}", words[0], std::strerror(error)));
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
