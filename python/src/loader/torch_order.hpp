#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void bind_torch_order(nb::module_& module);

}  // namespace penstock::python
