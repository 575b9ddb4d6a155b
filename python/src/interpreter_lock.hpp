#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

/// Gives the interpreter's lock away while it lives. If the program ends meanwhile, the thread stays in the
/// destructor until the process is gone: all that its frames hold stays in place. (Python before 3.14 would
/// end the thread there, which unwinds frames that others still use, or aborts.)
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
