#pragma once

#include <penstock/core/error.hpp>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

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
