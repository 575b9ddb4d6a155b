#include "core/shared/start_thread.hpp"

#include "support/threads.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/prctl.h>

#include <csignal>
#include <string>
#include <thread>

namespace penstock {
namespace {

sigset_t blocked_here() {
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  return blocked;
}

TEST(StartThread, HasItsNameAndTakesFaultsAlone) {
  std::string name;
  sigset_t blocked{};
  std::thread thread = start_thread("penstock-test", [&] {
    name = testing::this_threads_name();
    blocked = blocked_here();
  });
  thread.join();
  EXPECT_EQ(name, "penstock-test");
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD, SIGUSR1, SIGALRM}) {
    EXPECT_EQ(sigismember(&blocked, signal), 1) << signal;
  }
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) {
    EXPECT_EQ(sigismember(&blocked, fault), 0) << fault;
  }
}

TEST(StartThread, LeavesTheSignalsOfItsCallerAsTheyWere) {
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, SIGUSR2);
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &one, &before);
  start_thread("penstock-test", [] {}).join();
  const sigset_t after = blocked_here();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(sigismember(&after, SIGUSR2), 1);
  EXPECT_EQ(sigismember(&after, SIGINT), sigismember(&before, SIGINT));
  EXPECT_EQ(sigismember(&after, SIGUSR1), sigismember(&before, SIGUSR1));
}

TEST(StartThread, SleepsNoLongerThanItShould) {
  const int before = prctl(PR_GET_TIMERSLACK);
  int slack = -1;
  start_thread("penstock-test", [&] { slack = prctl(PR_GET_TIMERSLACK); }).join();
  EXPECT_EQ(slack, 1);
  EXPECT_EQ(prctl(PR_GET_TIMERSLACK), before);
}

}  // namespace
}  // namespace penstock
