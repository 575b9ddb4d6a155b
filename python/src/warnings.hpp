#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

/// Passes the library's warnings to Python's logger "penstock".
void pass_warnings_on(nanobind::module_& module);

}  // namespace penstock::python
