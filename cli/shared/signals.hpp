#pragma once

#include <csignal>

namespace penstock::cli {

/// The user asked to stop.
struct Interrupted {
  const char* outcome = "nothing was stored";  ///< what the user is told of it
};

/// While it lives, a first SIGINT or SIGTERM is noted, and answered at the next step. A second one ends the
/// process at once. One object at a time.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  [[nodiscard]] static bool requested() noexcept;
  /// Throws Interrupted if a signal was noted.
  static void check();

 private:
  struct sigaction old_interrupt_{};
  struct sigaction old_terminate_{};
};

}  // namespace penstock::cli
