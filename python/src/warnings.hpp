#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

/// What the library warns of goes to Python's logger "penstock".
void pass_warnings_on(nanobind::module_& module);

}  // namespace penstock::python
