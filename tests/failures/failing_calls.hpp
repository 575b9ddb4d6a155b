#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace penstock::testing {

/// What a test can let fail in this process. `driver` calls are those of the fake driver.
enum class Call { memory, driver, thread, file, map, socket, last = socket };
inline constexpr const char* kCallNames[] = {"memory", "driver", "thread", "file", "map", "socket"};

/// Lets the `nth` call of a kind fail, counted from the constructor on and over all threads but the fake
/// driver's own. The program's definitions of `operator new`, `read`, `pthread_create` and the like stand
/// before the system's for the library and for libstdc++. One lives at a time.
class FailingCall {
 public:
  FailingCall(Call kind, long nth);
  ~FailingCall();
  FailingCall(const FailingCall&) = delete;
  FailingCall& operator=(const FailingCall&) = delete;

  /// The function that failed; empty: fewer than `nth` calls were made.
  [[nodiscard]] std::string failed() const;

 private:
  const Call kind_;
};

/// Nothing fails, and nothing is counted, while one lives.
class FailuresPaused {
 public:
  FailuresPaused();
  ~FailuresPaused();
  FailuresPaused(const FailuresPaused&) = delete;
  FailuresPaused& operator=(const FailuresPaused&) = delete;

 private:
  const bool was_armed_;
};

/// What this process holds. Each is to be the same before and after.
struct Holdings {
  long blocks = 0;  ///< of `operator new`
  long mapped = 0;  ///< bytes of `mmap`
  long threads = 0;
  long descriptors = 0;
  long streams = 0;  ///< of the fake driver, with those of events
  long device_bytes = 0;
  long locked_bytes = 0;
  bool operator==(const Holdings&) const = default;
  [[nodiscard]] std::string text() const;
};
[[nodiscard]] Holdings holdings();

}  // namespace penstock::testing
