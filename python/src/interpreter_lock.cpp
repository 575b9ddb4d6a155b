#include "interpreter_lock.hpp"

#include <unistd.h>

namespace penstock::python {
namespace {

/// Keeps the thread for ever if Python ends it, which unwinds this.
class Stays {
 public:
  ~Stays() {
    while (!has_returned) pause();
  }
  bool has_returned = false;
};

// Not a part of the callers, which are noexcept: their unwinding would end the process first.
template <typename Take>
[[gnu::noinline]] auto take_lock(Take take) {
  Stays stays;
  auto taken = take();
  stays.has_returned = true;
  return taken;
}

}  // namespace

Unlocked::~Unlocked() {
  take_lock([this] {
    PyEval_RestoreThread(state_);
    return true;
  });
}

Locked::Locked() noexcept : state_(take_lock([] { return PyGILState_Ensure(); })) {}

}  // namespace penstock::python
