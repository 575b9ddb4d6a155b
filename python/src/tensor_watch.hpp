#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void bind_tensor_watch(nb::module_& module);

}  // namespace penstock::python
