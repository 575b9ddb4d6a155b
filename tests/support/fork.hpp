#pragma once

#include <penstock/core/error.hpp>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

namespace penstock::testing {

/// Runs `body` in a forked child. True if it returned true. An alarm ends a child that hangs.
bool succeeds_in_child(auto&& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(300);
    bool good = false;
    try {
      good = body();
    } catch (...) {
    }
    _exit(good ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// A child of this process, which is killed with this object.
class Child {
 public:
  explicit Child(auto&& body) : child_(fork()) {
    if (child_ != 0) return;
    alarm(300);
    bool good = false;
    try {
      good = body();
    } catch (...) {
    }
    _exit(good ? 0 : 1);
  }
  ~Child() {
    if (child_ > 0) end(SIGKILL);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  /// True if it ends with its body being true. Sends it a signal before, if that is not 0.
  bool end(int signal = 0) {
    if (signal != 0) kill(child_, signal);
    int status = -1;
    EXPECT_EQ(waitpid(child_, &status, 0), child_);
    child_ = -1;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  [[nodiscard]] pid_t pid() const { return child_; }

 private:
  pid_t child_;
};

/// True if the call is refused because the process was forked.
template <typename Call>
bool says_forked(Call&& call) {
  try {
    call();
  } catch (const DeviceError& error) {
    return error.name() == "PENSTOCK_FORKED";
  }
  return false;
}

}  // namespace penstock::testing
