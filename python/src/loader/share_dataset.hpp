#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void bind_share_dataset(nb::module_& module);

}  // namespace penstock::python
