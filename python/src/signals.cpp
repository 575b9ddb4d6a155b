#include "signals.hpp"

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace penstock::python {

void hear_signals() {
  const nb::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

}  // namespace penstock::python
