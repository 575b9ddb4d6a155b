#include "cli/shared/signals.hpp"

#include <atomic>

namespace penstock::cli {

namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

}  // namespace

SignalWatch::SignalWatch() {
  interrupted = false;
  struct sigaction action{};
  action.sa_handler = [](int) { interrupted = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  ::sigaction(SIGINT, &action, &old_interrupt_);
  ::sigaction(SIGTERM, &action, &old_terminate_);
}

SignalWatch::~SignalWatch() {
  ::sigaction(SIGINT, &old_interrupt_, nullptr);
  ::sigaction(SIGTERM, &old_terminate_, nullptr);
}

bool SignalWatch::requested() noexcept { return interrupted; }

void SignalWatch::check() {
  if (requested()) throw Interrupted{};
}

}  // namespace penstock::cli
