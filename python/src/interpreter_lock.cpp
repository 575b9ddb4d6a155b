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

std::shared_ptr<const void> keep_alive(const nanobind::object& object) {
  PyObject* pointer = nanobind::object(object).release().ptr();
  return {static_cast<const void*>(pointer), [pointer](const void*) {
            if (!nanobind::is_alive()) return;
            const Locked locked;
            Py_DECREF(pointer);
          }};
}

}  // namespace penstock::python
