#include "interpreter_lock.hpp"

#include <unistd.h>

namespace penstock::python {

void stay() noexcept {
  while (true) pause();
}

Unlocked::~Unlocked() {
  stay_if_ended([this] { PyEval_RestoreThread(state_); });
}

Locked::Locked() noexcept : state_(stay_if_ended(&PyGILState_Ensure)) {}

}  // namespace penstock::python
