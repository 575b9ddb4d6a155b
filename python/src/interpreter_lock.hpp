#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>

namespace penstock::python {

/// Never returns.
[[noreturn]] void stay() noexcept;

/// What `call` gives, which takes the interpreter's lock or runs Python code. If the program ends meanwhile,
/// Python before 3.14 ends the thread when it next takes the lock. That would unwind our frames without the
/// lock, and while others still use what these hold. The thread stays here instead, until the process is
/// gone.
template <typename Call>
decltype(auto) stay_if_ended(Call&& call) {
  try {
    return call();
  } catch (abi::__forced_unwind&) {
    stay();
  }
}

/// Gives the interpreter's lock away while it lives. If the program ends meanwhile, the thread stays in the
/// destructor.
class Unlocked {
 public:
  Unlocked() noexcept : state_(PyEval_SaveThread()) {}
  ~Unlocked();
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* const state_;
};

/// Holds the interpreter's lock while it lives, on any thread, which may have it already. If the program
/// ends, the thread stays in the constructor.
class Locked {
 public:
  Locked() noexcept;
  ~Locked() { PyGILState_Release(state_); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace penstock::python
