#pragma once

#include <nanobind/nanobind.h>

#include <exception>
#include <memory>
#include <type_traits>

namespace penstock::python {

/// Never returns.
[[noreturn]] void stay() noexcept;

/// Stays if it is destroyed before it is `done` and no exception is thrown: then the thread is being ended.
class StayUnlessDone {
 public:
  StayUnlessDone() noexcept = default;
  ~StayUnlessDone() {
    if (!done && std::uncaught_exceptions() == exceptions_) stay();
  }
  StayUnlessDone(const StayUnlessDone&) = delete;
  StayUnlessDone& operator=(const StayUnlessDone&) = delete;

  bool done = false;

 private:
  const int exceptions_ = std::uncaught_exceptions();
};

/// What `call` gives, which takes the interpreter's lock or runs Python code. If the program ends meanwhile,
/// Python before 3.14 ends the thread when it next takes the lock. That would unwind our frames without the
/// lock, and while others still use what these hold. The thread stays here instead, until the process is
/// gone. A destructor does it: libc++ knows no handler for the end of a thread.
template <typename Call>
decltype(auto) stay_if_ended(Call&& call) {
  StayUnlessDone ending;
  if constexpr (std::is_void_v<decltype(call())>) {
    call();
    ending.done = true;
  } else {
    decltype(auto) result = call();
    ending.done = true;
    return result;
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

/// Owns a Python object. It may be released from any thread, also after the interpreter's end.
[[nodiscard]] std::shared_ptr<const void> keep_alive(const nanobind::object& object);

}  // namespace penstock::python
