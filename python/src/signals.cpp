#include "signals.hpp"

#include "interpreter_lock.hpp"

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace penstock::python {

void hear_signals() {
  const Locked locked;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

}  // namespace penstock::python
