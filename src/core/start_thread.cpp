#include "core/shared/start_thread.hpp"

#include <penstock/core/error.hpp>

#include <pthread.h>
#include <sys/prctl.h>

#include <csignal>
#include <string>
#include <system_error>
#include <utility>

namespace penstock {

namespace {

/// While it lives, threads that the calling thread starts block signals.
class SignalShield {
 public:
  SignalShield() noexcept {
    sigset_t shielded;
    sigfillset(&shielded);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&shielded, fault);
    pthread_sigmask(SIG_SETMASK, &shielded, &before_);
  }
  ~SignalShield() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalShield(const SignalShield&) = delete;
  SignalShield& operator=(const SignalShield&) = delete;

 private:
  sigset_t before_{};
};

thread_local bool is_own = false;

}  // namespace

bool is_own_thread() noexcept { return is_own; }

std::thread start_thread(const char* name, std::function<void()> body) {
  const SignalShield shield;
  try {
    return std::thread([name, run = std::move(body)] {
      is_own = true;
      pthread_setname_np(pthread_self(), name);
      prctl(PR_SET_TIMERSLACK, 1UL);  // ns
      run();
    });
  } catch (const std::system_error& error) {
    throw Unsupported(
        std::string("The system does not start a thread (") + name + "): " + error.code().message() +
        ". Raise the limit of processes and threads (`ulimit -u`, or pids.max of the container).");
  }
}

}  // namespace penstock
