#pragma once

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace penstock::testing {

/// One end of a socket over which processes of a test talk.
class Talk {
 public:
  explicit Talk(int socket) : socket_(socket) {}

  template <typename T>
    requires std::is_trivially_copyable_v<T>
  void send(const T& value) const {
    if (::send(socket_, &value, sizeof value, MSG_NOSIGNAL) != sizeof value)
      throw std::runtime_error("the other process does not listen");
  }
  /// Throws if the other process has ended.
  template <typename T>
    requires std::is_trivially_copyable_v<T>
  [[nodiscard]] T receive() const {
    T value{};
    if (::recv(socket_, &value, sizeof value, MSG_WAITALL) != sizeof value)
      throw std::runtime_error("the other process has ended");
    return value;
  }

 protected:
  int socket_;
};

/// A process of this test program that runs one test, the body of the process, which is disabled otherwise.
/// Unlike a forked child it can use the fake driver, and start threads under every sanitizer. It is killed
/// with this object.
class OtherProcess : public Talk {
 public:
  /// `argument`: what argument() returns there.
  explicit OtherProcess(const std::string& test, const std::string& argument = {}) : Talk(-1) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw std::runtime_error("socketpair");
    socket_ = ends[0];
    const std::string filter = "--gtest_filter=" + test;
    std::vector<std::string> words{"/proc/self/exe", filter, "--gtest_also_run_disabled_tests",
                                   "--gtest_brief=1"};
    std::vector<std::string> variables{"PENSTOCK_TEST_ARGUMENT=" + argument};
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string_view text = *variable;
      if (!text.starts_with("GTEST_") && !text.starts_with("PENSTOCK_TEST_")) variables.emplace_back(text);
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], kSocket);
    const int failed = posix_spawn(&child_, "/proc/self/exe", &actions, nullptr, pointers(words).data(),
                                   pointers(variables).data());
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (failed != 0) throw std::runtime_error("posix_spawn");
  }
  ~OtherProcess() {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      static_cast<void>(wait());
    }
    close(socket_);
  }
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;

  [[nodiscard]] pid_t pid() const { return child_; }
  void kill(int signal = SIGKILL) const { ::kill(child_, signal); }
  /// Waits for its end. True if its test has passed.
  bool wait() {
    int status = -1;
    EXPECT_EQ(waitpid(child_, &status, 0), child_);
    child_ = -1;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

  /// In the other process: the end of the socket there.
  [[nodiscard]] static Talk starter() {
    alarm(300);
    return Talk(kSocket);
  }
  [[nodiscard]] static std::string argument() { return std::getenv("PENSTOCK_TEST_ARGUMENT"); }

 private:
  // Under the sanitizers' own, and above those that a program starts with.
  static constexpr int kSocket = 199;

  static std::vector<char*> pointers(std::vector<std::string>& texts) {
    std::vector<char*> result;
    for (std::string& text : texts) result.push_back(text.data());
    result.push_back(nullptr);
    return result;
  }

  pid_t child_ = -1;
};

}  // namespace penstock::testing
