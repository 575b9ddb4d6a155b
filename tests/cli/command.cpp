#include "cli/command.hpp"

#include "support/matchers.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace penstock::testing {

namespace {

namespace fs = std::filesystem;

struct Child {
  pid_t process = -1;
  int output = -1;
  int errors = -1;
};

std::pair<int, int> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  return {ends[0], ends[1]};
}

std::pair<int, int> make_terminal() {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (master < 0 || ::grantpt(master) != 0 || ::unlockpt(master) != 0)
    throw std::runtime_error("no terminal");
  const int slave = ::open(::ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (slave < 0) throw std::runtime_error("no terminal");
  return {master, slave};
}

std::string command_path() {
  // That of tools/mutants.py.
  const char* const changed = std::getenv("PENSTOCK_COMMAND");
  return changed != nullptr ? changed : PENSTOCK_COMMAND;
}

std::vector<std::string> words_of(const std::vector<std::string>& arguments) {
  return joined({{command_path()}, arguments});
}

Child start(std::vector<std::string> words, const std::vector<std::string>& environment, bool terminal,
            const fs::path& directory = {}) {
  const auto [output, output_end] = make_pipe();
  const auto [errors, errors_end] = terminal ? make_terminal() : make_pipe();
  std::vector<char*> argv, envp;
  for (auto& word : words) argv.push_back(word.data());
  std::vector<std::string> variables = environment;
  // That of tools/mutants.py.
  if (const char* const recorder = std::getenv("PENSTOCK_RECORDER"))
    variables.push_back(std::string("PENSTOCK_RECORDER=") + recorder);
  for (auto& variable : variables) envp.push_back(variable.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  const pid_t process = ::fork();
  if (process == 0) {
    ::dup2(output_end, STDOUT_FILENO);
    ::dup2(errors_end, STDERR_FILENO);
    if (!directory.empty() && ::chdir(directory.c_str()) != 0) ::_exit(127);
    ::execve(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
  ::close(output_end);
  ::close(errors_end);
  return {process, output, errors};
}

/// Reads both streams to their ends; `on_errors` sees standard error as it grows.
template <typename OnErrors>
CommandResult finish(const Child& child, OnErrors&& on_errors) {
  CommandResult result;
  std::array<pollfd, 2> polled{pollfd{child.output, POLLIN, 0}, pollfd{child.errors, POLLIN, 0}};
  std::array<std::string*, 2> texts{&result.output, &result.errors};
  std::array<char, 4096> buffer{};
  while (polled[0].fd >= 0 || polled[1].fd >= 0) {
    if (::poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) throw std::runtime_error("poll");
    for (std::size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].fd < 0 || polled[i].revents == 0) continue;
      const ssize_t got = ::read(polled[i].fd, buffer.data(), buffer.size());
      if (got > 0) {
        texts[i]->append(buffer.data(), static_cast<std::size_t>(got));
        if (i == 1) on_errors(result.errors);
      } else {
        ::close(polled[i].fd);
        polled[i].fd = -1;
      }
    }
  }
  int status = 0;
  while (::waitpid(child.process, &status, 0) < 0 && errno == EINTR) {
  }
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace

Command::Command() {
  std::string pattern = (fs::temp_directory_path() / "penstock-home-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary directory");
  home_ = pattern;
  environment = {"HOME=" + home_.string(), "PENSTOCK_LIBCUDA=/nowhere/libcuda.so.1"};
}

Command::~Command() {
  std::error_code ignored;
  fs::remove_all(home_, ignored);
}

CommandResult Command::run(const std::vector<std::string>& arguments) const {
  return finish(start(words_of(arguments), environment, false), [](const std::string&) {});
}

namespace {

CommandResult act_on(const Child& child, const std::string& text, const std::function<void()>& act) {
  bool done = false;
  return finish(child, [&](const std::string& errors) {
    if (done || errors.find(text) == std::string::npos) return;
    act();
    done = true;
  });
}

}  // namespace

CommandResult Command::interrupt(const std::vector<std::string>& arguments, const std::string& text,
                                 int signal) const {
  const Child child = start(words_of(arguments), environment, false);
  return act_on(child, text, [&] { ::kill(child.process, signal); });
}

CommandResult Command::run_and(const std::vector<std::string>& arguments, const std::string& text,
                               const std::function<void()>& act) const {
  return act_on(start(words_of(arguments), environment, false), text, act);
}

CommandResult Command::run_script(const std::string& script) const {
  std::vector<std::string> variables = environment;
  variables.emplace_back("PENSTOCK=" + command_path());
  variables.emplace_back("PATH=/usr/bin:/bin");
  return finish(start({"/bin/sh", "-c", script}, variables, false, home_), [](const std::string&) {});
}

CommandResult Command::run_on_terminal(const std::vector<std::string>& arguments) const {
  return finish(start(words_of(arguments), environment, true), [](const std::string&) {});
}

std::vector<std::string> joined(std::initializer_list<std::vector<std::string>> parts) {
  std::vector<std::string> all;
  for (const std::vector<std::string>& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::size_t count_of(const std::string& text, const std::string& words) {
  std::size_t count = 0;
  for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++count;
  return count;
}

void expect_complaint(const CommandResult& result, int status, const std::string& words) {
  EXPECT_EQ(result.status, status) << result.errors;
  EXPECT_THAT(result.errors, AllOf(StartsWith("penstock: "), HasSubstr(words)));
  EXPECT_EQ(std::count(result.errors.begin(), result.errors.end(), '\n'), 1) << result.errors;
  EXPECT_EQ(result.output, "");
}

void CommandTest::write(const std::string& name, const std::string& text) const {
  fs::create_directories(fs::path(path(name)).parent_path());
  std::ofstream(path(name), std::ios::binary) << text;
}

std::string read_text(const std::filesystem::path& file) {
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

}  // namespace penstock::testing
