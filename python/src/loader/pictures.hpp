#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

/// Sources of encoded pictures, and the fields that decode them: FileFields.
void bind_pictures(nb::module_& module);

}  // namespace penstock::python
